"""Timeouts and retries of the engine's activities, in one place."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception

from ..types.state import RunState
from ..types.tool_calls import ActivityCall, RemoteCall
from ..types.wire import ModelInput, ToolInput

# ---
# What every activity is told of the run, and what its failure means: for all that the workflow asks of workers.


def build_call_facts(state: RunState, op: int, *, calling_model: bool = False) -> dict[str, Any]:
    """Those of ``CallFacts``."""
    turn = state.turn
    return {
        "agent": state.agent,
        "context_id": state.context_id,
        "task_id": turn.task_id if turn else "",
        "scope": state.scope,
        "op": op,
        "iteration": (turn.iteration if turn else 0) + (1 if calling_model else 0),
        "store_id": state.store_id,
        "context": state.context,
        "auth_context": state.auth_context,
        "auth_ref": state.auth_ref,
        "lineage": state.parent.lineage if state.parent else None,
        "is_child": state.is_child,
    }


def dump_activity_input(task: ModelInput | ToolInput) -> dict[str, Any]:
    return task.model_dump(mode="json", exclude_none=True)


def is_cancelled_activity(error: ActivityError) -> bool:
    """Whether it ended because it was to stop: also one whose worker was lost, or whose store was down, just then.

    Such an attempt is only not made again because somebody stopped it: nothing is wrong with the run.
    """
    return is_cancelled_exception(error) or error.retry_state is RetryState.CANCEL_REQUESTED


def read_activity_failure(error: BaseException) -> tuple[str, str]:
    """Class name and message of what an activity failed with in the end."""
    cause = error.__cause__ or error
    if isinstance(cause, ApplicationError):
        return cause.type or type(cause).__name__, cause.message
    return type(cause).__name__, str(cause)


HEARTBEAT_TIMEOUT = timedelta(seconds=5)
"""A worker that is silent for this long is lost; engine activities heartbeat twice a second."""
ATTEMPT_TIMEOUT = timedelta(hours=24)
"""What bounds an attempt in the end. Inside, everything has a limit of its own (a silent stream, a tool's timeout);
what is left is waiting for the store with an outcome in hand, which must not be thrown away. Heartbeats tell lost
workers."""
CHILD_TASK_TIMEOUT = timedelta(seconds=5)
"""Of one workflow task of a child, as clients start their runs."""
CANCELLED_CLOSE_TIMEOUT = timedelta(minutes=5)
"""How long the ending of a cancelled run waits for the store before the run ends unrecorded."""


def model_options() -> dict[str, Any]:
    """A model call is retried until it succeeds or fails for good; the activity says which."""
    return _build_heartbeat_options(
        start_to_close_timeout=ATTEMPT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
    )


def close_options(*, cancelled: bool) -> dict[str, Any]:
    """The recording of an ending. It waits for the store, as everything does; a run that somebody cancels must end."""
    return _build_heartbeat_options(
        start_to_close_timeout=ATTEMPT_TIMEOUT,
        schedule_to_close_timeout=CANCELLED_CLOSE_TIMEOUT if cancelled else None,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
    )


def tool_options(how: ActivityCall) -> dict[str, Any]:
    """An attempt that never began, or of an idempotent tool, is run again; the journal tells the cases apart.

    So attempts are not limited here: one that found the store locked has not begun. The journal counts ``retries``.
    """
    return _build_heartbeat_options(
        task_queue=how.task_queue,
        start_to_close_timeout=timedelta(seconds=how.timeout) + ATTEMPT_TIMEOUT,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=1),
            maximum_interval=timedelta(seconds=30),
        ),
    )


def child_options() -> dict[str, Any]:
    """A child is stopped with its parent, and waited for: it closes its transcript. One whose parent is gone ends."""
    return {
        "cancellation_type": workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
        "parent_close_policy": workflow.ParentClosePolicy.REQUEST_CANCEL,
        "task_timeout": CHILD_TASK_TIMEOUT,
    }


def background_child_options() -> dict[str, Any]:
    """A child in background runs on when its parent continues as new. When its parent ends, that stops it itself."""
    return {"parent_close_policy": workflow.ParentClosePolicy.ABANDON, "task_timeout": CHILD_TASK_TIMEOUT}


def hook_options() -> dict[str, Any]:
    """What the worker does before and after a call that is run elsewhere: each hook has a time of its own."""
    return _build_heartbeat_options(
        start_to_close_timeout=ATTEMPT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
    )


def remote_options(how: RemoteCall) -> dict[str, Any]:
    """One attempt, which need not send heartbeats: so a run that stops it cannot wait for it."""
    return {
        "task_queue": how.task_queue,
        "start_to_close_timeout": timedelta(seconds=how.timeout),
        "retry_policy": RetryPolicy(maximum_attempts=1),
        "cancellation_type": workflow.ActivityCancellationType.TRY_CANCEL,
    }


def _build_heartbeat_options(**options: Any) -> dict[str, Any]:
    return {
        "heartbeat_timeout": HEARTBEAT_TIMEOUT,
        "cancellation_type": workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        **options,
    }
