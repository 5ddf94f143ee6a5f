"""The table of subagents in background, read: who runs, what is set aside for them, which calls wait for one."""

from __future__ import annotations

from typing import Literal

from ..types.state import BranchingStep, PendingBranch, RunState, ToolCallState
from ..types.subagents import BackgroundRun, BackgroundStatus, BranchOutcome, CollectCall
from ..types.wire import ModelOutput
from .waits import is_waiting_for_approval

# ---
# Branches of a step: its policy waits for other agents, and the step is tried again when they have answered.
#
# Nothing else of the state moves meanwhile: what the step was given it is given again, with what the branches came
# to. A
# turn that is stopped drops them with the step.


def open_branches(state: RunState, taken: int, output: ModelOutput) -> None:
    """The policy of the step that was tried waits for branches; ``taken`` messages of the inbox it was given."""
    found = state.branching or BranchingStep(taken=taken)
    first = state.op + 1
    asked = [PendingBranch(asked=one, op=first + at) for at, one in enumerate(output.branches)]
    state.branching = found.model_copy(update={"branches": [*found.branches, *asked]})
    state.op = first + len(asked)
    state.store_id = output.store_id
    state.pinned = output.pinned or state.pinned


def list_running_branches(state: RunState) -> tuple[PendingBranch, ...]:
    """The branches that have not ended."""
    found = state.branching
    return tuple(one for one in found.branches if one.outcome is None) if found is not None else ()


def list_branch_outcomes(state: RunState) -> tuple[BranchOutcome, ...]:
    """What those that have ended came to, in the order in which they were asked for."""
    found = state.branching
    return tuple(one.outcome for one in found.branches if one.outcome is not None) if found is not None else ()


def drop_branches(state: RunState) -> None:
    """The step is recorded, or will not be tried again."""
    state.branching = None


def list_active_background_runs(state: RunState) -> list[BackgroundRun]:
    """Those that have not ended, as far as is known."""
    return [row for row in state.background if row.is_running]


def find_background_run(state: RunState, handle: str) -> BackgroundRun | None:
    """The one that the model calls so."""
    return next((row for row in state.background if row.handle == handle.strip()), None)


def build_background_run_id(state: RunState, row: BackgroundRun) -> str:
    """Id of its run."""
    return f"{state.context_id}/{row.op}"


def sum_reserved_budget(state: RunState, name: Literal["tokens", "cost_usd", "tool_calls"]) -> float:
    """How much of a budget is: it counts as used until they have ended."""
    total: float = 0
    for row in list_active_background_runs(state):
        total += getattr(row.limits, name, None) or 0
    return total


def is_waiting_for_background(pending: ToolCallState) -> bool:
    """Whether the call waits for a subagent in background, or is to be told of one."""
    waits = pending.result is None and not pending.held and not is_waiting_for_approval(pending)
    return waits and isinstance(pending.call.disposition, CollectCall)


def list_awaited_background_runs(state: RunState) -> list[BackgroundRun]:
    """Those that a call waits for."""
    handles = [
        how.handle
        for one in state.calls
        if is_waiting_for_background(one) and isinstance(how := one.call.disposition, CollectCall)
    ]
    found = [find_background_run(state, handle) for handle in dict.fromkeys(handles)]
    return [row for row in found if row is not None and row.is_running]


def build_background_statuses(state: RunState) -> tuple[BackgroundStatus, ...]:
    """As ``status`` shows them."""
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
