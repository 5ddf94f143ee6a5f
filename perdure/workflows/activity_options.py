"""Common fields and options of the engine's activities, and how to read an activity's failure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from ..types.limits import HEARTBEATS_IN_TIMEOUT
from ..types.state import RunState, ToolCallState
from ..types.wire import NOTHING_RECORDED, ToolInput
from .host import get_host


def build_call_facts(state: RunState, op: int, *, calling_model: bool = False) -> dict[str, Any]:
    """Build the fields of ``CallFacts``, which every activity input has."""
    turn = state.turn
    return {
        "agent": state.agent,
        "context_id": state.context_id,
        "scope": state.scope,
        "op": op,
        "schema_version": state.schema_version,
        "store_id": state.store_id,
        "context": state.context,
        "auth_context": state.auth_context,
        "auth_ref": state.auth_ref,
        "caller": state.caller,
        "tenant": state.tenant,
        "user": state.user,
        "is_child": state.is_child,
        "task_id": turn.task_id if turn else "",
        "iteration": (turn.iteration if turn else 0) + (1 if calling_model else 0),
        "lineage": state.parent.lineage if state.parent else None,
    }


def build_tool_input(state: RunState, pending: ToolCallState, **fields: Any) -> dict[str, Any]:
    """Build the input of an activity for the call. ``fields``: its arguments, and what not every call has."""
    call = pending.call
    task = ToolInput(
        **build_call_facts(state, pending.op),
        call_id=call.id,
        name=call.name,
        head=state.head,
        definition=call.definition,
        approval=pending.approval,
        **fields,
    )
    return task.model_dump(mode="json", exclude_none=True)


class ActivityFailure(NamedTuple):
    """The error that an activity finally failed with."""

    type: str
    """Its class name."""
    message: str
    details: Sequence[Any] = ()

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


def read_activity_failure(error: BaseException, untyped: str = ApplicationError.__name__) -> ActivityFailure:
    """Read the failure of an activity; ``untyped`` is the type of an error that came without one."""
    cause = error.__cause__ or error
    if isinstance(cause, ApplicationError):
        return ActivityFailure(cause.type or untyped, cause.message, cause.details)
    return ActivityFailure(type(cause).__name__, str(cause))


def is_cancelled_activity(error: ActivityError) -> bool:
    """Whether the activity ended because it was cancelled, also if its worker was lost or its store down just then.

    Only the cancellation prevents another attempt then: nothing is wrong with the run.
    """
    return is_cancelled_exception(error) or error.retry_state is RetryState.CANCEL_REQUESTED


def may_have_recorded(error: ActivityError) -> bool:
    """Whether the activity that ended with ``error`` may have recorded effects: unless its own code says that it has
    not, as a lost worker cannot, nor one between whose attempts the activity was cancelled."""
    if not error.scheduled_event_id:  # cancelled in the workflow task that was to begin it
        return False
    details = error.cause.details if isinstance(error.cause, ApplicationError | CancelledError) else ()
    return NOTHING_RECORDED not in details


def get_heartbeat_timeout() -> timedelta:
    """Return the time without a heartbeat after which a worker is lost: of the setting of the worker that runs the
    workflow. Activities take their interval from it."""
    return timedelta(seconds=get_host().heartbeat_seconds() * HEARTBEATS_IN_TIMEOUT)


ATTEMPT_TIMEOUT = timedelta(hours=24)
"""Upper bound of an attempt. Everything in it has a limit of its own (a silent stream, a tool's timeout), except
waiting for the store with an outcome that must not be lost. Heartbeats detect lost workers."""


def engine_options(*, max_retry_seconds: float = 30, **options: Any) -> dict[str, Any]:
    """Build the options of an activity of the engine: it is retried until it succeeds or raises a non-retryable error.

    So attempts of a tool are not limited here: one that found the store locked has not begun. The journal tells whether
    a call may be repeated, and counts its ``retries``.
    """
    return {
        "heartbeat_timeout": get_heartbeat_timeout(),
        "start_to_close_timeout": ATTEMPT_TIMEOUT,
        "retry_policy": RetryPolicy(maximum_interval=timedelta(seconds=max_retry_seconds)),
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        **options,
    }
