"""Branches of a step: its policy waits for other agents, and the step is tried again when they have answered.

Nothing else of the state moves meanwhile: what the step was given it is given again, with what the branches came to. A
turn that is stopped drops them with the step.
"""

from __future__ import annotations

from ..types.branch import BranchOutcome
from ..types.state import Branching, PendingBranch, RunState
from ..types.wire import ModelOutput


def open_branches(state: RunState, taken: int, output: ModelOutput) -> None:
    """The policy of the step that was tried waits for branches; ``taken`` messages of the inbox it was given."""
    found = state.branching or Branching(taken=taken)
    first = state.op + 1
    asked = [PendingBranch(asked=one, op=first + at) for at, one in enumerate(output.branches)]
    state.branching = found.model_copy(update={"branches": [*found.branches, *asked]})
    state.op = first + len(asked)
    state.store_id = output.store_id
    state.pinned = output.pinned or state.pinned


def waiting(state: RunState) -> tuple[PendingBranch, ...]:
    """The branches that have not ended."""
    found = state.branching
    return tuple(one for one in found.branches if one.outcome is None) if found is not None else ()


def outcomes(state: RunState) -> tuple[BranchOutcome, ...]:
    """What those that have ended came to, in the order in which they were asked for."""
    found = state.branching
    return tuple(one.outcome for one in found.branches if one.outcome is not None) if found is not None else ()


def drop_branches(state: RunState) -> None:
    """The step is recorded, or will not be tried again."""
    state.branching = None
