"""Timeouts and retries of the engine's activities and child workflows, and the common fields of activity inputs."""

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
# Common fields of activity inputs, and how to read an activity's failure.


def build_call_facts(state: RunState, op: int, *, calling_model: bool = False) -> dict[str, Any]:
    """Build the fields of ``CallFacts``, which every activity input has."""
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
    """Whether the activity ended because it was cancelled, also if its worker was lost or its store down just then.

    Only the cancellation prevents another attempt then: nothing is wrong with the run.
    """
    return is_cancelled_exception(error) or error.retry_state is RetryState.CANCEL_REQUESTED


def read_activity_failure(error: BaseException) -> tuple[str, str]:
    """Return class name and message of the error that an activity finally failed with."""
    cause = error.__cause__ or error
    if isinstance(cause, ApplicationError):
        return cause.type or type(cause).__name__, cause.message
    return type(cause).__name__, str(cause)


HEARTBEAT_TIMEOUT = timedelta(seconds=5)
"""A worker that sends no heartbeat for this long is lost; engine activities heartbeat twice a second."""
ATTEMPT_TIMEOUT = timedelta(hours=24)
"""Upper bound of an attempt. Everything in it has a limit of its own (a silent stream, a tool's timeout), except
waiting for the store with an outcome that must not be lost. Heartbeats detect lost workers."""
CHILD_TASK_TIMEOUT = timedelta(seconds=5)
"""Timeout of one workflow task of a child, the same as for runs that clients start."""
CANCELLED_CLOSE_TIMEOUT = timedelta(minutes=5)
"""How long the ending of a cancelled run waits for the store before the run ends unrecorded."""


def model_options() -> dict[str, Any]:
    """Build the options of a model call. It is retried until it succeeds or raises a non-retryable error."""
    return _build_heartbeat_options(
        start_to_close_timeout=ATTEMPT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
    )


def close_options(*, cancelled: bool) -> dict[str, Any]:
    """Build the options for recording an ending. It waits for the store without limit, but ``CANCELLED_CLOSE_TIMEOUT``
    in a cancelled run, which must end."""
    return _build_heartbeat_options(
        start_to_close_timeout=ATTEMPT_TIMEOUT,
        schedule_to_close_timeout=CANCELLED_CLOSE_TIMEOUT if cancelled else None,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
    )


def tool_options(how: ActivityCall) -> dict[str, Any]:
    """Build the options of a tool call. An attempt that never began, or of an idempotent tool, is retried; the journal
    tells the cases apart.

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
    """Build the options of a child. It is cancelled with its parent, which waits while it closes its transcript; if the
    parent closes first, Temporal cancels the child."""
    return {
        "cancellation_type": workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
        "parent_close_policy": workflow.ParentClosePolicy.REQUEST_CANCEL,
        "task_timeout": CHILD_TASK_TIMEOUT,
    }


def background_child_options() -> dict[str, Any]:
    """Build the options of a background child. It runs on when its parent continues as new; a parent that ends stops it
    itself."""
    return {"parent_close_policy": workflow.ParentClosePolicy.ABANDON, "task_timeout": CHILD_TASK_TIMEOUT}


def hook_options() -> dict[str, Any]:
    """Build the options of the activities before and after an external call: each hook has its own timeout."""
    return _build_heartbeat_options(
        start_to_close_timeout=ATTEMPT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
    )


def remote_options(how: RemoteCall) -> dict[str, Any]:
    """Build the options of a remote call: one attempt, which need not heartbeat, so a run that cancels it cannot wait
    for its end."""
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
