"""Reminders of calls that wait for somebody's approval: when one is due, and what is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..types.approval import Reminder
from ..types.state import PendingCall, RunState
from .asking import asks, expects

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
