"""The feeds that write a call's events to the store while it runs.

The feed of a model call:

    start_model, emit ──► parts in order ──► every 20 ms: adjacent deltas as one ──► the store
                               └── queued at the end: deltas are dropped, the rest is written with the outcome

A reply that is complete before the first write adds no write. All calls of a worker write at the same moments, so that
what they write shares a transaction.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

from ..errors import StoreError
from ..ports.model import Completed, Restarted, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..ports.store import EventBatch, EventLog, NewEvent, build_batch_token
from ..ports.times import timestamp
from ..types.events import ErrorEvent, ModelDelta, ToolProgress, encode_event_body
from ..types.interface import FINISH_TOOL
from ..types.messages import INLINE_BYTES, clean_text
from .call import CompactCall, ModelCall, StepCall, ToolCall
from .event_builders import build_event_fields, build_model_retracted, build_model_started

# ---
# Event batches of a call.


def build_event_batch(
    call: StepCall | ToolCall, events: Sequence[NewEvent], token: str = "", *, advances: bool = False
) -> EventBatch:
    """Build a batch for the conversation of ``call``. See ``EventBatch`` for ``token`` and ``advances``."""
    task = call.input
    lineage = task.lineage if task.is_child else None
    scheduled = "" if token or not call.asked_at else build_batch_token(call.asked_at)
    labels = {"tenant": task.tenant, "user": task.user}
    return EventBatch(task.context_id, events, token, advances, lineage, task.agent, scheduled, **labels)


# ---
# Writes events while a call runs: one batch at a time, at a bounded rate, without delaying the call.


logger = logging.getLogger("perdure.worker")

WRITE_RETRY_DELAY = 1.0
"""Seconds until a write that failed is retried."""
LAST_WRITE_TIMEOUT = 1.0
"""Seconds that a failed call waits for its last events to be written."""

_pending_writes: set[asyncio.Future[bool]] = set()
"""Writes in progress. Holds references: an event loop may drop a task that nothing else references."""


class WriteClock:
    """When the calls of a worker write: those that are due at one time are called in one round of the event loop.

    Timers of their own ring up to a millisecond apart, and each of these writes would be a transaction.
    """

    def __init__(self) -> None:
        self._due = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, list[BatchWriter]]]()
        self.replies = WeakSet[ModelEventFeed]()
        """Those of which something was streamed, and that are not complete."""

    def add_writer(self, writer: BatchWriter, due: float) -> None:
        """Call ``writer.start_due_write`` at ``due``, a time of the running loop."""
        loop = asyncio.get_running_loop()
        all_due = self._due.setdefault(loop, {})
        if due not in all_due:
            all_due[due] = []
            loop.call_at(due, self._call_writers, loop, due)
        all_due[due].append(writer)

    def get_delta_interval(self) -> float:
        """Return the present seconds between two writes of a reply."""
        return DELTA_INTERVAL if len(self.replies) <= MANY_REPLIES else BUSY_DELTA_INTERVAL

    def _call_writers(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        for writer in self._due[loop].pop(due):
            loop.call_soon(writer.start_due_write, due)  # what one of them raises is not the others'


class BatchWriter:
    """Writes the batches that ``take`` returns; None means nothing to write. A failed batch is retried unchanged."""

    def __init__(
        self,
        store: EventLog,
        take: Callable[[], EventBatch | None],
        clock: WriteClock,
        get_interval: Callable[[], float],
    ) -> None:
        """``get_interval``: the present interval in seconds. Writes start at its multiples on the loop's clock."""
        self._store = store
        self._clock = clock
        self._take_batch = take
        self._get_interval = get_interval
        self._due: float | None = None
        self._delay = 0.0
        """What ``_due`` was set with."""
        self._write_future: asyncio.Future[bool] | None = None
        self._stopped = False
        self.unwritten_batch: EventBatch | None = None
        """The batch that was taken and is not known to be written."""
        self.is_superseded = False
        """Whether the store reported that another attempt has taken over."""

    def schedule_write(self, delay: float = 0.0) -> None:
        """Start a write at the first multiple of the interval that is ``delay`` seconds from now, or later; while a
        write is in progress, at the first one after it."""
        if self._stopped or self._write_future is not None:
            return
        is_retry = self.unwritten_batch is not None
        if self._due is not None and (is_retry or self._delay <= delay):
            return  # it was set earlier, and is due earlier; and a store that fails is not asked with each piece
        loop, interval = asyncio.get_running_loop(), self._get_interval()
        self._due, self._delay = math.ceil((loop.time() + delay) / interval) * interval, delay
        self._clock.add_writer(self, self._due)

    def stop(self) -> None:
        """Start no more writes."""
        self._stopped = True

    async def wait_for_write(self) -> None:
        """Wait for the write in progress, ``LAST_WRITE_TIMEOUT`` seconds at most."""
        if self._write_future is not None:
            await asyncio.wait([self._write_future], timeout=LAST_WRITE_TIMEOUT)

    def start_due_write(self, due: float) -> None:
        """Start the write that is due then, unless it was put at another time."""
        if self._due != due:
            return
        self._due = None
        batch = None if self._stopped else self.unwritten_batch or self._take_batch()
        if batch is None:
            return
        self.unwritten_batch = batch
        self._write_future = start_batch_write(self._store, batch)
        self._write_future.add_done_callback(self._finish_write)

    def _finish_write(self, writing: asyncio.Future[bool]) -> None:
        self._write_future = None
        delay = 0.0
        if writing.cancelled():
            self.stop()
        elif error := writing.exception():
            delay = WRITE_RETRY_DELAY
            if not isinstance(error, StoreError):
                self.stop()
        else:
            self.unwritten_batch = None
            if not writing.result():
                self.is_superseded = True
                self.stop()
        self.schedule_write(delay)


def start_batch_write(store: EventLog, batch: EventBatch) -> asyncio.Future[bool]:
    """Start writing ``batch``, also if the caller does not wait for it. A failure is only logged."""
    writing = asyncio.ensure_future(store.append(batch))
    _pending_writes.add(writing)
    writing.add_done_callback(_finish_batch_write)
    return writing


def _finish_batch_write(writing: asyncio.Future[bool]) -> None:
    _pending_writes.discard(writing)
    if not writing.cancelled() and (error := writing.exception()) is not None:
        # An error other than StoreError is a fault in the engine, so it is logged as a warning.
        level = logging.DEBUG if isinstance(error, StoreError) else logging.WARNING
        logger.log(level, "events could not be written: %s: %s", type(error).__name__, error)


async def write_last_batch(store: EventLog, batch: EventBatch) -> None:
    """Write ``batch`` for a call that has failed. Waits ``LAST_WRITE_TIMEOUT`` seconds at most; raises nothing."""
    if batch.events:
        await asyncio.wait([start_batch_write(store, batch)], timeout=LAST_WRITE_TIMEOUT)


DELTA_INTERVAL, BUSY_DELTA_INTERVAL = 0.02, 0.04
"""Seconds between two writes of a reply, and at least from its first delta to its first write: while a worker streams
few replies, and while it streams more than ``MANY_REPLIES``."""
MANY_REPLIES = 32
FIRST_WRITE_DELAY = 0.1
"""Seconds until the start of a call is written if nothing was streamed by then."""
MAX_QUEUED_CHARS = 1024 * 1024
"""Maximum of characters that wait for the store. Past it, no more deltas of the reply are written."""
QUEUED_DELTA_CHARS = 100
"""Counted for each delta that waits, beside its text: a model may send any number of empty ones."""

DeltaKind = Literal["text", "thinking", "tool_call"]


@dataclass(slots=True)
class _QueuedDelta:
    """Adjacent deltas of one text, one thinking part or one call's arguments."""

    kind: DeltaKind
    index: int
    at: str
    texts: list[str] = field(default_factory=list)


class ModelEventFeed:
    """Events of one attempt. Call all methods on the worker's event loop; only ``wait_for_write`` waits."""

    def __init__(
        self,
        store: EventLog,
        call: ModelCall | CompactCall,
        clock: WriteClock,
        *,
        stream: bool = True,
        answer_field: str | None = None,
    ) -> None:
        """Without ``stream`` nothing is written before the outcome, and no deltas at all.

        ``answer_field``: the argument of the finish tool that the answer is wrapped in, if any (``OutputType.inside``).
        """
        self._call = call
        self._delta_fields = {name: value for name, value in build_event_fields(call).items() if name != "at"}
        self._answer_field = answer_field
        self._writes_deltas = stream
        self._queue: list[NewEvent | _QueuedDelta] = [*call.recording.pending_events]
        call.recording.pending_events.clear()
        self._queued_chars = 0
        self._offsets: dict[tuple[DeltaKind, int], int] = {}
        self._tool_calls: dict[int, tuple[str, str]] = {}
        self._models_started = 0
        self.has_streamed = False
        """Whether deltas may have been written."""
        self._clock = clock
        self._writer = BatchWriter(store, self._take_batch, clock, clock.get_delta_interval)
        if stream:
            self._writer.schedule_write(FIRST_WRITE_DELAY)

    def start_model(self, model: str) -> None:
        """Record that ``model`` is called now."""
        self._call.recording.model = model
        self._queue.append(build_model_started(self._call, model, self._models_started))
        self._models_started += 1

    def add_events(self, events: Sequence[NewEvent]) -> None:
        """Queue ``events``."""
        self._queue += events

    def emit(self, event: StreamEvent) -> None:
        """Queue an event that the model has streamed."""
        match event:
            case TextDelta():
                self._add_delta("text", 0, event.text)
            case ThinkingDelta():
                self._add_delta("thinking", 0, event.text)
            case ToolCallDelta():
                known = self._tool_calls.get(event.index, ("", ""))
                self._tool_calls[event.index] = event.id or known[0], event.name or known[1]
                self._add_delta("tool_call", event.index, event.arguments)
            case Restarted():
                self._handle_restart(event)
            case Completed():
                pass

    def stop(self) -> list[NewEvent]:
        """Stop writing. Return the events that are not known to be written, without deltas."""
        self._writer.stop()
        self._clock.replies.discard(self)
        batch = self._writer.unwritten_batch
        events = [new for new in batch.events if not isinstance(new.event, ModelDelta)] if batch else []
        events += [queued for queued in self._queue if isinstance(queued, NewEvent)]
        self._queue = []
        return events

    async def wait_for_write(self) -> None:
        """Wait for a write started before ``stop``, ``LAST_WRITE_TIMEOUT`` seconds at most."""
        await self._writer.wait_for_write()

    def _add_delta(self, kind: DeltaKind, index: int, text: str) -> None:
        if not self._writes_deltas or self._writer.is_superseded:
            return
        last = self._queue[-1] if self._queue else None
        if not (isinstance(last, _QueuedDelta) and last.kind == kind and last.index == index):
            last = _QueuedDelta(kind, index, timestamp(datetime.now(UTC)))
            self._queue.append(last)
            self._queued_chars += QUEUED_DELTA_CHARS
        last.texts.append(text)
        self._queued_chars += len(text)
        if self._queued_chars > MAX_QUEUED_CHARS:
            self._writes_deltas = False
            self._drop_deltas()
            return
        self._writer.schedule_write(0.0 if self.has_streamed else DELTA_INTERVAL)

    def _handle_restart(self, event: Restarted) -> None:
        """Start the next model of a chain; what the one before has streamed does not count."""
        self._drop_deltas()
        self._offsets.clear()
        self._tool_calls.clear()
        fields = build_event_fields(self._call)
        failed = ErrorEvent(
            **fields, activity=self._call.input.activity, error_type=event.error_type, error=event.error,
            source=self._call.recording.model, status=event.status, fallback=event.model,
        )  # fmt: skip
        self._queue.append(NewEvent(failed, key=f"failed/{self._call.owner}/{self._models_started}"))
        # Dropped by the store where nothing was streamed.
        retracted = build_model_retracted(self._call, event.error_type)
        self._queue.append(replace(retracted, key=f"undone/{self._call.owner}/{self._models_started}"))
        self.start_model(event.model)
        if self._writes_deltas:
            self._writer.schedule_write(DELTA_INTERVAL)

    def _drop_deltas(self) -> None:
        self._queue = [queued for queued in self._queue if isinstance(queued, NewEvent)]
        self._queued_chars = 0

    def _take_batch(self) -> EventBatch | None:
        if not self._queue:
            return None
        events = [queued if isinstance(queued, NewEvent) else self._build_delta(queued) for queued in self._queue]
        self._queue, self._queued_chars = [], 0
        return build_event_batch(
            self._call, events, build_batch_token(self._call.asked_at, self._call.attempt), advances=True
        )

    def _build_delta(self, delta: _QueuedDelta) -> NewEvent:
        self.has_streamed = True
        self._clock.replies.add(self)
        text = clean_text("".join(delta.texts))
        place = delta.kind, delta.index
        offset = self._offsets.get(place, 0)
        self._offsets[place] = offset + len(text)
        call_id, name = self._tool_calls[delta.index] if delta.kind == "tool_call" else ("", "")
        event = ModelDelta(
            **self._delta_fields,
            at=delta.at,
            iteration=self._call.input.iteration,
            kind=delta.kind,
            text=text,
            offset=offset,
            index=delta.index,
            call_id=call_id,
            name=name,
            inside=self._answer_field if name == FINISH_TOOL else None,
        )
        return NewEvent(event)


# ---
# Progress that a tool reports while it runs: from any thread, at any rate; only the latest report is written.


PROGRESS_INTERVAL = 0.1
"""Seconds between two writes, and until the first: a tool that ends before it causes no write."""


class ProgressFeed:
    """Progress of one call. Create and stop it on the worker's event loop."""

    def __init__(self, store: EventLog, call: ToolCall, clock: WriteClock) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._latest_event: NewEvent | None = None
        self._stopped = False
        self._writer = BatchWriter(store, self._take_batch, clock, lambda: PROGRESS_INTERVAL)

    def report_progress(self, message: str, data: Any) -> None:
        """Report progress from any thread. ``data`` is plain JSON. A report after the end of the call is dropped.

        Raises ``ValueError`` for a report that cannot be stored: here, where the author's code sees it, because
        later it would prevent the outcome from being recorded.
        """
        task = self._call.input
        event = ToolProgress(
            **build_event_fields(self._call), call_id=task.call_id, name=task.name, message=message, data=data
        )
        if (size := len(encode_event_body(event))) > INLINE_BYTES:
            raise ValueError(f"progress: it has {size:,} bytes as JSON and may have {INLINE_BYTES:,}")
        with self._lock:
            if self._stopped:
                return
            waits, self._latest_event = self._latest_event is not None, NewEvent(event)
            if not waits:  # else the write that is scheduled already takes this one
                self._loop.call_soon_threadsafe(self._writer.schedule_write, PROGRESS_INTERVAL)

    def stop(self) -> list[NewEvent]:
        """Stop writing. Return the last report, if it is not written."""
        with self._lock:
            self._stopped = True
            latest, self._latest_event = self._latest_event, None
        self._writer.stop()
        return [latest] if latest else []

    def _take_batch(self) -> EventBatch | None:
        with self._lock:
            latest, self._latest_event = self._latest_event, None
        if latest is None:
            return None
        # The same token for all attempts: a late report of a tool whose result the model already has is dropped.
        return build_event_batch(self._call, [latest], build_batch_token(self._call.asked_at))
