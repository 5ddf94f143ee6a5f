"""What every activity is told of the run, and what its failure means: for all that the workflow asks of workers."""

from __future__ import annotations

from typing import Any

from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception

from ..types.state import RunState
from ..types.wire import ModelInput, ToolInput


def facts(state: RunState, op: int, *, calling_model: bool = False) -> dict[str, Any]:
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


def plain(task: ModelInput | ToolInput) -> dict[str, Any]:
    return task.model_dump(mode="json", exclude_none=True)


def stopped(error: ActivityError) -> bool:
    """Whether it ended because it was to stop: also one whose worker was lost, or whose store was down, just then.

    Such an attempt is only not made again because somebody stopped it: nothing is wrong with the run.
    """
    return is_cancelled_exception(error) or error.retry_state is RetryState.CANCEL_REQUESTED


def cause(error: BaseException) -> tuple[str, str]:
    """Class name and message of what an activity failed with in the end."""
    cause = error.__cause__ or error
    if isinstance(cause, ApplicationError):
        return cause.type or type(cause).__name__, cause.message
    return type(cause).__name__, str(cause)
