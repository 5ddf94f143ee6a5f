"""Which calls wait for a person, and for how long."""

from __future__ import annotations

from ..types.approval import Decided
from ..types.question import AsCallback
from ..types.state import PendingCall, RunState
from .elsewhere import due_before


def asks(pending: PendingCall) -> bool:
    """Whether the call waits for a person to approve it."""
    return pending.call.approval is not None and pending.decided is None and pending.result is None


def expects(pending: PendingCall) -> bool:
    """Whether it waits for an answer: to its tool's question, or in the place of its result."""
    if pending.result is not None or pending.held or asks(pending):
        return False
    if isinstance(pending.call.disposition, AsCallback):
        return pending.returned is None and not due_before(pending)
    return pending.question is not None


def let_go(pending: PendingCall) -> Decided | None:
    """Who has let a client run the call: its result tells so, where no activity before it has."""
    callback = isinstance(pending.call.disposition, AsCallback)
    return pending.decided if callback and pending.cleared is None else None


def waits(pending: PendingCall) -> bool:
    """Whether it waits for a person."""
    return asks(pending) or expects(pending)


def deadline(state: RunState) -> float | None:
    """When the next wait ends by itself, or the next reminder is due: seconds since 1970."""
    waits = [one.waiting for one in state.calls if asks(one)] + [one.expects for one in state.calls if expects(one)]
    ends = [at for wait in waits if wait is not None for at in (wait.until, wait.next) if at is not None]
    return min(ends, default=None)


def askers(state: RunState) -> list[str]:
    """``name_hash`` of who asked for what the run does now: who wrote to it in this turn, and to the runs above it."""
    above = state.parent.asked_by if state.parent else ()
    return list(dict.fromkeys([*above, *(state.turn.said_by if state.turn else ())]))
