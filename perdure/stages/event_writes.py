"""Writes events while calls run: of all calls of a worker together, at a bounded rate, without delaying a call."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from ..errors import StoreError
from ..ports import EventBatch, EventLog

logger = logging.getLogger("perdure.worker")

WRITE_RETRY_DELAY = 1.0
"""Seconds until a write that failed is retried."""
LAST_WRITE_TIMEOUT = 1.0
"""Seconds that a failed call waits for its last events to be written."""
DELTA_INTERVAL = 0.02
"""Seconds from the first delta of a reply to its write, and from one write of a worker to the next at least."""
BATCH_INTERVAL = 0.00015
"""Seconds that each batch of a write adds to that: of many streams, each is written less often."""

_pending_writes: set[asyncio.Future[Any]] = set()
"""Writes in progress. Holds references: an event loop may drop a task that nothing else references."""


class BatchWriter:
    """Writes the batches that ``take`` returns, one at a time; None means nothing to write. A failed batch is retried
    unchanged."""

    def __init__(self, group: WriteGroup, take: Callable[[], EventBatch | None], interval: float = 0.0) -> None:
        """``interval``: seconds from the end of one write to the next, besides those between writes of the group."""
        self._group = group
        self._take_batch = take
        self._interval = interval
        self._write: asyncio.Future[Any] | None = None
        self._is_wanted = False
        self._stopped = False
        self.due_at = math.inf
        """When a write is to start, by the clock of the event loop."""
        self.unwritten_batch: EventBatch | None = None
        """The batch that was taken and is not known to be written."""
        self.is_superseded = False
        """Whether the store reported that another attempt has taken over."""

    def schedule_write(self, delay: float) -> None:
        """Start a write in at most ``delay`` seconds; while a write is in progress, after its interval."""
        self._is_wanted = True
        if self._stopped or self._write is not None:
            return
        due = asyncio.get_running_loop().time() + delay
        if due < self.due_at:
            self.due_at = due
            self._group.schedule_write(self)

    def stop(self) -> None:
        """Start no more writes."""
        self._stopped = True
        self._group.drop_writer(self)

    async def wait_for_write(self) -> None:
        """Wait for the write in progress, ``LAST_WRITE_TIMEOUT`` seconds at most."""
        if self._write is not None:
            await asyncio.wait([self._write], timeout=LAST_WRITE_TIMEOUT)

    def take_batch(self) -> EventBatch | None:
        """Return the batch that is to be written now."""
        self.due_at = math.inf
        if self.unwritten_batch is None:
            self._is_wanted = False
            self.unwritten_batch = self._take_batch()
        return self.unwritten_batch

    def start_write(self, write: asyncio.Future[Any]) -> None:
        """Note that ``write`` writes the batch."""
        self._write = write

    def finish_write(self, written: bool | BaseException) -> None:
        """Note the outcome of the write."""
        self._write = None
        if isinstance(written, StoreError):
            self.schedule_write(WRITE_RETRY_DELAY)
        elif isinstance(written, BaseException):
            self.stop()
        else:
            self.unwritten_batch = None
            self.is_superseded = not written
            if self.is_superseded:
                self.stop()
            elif self._is_wanted:
                self.schedule_write(self._interval)


class WriteGroup:
    """Starts the writes of a worker's calls, those that are due at once: one timer, one task and one hand-over to the
    store for all of them. A stream of many pieces so costs no timer and no task of its own."""

    def __init__(self, store: EventLog) -> None:
        self._store = store
        self._scheduled: dict[BatchWriter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._starts_at = math.inf
        self._next_start = -math.inf

    def schedule_write(self, writer: BatchWriter) -> None:
        """Start the write of ``writer`` at ``writer.due_at``, or as soon as the group may write again."""
        self._scheduled[writer] = None
        self._set_timer(writer.due_at)

    def drop_writer(self, writer: BatchWriter) -> None:
        """Start no write of ``writer``."""
        self._scheduled.pop(writer, None)

    def _set_timer(self, due: float) -> None:
        starts_at = max(due, self._next_start)
        if starts_at >= self._starts_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._starts_at = starts_at
        self._timer = asyncio.get_running_loop().call_at(starts_at, self._start_writes)

    def _start_writes(self) -> None:
        loop = asyncio.get_running_loop()
        now = max(self._starts_at, loop.time())
        soon = now + DELTA_INTERVAL / 2
        self._timer, self._starts_at = None, math.inf
        batches: dict[BatchWriter, EventBatch] = {}
        for writer in [writer for writer in self._scheduled if writer.due_at <= soon]:
            del self._scheduled[writer]
            try:
                batch = writer.take_batch()
            except Exception:  # a fault in the engine: the other calls go on
                logger.exception("events of a call are not written any more")
                writer.stop()
                continue
            if batch is not None:
                batches[writer] = batch
        if batches:
            self._next_start = now + DELTA_INTERVAL + len(batches) * BATCH_INTERVAL
            write = start_batch_write(self._write_all(batches))
            for writer in batches:
                writer.start_write(write)
        if self._scheduled:
            self._set_timer(min(writer.due_at for writer in self._scheduled))

    async def _write_all(self, batches: Mapping[BatchWriter, EventBatch]) -> None:
        results: Sequence[bool | BaseException]
        try:
            if len(batches) == 1:
                results = [await self._store.append(*batches.values())]
            else:
                results = await self._store.append_all([*batches.values()])
        except BaseException as error:
            results = [error] * len(batches)
            raise
        finally:
            for writer, written in zip(batches, results, strict=True):
                writer.finish_write(written)
        for written in results:
            if isinstance(written, BaseException):
                log_write_failure(written)


def start_batch_write(write: Coroutine[Any, Any, object]) -> asyncio.Future[Any]:
    """Start ``write``, also if the caller does not wait for it. A failure is only logged."""
    writing = asyncio.ensure_future(write)
    _pending_writes.add(writing)
    writing.add_done_callback(_finish_batch_write)
    return writing


def _finish_batch_write(writing: asyncio.Future[Any]) -> None:
    _pending_writes.discard(writing)
    if not writing.cancelled() and (error := writing.exception()) is not None:
        log_write_failure(error)


def log_write_failure(error: BaseException) -> None:
    """Log that events could not be written. An error other than ``StoreError`` is a fault in the engine."""
    level = logging.DEBUG if isinstance(error, StoreError) else logging.WARNING
    logger.log(level, "events could not be written: %s: %s", type(error).__name__, error)


async def write_last_batch(store: EventLog, batch: EventBatch) -> None:
    """Write ``batch`` for a call that has failed. Waits ``LAST_WRITE_TIMEOUT`` seconds at most; raises nothing."""
    if batch.events:
        await asyncio.wait([start_batch_write(store.append(batch))], timeout=LAST_WRITE_TIMEOUT)
