"""The table of subagents in background, read: who runs, what is set aside for them, which calls wait for one."""

from __future__ import annotations

from typing import Literal

from ..types.background import AsCollect, BackgroundRun, BackgroundStatus
from ..types.state import PendingCall, RunState
from .asking import asks


def running(state: RunState) -> list[BackgroundRun]:
    """Those that have not ended, as far as is known."""
    return [row for row in state.background if row.runs]


def row_of(state: RunState, handle: str) -> BackgroundRun | None:
    """The one that the model calls so."""
    return next((row for row in state.background if row.handle == handle.strip()), None)


def run_id(state: RunState, row: BackgroundRun) -> str:
    """Id of its run."""
    return f"{state.context_id}/{row.op}"


def set_aside(state: RunState, name: Literal["tokens", "cost_usd", "tool_calls"]) -> float:
    """How much of a budget is: it counts as used until they have ended."""
    total: float = 0
    for row in running(state):
        total += getattr(row.limits, name, None) or 0
    return total


def collects(pending: PendingCall) -> bool:
    """Whether the call waits for a subagent in background, or is to be told of one."""
    waits = pending.result is None and not pending.held and not asks(pending)
    return waits and isinstance(pending.call.disposition, AsCollect)


def awaited(state: RunState) -> list[BackgroundRun]:
    """Those that a call waits for."""
    handles = [
        how.handle for one in state.calls if collects(one) and isinstance(how := one.call.disposition, AsCollect)
    ]
    found = [row_of(state, handle) for handle in dict.fromkeys(handles)]
    return [row for row in found if row is not None and row.runs]


def shown(state: RunState) -> tuple[BackgroundStatus, ...]:
    """As ``status`` shows them."""
    return tuple(
        BackgroundStatus(
            handle=row.handle,
            agent=row.agent,
            context_id=run_id(state, row),
            state=row.state,
            collected=row.collected,
        )
        for row in state.background
    )
