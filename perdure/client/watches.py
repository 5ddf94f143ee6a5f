"""What all followers of a run in this process wait for together: its next event, its end, the end of a turn.

    follower ─┐
    follower ─┼─► watch ─► one wait of the store for events, one long poll of Temporal for the end
    follower ─┘

A watch begins with the first follower and ends with the last. Each follower reads events from the store at its own
pace; those at the same place share the read. Nothing is kept for one that is slow. A watch whose end has come takes no
new followers, since a run may be opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from .handles import ClientHandle

if TYPE_CHECKING:
    from ..ports.store import EventRow, Store
    from ..types.events import Event

T = TypeVar("T")
STORE_WAIT_SECONDS = 5.0
"""Seconds after which the store is asked anew for the last event, even without a notification."""
_STORE_ERROR_SECONDS = 0.1
"""Seconds until a store that has failed is asked again."""
_KEPT_SECONDS, _KEPT_BYTES = 0.1, 64 * 1024
"""How long a page is kept that followers share, and how large it may be for that."""


class Watch:
    """Waits for what several followers wait for."""

    def __init__(self) -> None:
        self.followers = 0
        self.waiters: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return False

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` until the watch is closed."""
        # Not in the context of the first follower, which may be long gone.
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def wake(self) -> None:
        """Wake all followers that wait."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """Stop waiting."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EndWatch(Watch, Generic[T]):
    """Waits for an end: that of ``work``."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self.end = self.start(work)
        self.end.add_done_callback(lambda _: self.wake())

    @property
    def is_over(self) -> bool:
        """Whether the end has come."""
        return self.end.done()


@dataclass(slots=True)
class EventPage:
    """Rows of events after a number."""

    rows: Sequence[EventRow]
    decoded: dict[int, Event | None] | None = None
    """Of a small page that followers share: the events of its rows that one of them has decoded, by number."""


@dataclass(slots=True)
class _SharedRead:
    place: tuple[int, bool, int]
    page: asyncio.Task[EventPage]


class EventWatch(Watch):
    """Waits for the events of a run, and reads them for followers at the same place."""

    def __init__(self, store: Store, context_id: str) -> None:
        super().__init__()
        self.latest = 0
        """The last number in the stream of the run's events, as far as it is known."""
        self.failures = 0
        """How often the store could not be asked: a follower then reads, and gets the error."""
        self._store = store
        self._context_id = context_id
        self._watching = self.start(self._watch_events())
        self._shared: _SharedRead | None = None

    async def _watch_events(self) -> None:
        while True:
            try:
                latest = await self._store.wait_for_event(self._context_id, self.latest, STORE_WAIT_SECONDS)
            except Exception:  # each follower's own read retries, or raises the error
                self.failures += 1
                self.wake()
                await asyncio.sleep(_STORE_ERROR_SECONDS)
                continue
            if latest > self.latest:
                self.latest = latest
                self.wake()

    async def read_page(self, after: int, *, children: bool, limit: int) -> EventPage:
        """Read the events after number ``after`` that the store had a moment ago: followers that are woken together
        share one read. What was recorded meanwhile wakes them again. Raises ``StoreError``."""
        if self.followers == 1:
            return await self._read_page(after, children=children, limit=limit)
        place = after, children, limit
        shared = self._shared
        if shared is None or shared.place != place:
            page = self.start(self._read_shared_page(after, children=children, limit=limit))
            shared = self._shared = _SharedRead(place, page)
            page.add_done_callback(lambda _: self._settle_read(shared))
        return await asyncio.shield(shared.page)

    async def _read_page(self, after: int, *, children: bool, limit: int) -> EventPage:
        rows = await self._store.read_events(self._context_id, after=after, limit=limit, children=children)
        return EventPage(rows)

    async def _read_shared_page(self, after: int, *, children: bool, limit: int) -> EventPage:
        page = await self._read_page(after, children=children, limit=limit)
        if sum(len(row.body) for row in page.rows) <= _KEPT_BYTES:
            page.decoded = {}
        return page

    def _settle_read(self, shared: _SharedRead) -> None:
        """Keep a small page for a moment, for followers who are still sending the one before."""
        failed = shared.page.cancelled() or shared.page.exception() is not None
        if failed or not (page := shared.page.result()).rows or page.decoded is None:
            self._forget_read(shared)
        else:
            asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._forget_read, shared)

    def _forget_read(self, shared: _SharedRead) -> None:
        if self._shared is shared:
            self._shared = None

    async def wait_for_event(self, seen: int, ending: EndWatch[Any] | None = None) -> int:
        """Wait for an event after number ``seen``, for the end of ``ending``, or until the store fails. Return the last
        number that is known."""
        failures = self.failures
        while self.latest <= seen and self.failures == failures and not (ending is not None and ending.is_over):
            waiter = asyncio.get_running_loop().create_future()
            watches: tuple[Watch, ...] = (self,) if ending is None else (self, ending)
            for watch in watches:
                watch.waiters.add(waiter)
            try:
                await waiter
            finally:
                for watch in watches:
                    watch.waiters.discard(waiter)
        return max(self.latest, seen)


WatchT = TypeVar("WatchT", bound=Watch)
_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Hashable, ...], Watch]] = WeakKeyDictionary()
"""The watches that take followers, by event loop, client and subject."""


@asynccontextmanager
async def join_watch(client: ClientHandle, *subject: Hashable, build: Callable[[], WatchT]) -> AsyncGenerator[WatchT]:
    """Follow by the watch of ``subject`` for the length of the block; ``build`` makes it for the first follower."""
    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    key = (client, *subject)
    watch: Any = watches.get(key)
    if watch is None or watch.is_over:
        watch = watches[key] = build()
    watch.followers += 1
    try:
        yield watch
    finally:
        watch.followers -= 1
        if not watch.followers:
            if watches.get(key) is watch:
                del watches[key]
            await watch.close()


def join_event_watch(client: ClientHandle, store: Store, run_id: str) -> AbstractAsyncContextManager[EventWatch]:
    """Follow by the watch of the run's events."""
    return join_watch(client, "events", run_id, build=lambda: EventWatch(store, run_id))
