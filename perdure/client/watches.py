"""What all followers of a run in this process wait for together: its next event, its end, the end of a turn.

    follower ─┐
    follower ─┼─► watch ─► one wait of the store for events, one long poll of Temporal for the end
    follower ─┘

A watch begins with the first follower and ends with the last. It keeps no events: each follower reads them from the
store at its own pace. A watch whose end has come takes no new followers, since a run may be opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from ..ports import Store
from .handles import ClientHandle

T = TypeVar("T")
STORE_WAIT_SECONDS = 5.0
"""Seconds after which the store is asked anew for the last event, even without a notification."""
_STORE_ERROR_SECONDS = 0.1
"""Seconds until a store that has failed is asked again."""


class Watch(Generic[T]):
    """Waits for an end that several followers wait for."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.followers = 0
        self.waiters: set[asyncio.Future[None]] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self.end: asyncio.Task[T] = self._start(work)
        self.end.add_done_callback(lambda _: self.wake())

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        # Not in the context of the first follower, which may be long gone.
        task = asyncio.create_task(work, context=Context())
        self._tasks.append(task)
        return task

    def wake(self) -> None:
        """Wake all followers that wait."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """Stop waiting."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class RunWatch(Watch[T]):
    """Waits for the events of a run, too."""

    def __init__(self, store: Store, context_id: str, work: Coroutine[Any, Any, T]) -> None:
        super().__init__(work)
        self.latest = 0
        """The last number in the stream of the run's events, as far as it is known."""
        self.failures = 0
        """How often the store could not be asked: a follower then reads, and gets the error."""
        self._store = store
        self._context_id = context_id
        self._watching = self._start(self._watch_events())

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


async def wait_for_change(run: RunWatch[Any], ending: Watch[Any], seen: int) -> int:
    """Wait for an event of ``run`` after number ``seen``, for the end of ``ending``, or until the store fails. Return
    the last number that is known."""
    failures = run.failures
    while run.latest <= seen and run.failures == failures and not ending.end.done():
        waiter = asyncio.get_running_loop().create_future()
        run.waiters.add(waiter)
        ending.waiters.add(waiter)
        try:
            await waiter
        finally:
            run.waiters.discard(waiter)
            ending.waiters.discard(waiter)
    return max(run.latest, seen)


WatchT = TypeVar("WatchT", bound=Watch[Any])
_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Hashable, ...], Watch[Any]]] = WeakKeyDictionary()
"""The watches that take followers, by event loop, client and subject."""


@asynccontextmanager
async def join_watch(client: ClientHandle, *subject: Hashable, build: Callable[[], WatchT]) -> AsyncGenerator[WatchT]:
    """Follow by the watch of ``subject`` for the length of the block; ``build`` makes it for the first follower."""
    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    key = (client, *subject)
    watch: Any = watches.get(key)
    if watch is None or watch.end.done():
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
