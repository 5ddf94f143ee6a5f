"""Branches of a step, and look-ups in the table of subagents in background."""

from __future__ import annotations

from typing import Literal

from ..types.run_ids import format_child_run_id
from ..types.state import BranchingStep, PendingBranch, RunState, ToolCallState
from ..types.subagents import BackgroundRun, BackgroundStatus, BranchOutcome, CollectCall
from ..types.wire import ConversationOutput, ModelOutput
from .waits import is_waiting_for_approval

# ---
# Branches of a step: the step policy waits for other agents, and the step is tried again when they have answered.
#
# Nothing else in the state changes meanwhile: the retried step gets the same input, and the outcomes of the branches. A
# turn that is stopped drops the branches with the step.


def open_branches(state: RunState, taken: int, output: ModelOutput) -> None:
    """Open the branches that the step's policy asks for. ``taken``: how many inbox messages the step was given."""
    step = state.branching or BranchingStep(taken=taken)
    first_op = state.op + 1
    opened = [PendingBranch(request=request, op=first_op + i) for i, request in enumerate(output.branches)]
    state.branching = step.model_copy(update={"branches": [*step.branches, *opened]})
    state.op = first_op + len(opened)
    state.store_id = output.store_id
    state.pinned = output.pinned or state.pinned
    apply_labels(state, output)


def apply_labels(state: RunState, output: ConversationOutput) -> None:
    """Apply the tenant and the user that the first call of an execution has found at its conversation."""
    state.tenant, state.user = output.tenant or state.tenant, output.user or state.user


def list_running_branches(state: RunState) -> tuple[PendingBranch, ...]:
    """List the branches that have not ended."""
    branches = state.branching.branches if state.branching else ()
    return tuple(branch for branch in branches if branch.outcome is None)


def list_branch_outcomes(state: RunState) -> tuple[BranchOutcome, ...]:
    """List the outcomes of the branches that have ended, in the order in which the policy asked for them."""
    branches = state.branching.branches if state.branching else ()
    return tuple(branch.outcome for branch in branches if branch.outcome is not None)


def drop_branches(state: RunState) -> None:
    """Drop the branches of a step that is recorded, or will not be tried again."""
    state.branching = None


def list_active_background_runs(state: RunState) -> list[BackgroundRun]:
    """List the background runs that have not ended, as far as the state knows."""
    return [row for row in state.background_runs if row.is_running]


def find_background_run(state: RunState, handle: str) -> BackgroundRun | None:
    """Find the background run that the model names ``handle``; None if there is none."""
    return next((row for row in state.background_runs if row.handle == handle.strip()), None)


def build_child_run_id(state: RunState, child: ToolCallState | PendingBranch | BackgroundRun) -> str:
    """Build the id of the child run that answers a call or branch, or runs in background."""
    return format_child_run_id(state.context_id, state.scope, child.op)


def sum_reserved_budget(state: RunState, name: Literal["tokens", "cost_usd", "tool_calls"]) -> float:
    """Sum the shares of a budget that active background runs have; each counts as used until its run has ended."""
    return sum(getattr(row.limits, name, None) or 0 for row in list_active_background_runs(state))


def is_waiting_for_background(pending: ToolCallState) -> bool:
    """Whether the call is a collect call without a result, which may begin (neither held nor waiting for approval)."""
    waits = pending.result is None and not pending.held and not is_waiting_for_approval(pending)
    return waits and isinstance(pending.call.disposition, CollectCall)


def list_awaited_background_runs(state: RunState) -> list[BackgroundRun]:
    """List the running background runs that a collect call waits for."""
    waiting = [pending.call.disposition for pending in state.calls if is_waiting_for_background(pending)]
    handles = dict.fromkeys(call.handle for call in waiting if isinstance(call, CollectCall))
    rows = [find_background_run(state, handle) for handle in handles]
    return [row for row in rows if row is not None and row.is_running]


def build_background_statuses(state: RunState) -> tuple[BackgroundStatus, ...]:
    """List the background runs as ``status`` shows them."""
    return tuple(
        BackgroundStatus(
            handle=row.handle,
            agent=row.agent,
            state=row.state,
            collected=row.collected,
            context_id=build_child_run_id(state, row),
        )
        for row in state.background_runs
    )
