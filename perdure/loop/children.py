"""Branches of a step, and look-ups in the table of subagents in background."""

from __future__ import annotations

from typing import Literal

from ..types.state import BranchingStep, PendingBranch, RunState, ToolCallState
from ..types.subagents import BackgroundRun, BackgroundStatus, BranchOutcome, CollectCall
from ..types.wire import ModelOutput
from .waits import is_waiting_for_approval

# ---
# Branches of a step: the step policy waits for other agents, and the step is tried again when they have answered.
#
# Nothing else in the state changes meanwhile: the retried step gets the same input, and the outcomes of the branches. A
# turn that is stopped drops the branches with the step.


def open_branches(state: RunState, taken: int, output: ModelOutput) -> None:
    """Open the branches that the step's policy asks for. ``taken``: how many inbox messages the step was given."""
    found = state.branching or BranchingStep(taken=taken)
    first = state.op + 1
    asked = [PendingBranch(asked=one, op=first + at) for at, one in enumerate(output.branches)]
    state.branching = found.model_copy(update={"branches": [*found.branches, *asked]})
    state.op = first + len(asked)
    state.store_id = output.store_id
    state.pinned = output.pinned or state.pinned


def list_running_branches(state: RunState) -> tuple[PendingBranch, ...]:
    """List the branches that have not ended."""
    found = state.branching
    return tuple(one for one in found.branches if one.outcome is None) if found is not None else ()


def list_branch_outcomes(state: RunState) -> tuple[BranchOutcome, ...]:
    """List the outcomes of the branches that have ended, in the order in which the policy asked for them."""
    found = state.branching
    return tuple(one.outcome for one in found.branches if one.outcome is not None) if found is not None else ()


def drop_branches(state: RunState) -> None:
    """Drop the branches of a step that is recorded, or will not be tried again."""
    state.branching = None


def list_active_background_runs(state: RunState) -> list[BackgroundRun]:
    """List the background runs that have not ended, as far as the state knows."""
    return [row for row in state.background if row.is_running]


def find_background_run(state: RunState, handle: str) -> BackgroundRun | None:
    """Find the background run that the model names ``handle``; None if there is none."""
    return next((row for row in state.background if row.handle == handle.strip()), None)


def build_background_run_id(state: RunState, row: BackgroundRun) -> str:
    """Build the run id of a background run: ``<context_id>/<op>``."""
    return f"{state.context_id}/{row.op}"


def sum_reserved_budget(state: RunState, name: Literal["tokens", "cost_usd", "tool_calls"]) -> float:
    """Sum the shares of a budget that active background runs have; each counts as used until its run has ended."""
    total: float = 0
    for row in list_active_background_runs(state):
        total += getattr(row.limits, name, None) or 0
    return total


def is_waiting_for_background(pending: ToolCallState) -> bool:
    """Whether the call is a collect call without a result, which may begin (neither held nor waiting for approval)."""
    waits = pending.result is None and not pending.held and not is_waiting_for_approval(pending)
    return waits and isinstance(pending.call.disposition, CollectCall)


def list_awaited_background_runs(state: RunState) -> list[BackgroundRun]:
    """List the running background runs that a collect call waits for."""
    handles = [
        how.handle
        for one in state.calls
        if is_waiting_for_background(one) and isinstance(how := one.call.disposition, CollectCall)
    ]
    found = [find_background_run(state, handle) for handle in dict.fromkeys(handles)]
    return [row for row in found if row is not None and row.is_running]


def build_background_statuses(state: RunState) -> tuple[BackgroundStatus, ...]:
    """List the background runs as ``status`` shows them."""
    return tuple(
        BackgroundStatus(
            handle=row.handle,
            agent=row.agent,
            context_id=build_background_run_id(state, row),
            state=row.state,
            collected=row.collected,
        )
        for row in state.background
    )
