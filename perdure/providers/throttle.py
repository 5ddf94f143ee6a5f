"""How fast this worker calls a provider: so many calls at once, and so many a minute, first come, first served."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from ..types.limits import RateLimit

MINUTE = 60.0


class Throttle:
    """The calls of one provider. ``async with throttle.turn():`` is one call; entering it waits for its turn.

    Of one event loop. Whoever is first in line holds the door while it waits for a place and for the minute to pass, so
    nobody overtakes; a waiter that is cancelled leaves the line and takes nothing with it.
    """

    def __init__(self, name: str, limit: RateLimit, *, minute: float = MINUTE) -> None:
        self._limit_of = f"calls of {name!r} by this worker (provider_limits)"
        self._limit = limit
        self._minute = minute
        self._door = asyncio.Lock()
        self._places = asyncio.Semaphore(limit.concurrent) if limit.concurrent is not None else None
        self._begun: deque[float] = deque(maxlen=limit.per_minute or 0)
        """When the last calls began, as many as may begin within a minute."""

    @asynccontextmanager
    async def turn(self, waiting: Callable[[str], None]) -> AsyncIterator[None]:
        """One call. ``waiting`` is told why it waits, and "" when it no longer does."""
        async with AsyncExitStack() as held:
            why = self._why() or (f"{self._limit_of}: other calls come first" if self._door.locked() else "")
            if why:
                waiting(why)
            try:
                async with self._door:
                    if now := self._why():
                        waiting(why := now)
                    if self._places is not None:
                        await held.enter_async_context(self._places)
                    await asyncio.sleep(max(0.0, self._left()))
                    self._begun.append(time.monotonic())
            finally:
                if why:
                    waiting("")
            yield

    def _left(self) -> float:
        """Seconds until another call may begin."""
        if self._limit.per_minute is None or len(self._begun) < self._limit.per_minute:
            return 0.0
        return self._begun[0] + self._minute - time.monotonic()

    def _why(self) -> str:
        """What the first in line has to wait for; "" for nothing."""
        if self._places is not None and self._places.locked():
            return f"{self._limit_of}: {self._limit.concurrent} at once"
        if self._left() > 0:
            return f"{self._limit_of}: {self._limit.per_minute} a minute"
        return ""
