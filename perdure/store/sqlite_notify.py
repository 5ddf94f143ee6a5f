"""Wakes callers that wait for events of conversations, by one polling thread per store.

Another process's commit changes ``PRAGMA data_version`` of a connection, which takes a few microseconds to read; only
after a change are the awaited conversations looked up, all of them by one query. Nudges
(``perdure.ports.nudges.Nudges``) are rows, which are looked up with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ..errors import StoreError
from . import event_log
from .sqlite_connection import CLOSED, CLOSED_HINT, SqliteDatabase, SqliteSession
from .statements import load_statements

SQL = load_statements("sqlite")
BUSY_INTERVAL, QUIET_INTERVAL = 0.01, 0.05
"""Seconds between two polls: while commits come in and ``BUSY_SECONDS`` seconds after, and otherwise."""
BUSY_SECONDS = 2.0
LINGER_SECONDS = 1.0
"""Seconds that polling continues without a waiter: a follower that reads events soon waits again, and need not wake
it."""
NUDGE_SECONDS = 3.0
"""Seconds for which the row of a nudge counts, and is looked for."""
MIN_INTERVAL = 0.005
"""Shortest time between two polls in seconds, however much this process writes."""


@dataclass(eq=False, slots=True)
class _EventWaiter:
    context_id: str
    after: int
    latest_seq: asyncio.Future[int]


@dataclass(eq=False, slots=True)
class _NudgeWatcher:
    loop: asyncio.AbstractEventLoop
    on_nudge: Callable[[str], object]


def write_nudge(database: SqliteDatabase, run_id: str) -> None:
    """Write the row of a nudge, and delete old ones."""
    now = time.time()
    database.run(SQL.delete_old_nudges, since=now - NUDGE_SECONDS)
    database.run(SQL.write_nudge, run_id=run_id, now=now)


class EventWatcher:
    """Wakes waiting callers. The thread starts with the first of them, and sleeps while there is none.

    ``latest`` returns the number of a conversation's last event, on the event loop of the waiting caller.
    """

    def __init__(self, session: SqliteSession, latest: Callable[[str], Awaitable[int]]) -> None:
        self._session = session
        self._read_latest_seq = latest
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, set[_EventWaiter]] = defaultdict(set)
        self._nudge_watchers: list[_NudgeWatcher] = []
        self._seen_nudges: set[tuple[str, float]] = set()
        self._poll_now = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_asleep = False
        self._closed = False
        self._on_end: Callable[[], object] = lambda: None
        self._seen_version: tuple[SqliteDatabase, int] | None = None
        self._last_change_at = self._last_waiter_at = 0.0

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        """See :class:`perdure.ports.store.EventLog`."""
        waiter = self._add_waiter(context_id, after)
        try:
            # After the registration: events committed before this read are seen by it, later ones by the thread.
            if (latest := await self._read_latest_seq(context_id)) > after:
                return latest
            await asyncio.wait([waiter.latest_seq], timeout=timeout)
            return waiter.latest_seq.result() if waiter.latest_seq.done() else 0
        finally:
            self._remove_waiter(waiter)

    def watch_nudges(self, on_nudge: Callable[[str], object]) -> Callable[[], None]:
        """See :class:`perdure.ports.nudges.Nudges`."""
        watcher = _NudgeWatcher(asyncio.get_running_loop(), on_nudge)
        with self._lock:
            if not self._closed:
                self._nudge_watchers.append(watcher)
                self._wake_thread()
        return lambda: self._unwatch_nudges(watcher)

    def _unwatch_nudges(self, watcher: _NudgeWatcher) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._nudge_watchers.remove(watcher)

    def notify_write(self, context_id: str) -> None:
        """Note that this process wrote events of the conversation."""
        if context_id in self._waiters:
            self._poll_now.set()

    async def close(self) -> None:
        """End the thread; callers that still wait get a ``StoreError``."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._closed = True
            self._on_end = lambda: ended.get_loop().call_soon_threadsafe(ended.set_result, None)
        self._poll_now.set()
        self._fail_waiters(StoreError, CLOSED, CLOSED_HINT)
        if self._thread is not None:
            await ended  # not in an executor's thread: executors refuse work once the main thread has ended
            self._thread.join()  # it has nothing left to do

    def _add_waiter(self, context_id: str, after: int) -> _EventWaiter:
        waiter = _EventWaiter(context_id, after, asyncio.get_running_loop().create_future())
        with self._lock:
            if self._closed:
                raise StoreError(CLOSED, hint=CLOSED_HINT)
            self._waiters[context_id].add(waiter)
            self._wake_thread()
        return waiter

    def _wake_thread(self) -> None:
        """Start the thread, or have it poll; the caller holds the lock."""
        if self._thread is None:
            # A daemon: a program that does not close the store still exits.
            self._thread = threading.Thread(target=self._run_thread, name="perdure-store-watch", daemon=True)
            self._thread.start()
        if self._is_asleep:
            self._poll_now.set()

    def _remove_waiter(self, waiter: _EventWaiter) -> None:
        with self._lock:
            waiters = self._waiters[waiter.context_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[waiter.context_id]
        if not waiter.latest_seq.cancel() and not waiter.latest_seq.cancelled():
            waiter.latest_seq.exception()  # marks the exception as retrieved, also if the caller stopped waiting

    def _run_thread(self) -> None:
        while self._wait_for_poll():
            with self._lock:
                is_needed = bool(self._waiters or self._nudge_watchers)
            if is_needed:
                self._last_waiter_at = time.monotonic()
                self._poll_database()
        self._session.close()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, with its waiters
            self._on_end()

    def _wait_for_poll(self) -> bool:
        """Wait until the next poll is due; false when the thread is to end."""
        time.sleep(MIN_INTERVAL)
        now = time.monotonic()
        with self._lock:
            is_needed = bool(self._waiters or self._nudge_watchers)
            is_asleep = self._is_asleep = not is_needed and now - self._last_waiter_at > LINGER_SECONDS
            is_busy = bool(self._waiters) and now - self._last_change_at < BUSY_SECONDS
        interval = BUSY_INTERVAL if is_busy else QUIET_INTERVAL
        self._poll_now.wait(None if is_asleep else interval - MIN_INTERVAL)
        with self._lock:
            self._is_asleep = False
            self._poll_now.clear()
            return not self._closed

    def _poll_database(self) -> None:
        try:
            self._session.run(self._find_new_events)
        except StoreError as error:
            self._seen_version = None
            self._fail_waiters(type(error), error.message, error.hint)
        except Exception as error:  # the waiters get the error, and the thread continues
            self._seen_version = None
            self._fail_waiters(StoreError, f"the store cannot be watched: {type(error).__name__}: {error}", None)

    def _find_new_events(self, database: SqliteDatabase) -> None:
        version: int = database.execute("PRAGMA data_version").fetchone()[0]
        # Versions are those of one connection: they are not comparable after the file was replaced.
        if self._seen_version == (database, version):
            return
        with self._lock:
            context_ids, watchers = list(self._waiters), tuple(self._nudge_watchers)
        if watchers:
            self._find_new_nudges(database, watchers)
        latest_seqs = event_log.read_latest_seqs(database, context_ids) if context_ids else {}
        self._seen_version = database, version
        self._last_change_at = time.monotonic()
        with self._lock:
            ready = [
                (waiter, seq)
                for context_id, seq in latest_seqs.items()
                for waiter in self._waiters.get(context_id, ())
                if waiter.after < seq
            ]
        _wake_waiters(ready)

    def _find_new_nudges(self, database: SqliteDatabase, watchers: Iterable[_NudgeWatcher]) -> None:
        rows = {(run_id, at) for run_id, at in database.run(SQL.list_nudges, since=time.time() - NUDGE_SECONDS)}
        for run_id, _ in rows - self._seen_nudges:
            for watcher in watchers:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    watcher.loop.call_soon_threadsafe(watcher.on_nudge, run_id)
        self._seen_nudges = rows

    def _fail_waiters(self, kind: type[StoreError], message: str, hint: str | None) -> None:
        with self._lock:
            all_waiters = [waiter for waiters in self._waiters.values() for waiter in waiters]
        # An error for each: a traceback grows wherever an error is raised.
        _wake_waiters([(waiter, kind(message, hint=hint)) for waiter in all_waiters])


def _wake_waiters(results: Iterable[tuple[_EventWaiter, int | StoreError]]) -> None:
    """Give each waiter its number or error: one message to each event loop."""
    of_loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], int | StoreError]]] = defaultdict(list)
    for waiter, result in results:
        of_loops[waiter.latest_seq.get_loop()].append((waiter.latest_seq, result))
    for loop, of_loop in of_loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, with its waiters
            loop.call_soon_threadsafe(_settle_waiters, of_loop)


def _settle_waiters(results: Iterable[tuple[asyncio.Future[int], int | StoreError]]) -> None:
    for latest_seq, result in results:
        if latest_seq.done():
            continue
        if isinstance(result, StoreError):
            latest_seq.set_exception(result)
        else:
            latest_seq.set_result(result)
