"""Writes events beside a call that goes on: one batch at a time, no more often than is asked, and never in its way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..errors import StoreError
from ..ports import Batch, Events

logger = logging.getLogger("perdure.worker")

AGAIN = 1.0
"""Seconds until a store that failed is asked again."""
PATIENCE = 1.0
"""Seconds that a call which has failed waits for its last events; what is not there by then is not needed."""

_under_way: set[asyncio.Future[bool]] = set()
"""Writes that nobody may wait for any more; an event loop forgets tasks that nobody holds."""


class Writer:
    """Writes what ``take`` gives when it is time; None is nothing. A batch that failed is written again as it was."""

    def __init__(self, store: Events, take: Callable[[], Batch | None], interval: float) -> None:
        """``interval``: seconds from the end of one write to the next."""
        self._store = store
        self._take = take
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._writing: asyncio.Future[bool] | None = None
        self._stopped = False
        self.unwritten: Batch | None = None
        """What was taken and is not known to be written."""
        self.late = False
        """The store says that another attempt has taken over."""

    def within(self, delay: float) -> None:
        """Write in ``delay`` seconds at the latest, or as soon after that as it may be."""
        if self._stopped or self._writing is not None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._timer, self._due = loop.call_at(due, self._write), due

    def stop(self) -> None:
        """Begin no more writes."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def settled(self) -> None:
        """Until what is being written is written, for a while at most."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=PATIENCE)

    def _write(self) -> None:
        self._timer = None
        batch = self.unwritten or self._take()
        if batch is None or self._stopped:
            return
        self.unwritten = batch
        self._writing = start(self._store, batch)
        self._writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[bool]) -> None:
        self._writing = None
        delay = self._interval
        if writing.cancelled():
            self.stop()
        elif error := writing.exception():
            delay = AGAIN
            if not isinstance(error, StoreError):
                self.stop()
        else:
            self.unwritten = None
            if not writing.result():
                self.late = True
                self.stop()
        self.within(delay)


def start(store: Events, batch: Batch) -> asyncio.Future[bool]:
    """Write ``batch`` whoever waits for it. That it failed is no fault of the call: a line in the log."""
    writing = asyncio.ensure_future(store.append(batch))
    _under_way.add(writing)
    writing.add_done_callback(_over)
    return writing


def _over(writing: asyncio.Future[bool]) -> None:
    _under_way.discard(writing)
    if not writing.cancelled() and (error := writing.exception()) is not None:
        # What is not a failure of the store is a fault in the engine, and somebody should hear of it.
        level = logging.DEBUG if isinstance(error, StoreError) else logging.WARNING
        logger.log(level, "events could not be written: %s: %s", type(error).__name__, error)


async def say(store: Events, batch: Batch) -> None:
    """Write ``batch`` for a call that has failed. Waits for a while at most, and raises nothing."""
    if batch.events:
        await asyncio.wait([start(store, batch)], timeout=PATIENCE)
