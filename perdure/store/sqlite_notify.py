"""Whoever waits for events of conversations, and the one thread of a store that looks whether there are some.

Another process's commit shows in ``PRAGMA data_version`` of a connection, which costs a few microseconds to ask; only
where it changed are the conversations that somebody waits for looked up, all of them by one query.
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

BUSY_INTERVAL, QUIET_INTERVAL = 0.02, 0.05
"""Seconds between two looks, while commits come in and ``CALM`` seconds after."""
BUSY_SECONDS = 2.0
LINGER_SECONDS = 1.0
"""Seconds that it goes on when nobody waits: a follower that reads is back in no time, and need not wake it."""
MIN_INTERVAL = 0.005
"""Seconds between two looks at least, however much this process writes."""


@dataclass(eq=False, slots=True)
class _EventWaiter:
    context_id: str
    after: int
    loop: asyncio.AbstractEventLoop
    news: asyncio.Future[int]


class EventWatcher:
    """Wakes who waits. The thread begins with the first who does, and sleeps while nobody does.

    ``latest`` gives the number of a conversation's last event, on the event loop of whoever waits.
    """

    def __init__(self, session: SqliteSession, latest: Callable[[str], Awaitable[int]]) -> None:
        self._session = session
        self._latest = latest
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, set[_EventWaiter]] = defaultdict(set)
        self._look_now = threading.Event()
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._closed = False
        self._at_end: Callable[[], object] = lambda: None
        self._seen: tuple[SqliteDatabase, int] | None = None
        self._news_at = self._wanted_at = 0.0

    async def changed(self, context_id: str, after: int, timeout: float) -> int:
        """See :class:`perdure.ports.Events`."""
        waiter = self._enter(context_id, after)
        try:
            # Behind the entry: what is committed before this look is seen by it, what comes later by the thread.
            if (latest := await self._latest(context_id)) > after:
                return latest
            await asyncio.wait([waiter.news], timeout=timeout)
            return waiter.news.result() if waiter.news.done() else 0
        finally:
            self._leave(waiter)

    def written(self, context_id: str) -> None:
        """This process wrote events of the conversation."""
        if context_id in self._waiters:
            self._look_now.set()

    async def close(self) -> None:
        """End the thread; who still waits is told by a ``StoreError``."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._closed = True
            self._at_end = lambda: loop.call_soon_threadsafe(ended.set_result, None)
            thread = self._thread
        self._look_now.set()
        self._fail(StoreError, CLOSED, CLOSED_HINT)
        if thread is not None:
            await ended
            thread.join()  # it has nothing left to do

    def _enter(self, context_id: str, after: int) -> _EventWaiter:
        loop = asyncio.get_running_loop()
        waiter = _EventWaiter(context_id, after, loop, loop.create_future())
        with self._lock:
            if self._closed:
                raise StoreError(CLOSED, hint=CLOSED_HINT)
            self._waiters[context_id].add(waiter)
            if self._thread is None:
                # A daemon: a program that forgets to close the store still exits.
                self._thread = threading.Thread(target=self._work, name="perdure-store-watch", daemon=True)
                self._thread.start()
            if self._asleep:
                self._look_now.set()
        return waiter

    def _leave(self, waiter: _EventWaiter) -> None:
        with self._lock:
            waiting = self._waiters[waiter.context_id]
            waiting.discard(waiter)
            if not waiting:
                del self._waiters[waiter.context_id]
        if not waiter.news.cancel() and not waiter.news.cancelled():
            waiter.news.exception()  # taken note of, also where nobody waited for it to the end

    def _work(self) -> None:
        while self._wait():
            with self._lock:
                wanted = bool(self._waiters)
            if wanted:
                self._wanted_at = time.monotonic()
                self._look()
        self._session.close()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            self._at_end()

    def _wait(self) -> bool:
        """Until it is time for a look; false when there is to be none."""
        time.sleep(MIN_INTERVAL)
        now = time.monotonic()
        with self._lock:
            self._asleep = not self._waiters and now - self._wanted_at > LINGER_SECONDS
            asleep = self._asleep
        every = BUSY_INTERVAL if now - self._news_at < BUSY_SECONDS else QUIET_INTERVAL
        self._look_now.wait(None if asleep else every - MIN_INTERVAL)
        with self._lock:
            self._asleep = False
            self._look_now.clear()
            return not self._closed

    def _look(self) -> None:
        try:
            self._session.run(self._ask)
        except StoreError as error:
            self._seen = None
            self._fail(type(error), error.message, error.hint)
        except Exception as error:  # whoever waits must hear of it: the thread goes on
            self._seen = None
            self._fail(StoreError, f"the store cannot be watched: {type(error).__name__}: {error}", None)

    def _ask(self, database: SqliteDatabase) -> None:
        version: int = database.execute("PRAGMA data_version").fetchone()[0]
        # Versions are those of one connection: of a file put in the place of another they say nothing.
        if self._seen is not None and self._seen[0] is database and self._seen[1] == version:
            return
        with self._lock:
            wanted = list(self._waiters)
        found = event_log.read_latest_seqs(database, wanted)
        self._seen = database, version
        self._news_at = time.monotonic()
        with self._lock:
            ready = {
                waiter: seq
                for context_id, seq in found.items()
                for waiter in self._waiters.get(context_id, ())
                if waiter.after < seq
            }
        _wake_waiters(ready, lambda waiter: waiter.news.set_result(ready[waiter]))

    def _fail(self, kind: type[StoreError], message: str, hint: str | None) -> None:
        with self._lock:
            waiting = [waiter for waiters in self._waiters.values() for waiter in waiters]
        # One for each: a traceback grows wherever an error is raised.
        _wake_waiters(waiting, lambda waiter: waiter.news.set_exception(kind(message, hint=hint)))


def _wake_waiters(waiters: Iterable[_EventWaiter], settle: Callable[[_EventWaiter], None]) -> None:
    """Wake each event loop once."""
    of: dict[asyncio.AbstractEventLoop, list[_EventWaiter]] = {}
    for waiter in waiters:
        of.setdefault(waiter.loop, []).append(waiter)
    for loop, woken in of.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            loop.call_soon_threadsafe(_settle_waiters, woken, settle)


def _settle_waiters(waiters: list[_EventWaiter], settle: Callable[[_EventWaiter], None]) -> None:
    for waiter in waiters:
        if not waiter.news.done():
            settle(waiter)
