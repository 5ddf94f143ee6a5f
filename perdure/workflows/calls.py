"""The tool calls of a reply, under way: all at once, and those that a person decides on meanwhile beside them; and the
reminders of those that wait."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from .. import loop
from ..types.state import PendingCall, RunState
from . import host, steps
from .background import Children
from .work import Work


async def run_calls(state: RunState, calls: Iterable[PendingCall], work: Work, children: Children) -> None:
    """Run ``calls`` to their end, and those that are decided on by then."""
    beside = _Calls(state, work, children)
    await work.through(beside.of(calls), beside)


async def remind(state: RunState, work: Work, children: Children) -> None:
    """Tell of the calls that still wait, while those begin that are decided on."""
    await work.through([steps.remind(state, work)], _Calls(state, work, children))


class _Calls:
    """See :class:`~.work.More`."""

    def __init__(self, state: RunState, work: Work, children: Children) -> None:
        self._state = state
        self._work = work
        self._children = children
        self._flying: set[int] = set()
        """Operations of the calls that are under way."""
        self._due: float | None = None
        """When a call expires that waits for a person, as far as that is known here."""

    def of(self, calls: Iterable[PendingCall]) -> list[Coroutine[Any, Any, None]]:
        """``calls``, to be awaited."""
        return [self._run(pending) for pending in calls]

    def there(self) -> bool:
        """See base."""
        joining = loop.joining(self._state, self._flying)
        return bool(loop.due(self._state) or joining) or loop.expiry(self._state) != self._due

    def timeout(self) -> float | None:
        """See base: when a reminder is due, or the wait for a person ends."""
        self._due = loop.expiry(self._state)
        at = self._next()
        return None if at is None else max(at - host.now().timestamp(), 0.001)

    def _next(self) -> float | None:
        ends = [loop.beside(self._state), self._due]
        return min((at for at in ends if at is not None), default=None)

    def begin(self) -> list[Coroutine[Any, Any, None]]:
        """See base."""
        begun: list[Coroutine[Any, Any, None]] = []
        if self._next() is not None:
            self._work.guard.apply(self._state, "the wait for a person", lambda: loop.ask(self._state, host.now()))
        if self._state.pause is not None and self._state.pause.fault:
            return begun
        if loop.due(self._state):
            begun.append(steps.remind(self._state, self._work))
        return begun + self.of(loop.joining(self._state, self._flying))

    def _run(self, pending: PendingCall) -> Coroutine[Any, Any, None]:
        self._flying.add(pending.op)

        async def run() -> None:
            try:
                await steps.run_call(self._state, pending, self._work, self._children)
            finally:
                self._flying.discard(pending.op)

        return run()
