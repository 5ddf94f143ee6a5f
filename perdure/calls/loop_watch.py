"""A thread that watches a process's event loop, and a bound for calls that block it again and again.

A loop that stands still sends no heartbeats: Temporal takes the worker for lost and gives the call to the next one,
which it blocks, too. So a call that has blocked the loop of its worker for longer than its heartbeat timeout, seen by
this thread, is recorded under the run in the store, by a connection of the thread's own, as the loop may never run
again. The attempt after ``MAX_BLOCKS`` of them fails.

Only what was seen counts. A worker that was killed, stopped or suspended, or whose machine stood still, has seen
nothing: a block is as long as this thread itself could run beside it, or as the CPU time that was used meanwhile (a
regular expression lets no other thread run).
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ..errors import LoopBlockedError
from ..ports.store import Commit, EventBatch, Journal, Outcome, Store
from ..ports.times import format_utc_now
from ..types.subagents import Lineage

logger = logging.getLogger("perdure.event_loop")

TICK_SECONDS = 0.05
"""How often the thread looks while it waits for the loop."""
PROBE_SECONDS = 0.1
"""Time between two probes."""
BLOCK_SECONDS = 0.25
"""Length of a block that is logged and counted."""
MAX_BLOCKS = 2
"""Blocks beyond the heartbeat timeout after which a call fails."""
_ATTEMPTS = 64
"""The last attempts of a call whose blocks are looked for."""
_UNKNOWN = "an unknown function"
_STACK_FRAMES, _STACK_CHARS = 12, 4_000


@dataclass(frozen=True, slots=True)
class WatchedCall:
    """An attempt of an activity."""

    context_id: str
    lineage: Lineage | None
    name: str
    """For messages, for instance ``the model call of agent support``."""
    workflow_run_id: str
    activity_id: str
    attempt: int
    heartbeat_seconds: float

    def build_key(self, attempt: int) -> str:
        """Return the journal key of a block in that attempt."""
        return f"block/{self.workflow_run_id}/{self.activity_id}/{attempt}"


@dataclass(frozen=True, slots=True)
class LoopBlock:
    """A block of the loop."""

    at: str
    seconds: float
    function: str
    stack: str


current_call: contextvars.ContextVar[WatchedCall | None] = contextvars.ContextVar("perdure_watched_call", default=None)


author_function: contextvars.ContextVar[str | None] = contextvars.ContextVar("perdure_author", default=None)
"""Name of the author's function that runs, for messages."""


async def check_blocks(journal: Journal, call: WatchedCall) -> None:
    """Raise ``LoopBlockedError`` if earlier attempts of the call have blocked the loop ``MAX_BLOCKS`` times."""
    if call.attempt <= MAX_BLOCKS:
        return
    first = max(call.attempt - _ATTEMPTS, 1)
    found = await journal.find_outcomes([call.build_key(attempt) for attempt in range(first, call.attempt)])
    if len(found) >= MAX_BLOCKS:
        block = json.loads(found[max(found, key=lambda key: int(key.rpartition("/")[2]))])
        raise LoopBlockedError(
            f"{block['function']} has blocked the event loop of its worker {len(found)} times, the last time for"
            f" {block['seconds']:.1f} s: longer than the heartbeat timeout of {call.heartbeat_seconds:g} s, so that the"
            " worker and all its runs were taken for lost",
            hint="Use async calls for what waits, and a thread or a process for what computes; "
            "a regular expression that takes long lets no other thread run.",
        )


BlockRecorder = Callable[[WatchedCall, LoopBlock], Coroutine[Any, Any, None]]
"""Writes a block of a call."""


class LoopWatch:
    """Watches the loop that runs at :meth:`start`, until :meth:`stop`. ``record`` writes a block of a call, in this
    thread; without it blocks are logged and counted."""

    def __init__(self, record: BlockRecorder | None = None) -> None:
        self._record = record
        self.count = 0
        """Blocks of the loop so far."""
        self.longest = 0.0
        """Seconds of the longest."""
        self.last: LoopBlock | None = None

    def start(self) -> None:
        """Watch the running loop, from the loop's thread."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._clock = _get_thread_clock(self._loop_thread)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="perdure-loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(1.0)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running loop during the block."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def describe(self) -> dict[str, Any]:
        """Return the figures for a report."""
        last = self.last
        facts: dict[str, Any] = {"blocks": self.count, "longest_seconds": round(self.longest, 2)}
        if last is not None:
            facts["last_block"] = {"at": last.at, "seconds": round(last.seconds, 2), "function": last.function}
        return facts

    def _watch(self) -> None:
        while True:
            since = self._clock(), time.process_time(), time.monotonic()  # before the pause: it may end late
            if self._stopping.wait(PROBE_SECONDS):
                return
            try:
                self._observe(*since)
            except RuntimeError:  # the loop is closed
                return
            except Exception:  # it must not end
                logger.exception("the watch of the event loop has failed")

    def _observe(self, used: float, used_by_all: float, begin: float) -> None:
        call: WatchedCall | None = None
        block: LoopBlock | None = None
        answered: threading.Event | None = None
        ran, is_recorded, is_over = 0.0, False, False
        while not is_over and not self._stopping.is_set():
            if answered is None:
                # At first a look, and no wait: what kept Python to itself meanwhile has just returned, and goes on as
                # soon as this thread waits.
                answered = threading.Event()
            else:
                if ran == 0.0:
                    self._loop.call_soon_threadsafe(answered.set)
                is_over = answered.wait(TICK_SECONDS)
                ran += TICK_SECONDS * (not is_over)  # not the clock: a process that was suspended has not looked
            own, by_all = self._clock() - used, time.process_time() - used_by_all
            seconds = max(ran, own, min(by_all, time.monotonic() - begin) if by_all > 2 * ran else 0.0)
            if seconds < BLOCK_SECONDS:
                continue
            if block is None or call is None:
                is_other_thread = own < seconds / 2 and ran < seconds / 2
                frame, call = self._find_culprit(is_other_thread=is_other_thread)
                block = _build_block(seconds, call, frame)
                self.count += 1
                # What has no name may be the program's own work, and its author has asked for no log.
                level = logging.INFO if block.function == _UNKNOWN else logging.WARNING
                logger.log(level, "%s blocks the event loop of this process\n%s", block.function, block.stack)
            block = LoopBlock(block.at, seconds, block.function, block.stack)
            self.last, self.longest = block, max(self.longest, seconds)
            if call is not None and seconds > call.heartbeat_seconds and not is_recorded and self._record is not None:
                is_recorded = True
                try:
                    asyncio.run(self._record(call, block))
                except Exception as error:
                    logger.warning("a block of the event loop by %s is not recorded: %s", block.function, error)

    def _find_culprit(self, *, is_other_thread: bool) -> tuple[FrameType | None, WatchedCall | None]:
        """Find the frame and the call that block the loop. If its own thread did not run, another one keeps Python to
        itself: it is named where a single thread with a call runs."""
        frames = sys._current_frames()
        own = frames.get(self._loop_thread)
        if not is_other_thread:
            task = asyncio.current_task(self._loop)
            return own, _find_call(own) or (None if task is None else _calls_of_tasks.get(id(task)))
        others = [
            (frame, call)
            for thread, frame in frames.items()
            if thread not in (self._loop_thread, threading.get_ident()) and (call := _find_call(frame)) is not None
        ]
        return others[0] if len(others) == 1 else (own, None)


_calls_of_tasks: dict[int, WatchedCall] = {}
"""The call of each activity's task, by its id: of a loop whose callbacks leave no frames (uvloop)."""


class watched:  # noqa: N801  # a context manager, used as a keyword
    """``with watched(call):`` names the call that the current task, and what it begins, works for."""

    def __init__(self, call: WatchedCall) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._task = id(asyncio.current_task())
        _calls_of_tasks[self._task] = self._call
        self._token = current_call.set(self._call)

    def __exit__(self, *_: object) -> None:
        current_call.reset(self._token)
        _calls_of_tasks.pop(self._task, None)


def _find_context(frame: FrameType | None) -> contextvars.Context | None:
    """Find the context in which a thread runs: that of the loop's callback, or of a function in the authors' pool."""
    while frame is not None:
        names = frame.f_locals if frame.f_code.co_name in ("_run", "<lambda>") else {}
        context = names.get("context", getattr(names.get("self"), "_context", None))
        if isinstance(context, contextvars.Context):
            return context
        frame = frame.f_back
    return None


def _find_call(frame: FrameType | None) -> WatchedCall | None:
    context = _find_context(frame)
    return None if context is None else context.get(current_call)


def _build_block(seconds: float, call: WatchedCall | None, frame: FrameType | None) -> LoopBlock:
    context = _find_context(frame)
    author = None if context is None else context.get(author_function)
    name = author or (_UNKNOWN if call is None else call.name)
    stack = "".join(traceback.format_stack(frame)[-_STACK_FRAMES:])[-_STACK_CHARS:] if frame is not None else ""
    return LoopBlock(format_utc_now(), seconds, name, stack)


def _get_thread_clock(thread: int) -> Callable[[], float]:
    """Return a clock of the thread's CPU time, which stands still where the system has none. The thread must outlive
    it."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: 0.0
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)


async def record_block(journal: Journal, call: WatchedCall, block: LoopBlock) -> None:
    """Write a block under its call's run: once for an attempt."""
    body = {"at": block.at, "seconds": block.seconds, "function": block.function, "stack": block.stack}
    outcome = Outcome(call.build_key(call.attempt), "block", json.dumps(body).encode())
    await journal.commit(Commit(outcome=outcome, events=EventBatch(call.context_id, (), lineage=call.lineage)))


def build_own_recorder(open_journal: Callable[[], Store]) -> BlockRecorder:
    """Return a recorder that opens a store of its own for each block: the worker's belongs to the blocked loop."""

    async def record(call: WatchedCall, block: LoopBlock) -> None:
        store = open_journal()
        await store.open(create=False)
        try:
            await record_block(store, call, block)
        finally:
            with suppress(Exception):
                await store.close()

    return record
