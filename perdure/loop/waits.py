"""Reminders of calls that wait for somebody's approval: when one is due, and what is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..types.approvals import Decided, Reminder
from ..types.state import PendingCall, RunState
from ..types.tool_calls import AsCallback
from .external_calls import due_before

# ---
# Which calls wait for a person, and for how long.


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


def waits_for_person(pending: PendingCall) -> bool:
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


_SAME = 1e-6
"""Of an interval: so much of it is the error of a float, and no time."""


@dataclass(frozen=True, slots=True)
class Reminding:
    """Reminders that are told together, under an operation of their own."""

    op: int
    calls: tuple[PendingCall, ...]
    reminders: tuple[Reminder, ...]

    def wanted(self) -> bool:
        """Whether one of the calls still waits."""
        return any(map(asks, self.calls))


def look(pending: PendingCall, now: datetime) -> None:
    """Note it where a reminder of the call is due: one, however long nobody could look."""
    terms, waiting = pending.call.approval, pending.waiting
    if terms is None or terms.remind is None or waiting is None or waiting.next is None:
        return
    at = now.timestamp()
    if waiting.next > at:
        return
    since = datetime.fromisoformat(waiting.since).timestamp()
    passed = int((at - since) / terms.remind + _SAME)
    pending.waiting = waiting.model_copy(update={"due": True, "next": since + (passed + 1) * terms.remind})


def due(state: RunState) -> tuple[PendingCall, ...]:
    """The calls of which somebody is to be reminded now."""
    return tuple(one for one in state.calls if asks(one) and one.waiting is not None and one.waiting.due)


def remind(state: RunState, now: datetime) -> Reminding:
    """What is told now; it counts as told."""
    calls, reminders = due(state), []
    for pending in calls:
        waiting = pending.waiting
        assert waiting is not None, "it is due"
        number = waiting.reminded + 1
        pending.waiting = waiting.model_copy(update={"due": False, "reminded": number})
        left = None if waiting.until is None else max(0.0, round(waiting.until - now.timestamp(), 3))
        reminders.append(Reminder(call_id=pending.call.id, name=pending.call.name, number=number, expires_in=left))
    op, state.op = state.op, state.op + 1
    return Reminding(op, calls, tuple(reminders))


def beside(state: RunState) -> float | None:
    """When it is to be looked while other calls run: seconds since 1970. None where no call has reminders."""
    waits = [one.waiting for one in state.calls if asks(one) and one.waiting and one.waiting.next is not None]
    return min((at for one in waits for at in (one.until, one.next) if at is not None), default=None)


def expiry(state: RunState) -> float | None:
    """When the next call's wait for a person ends by itself: seconds since 1970."""
    waits = [one.waiting for one in state.calls if asks(one)] + [one.expects for one in state.calls if expects(one)]
    return min((wait.until for wait in waits if wait is not None and wait.until is not None), default=None)
