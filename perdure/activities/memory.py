"""Memory as authors' code sees it: the store belongs to the worker's loop, and the code runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from ..errors import StoreError
from ..ports import Memory as Kept
from ..tools import Memory
from ..tools.memory import Writes

T = TypeVar("T")

_FIRST_DELAY = 0.2
_LAST_DELAY = 5.0


class StoredMemory:
    """Gives each call its view of what is kept in the store.

    ``waiting`` is told why a read has to wait for the store, and "" when it is over.
    """

    def __init__(self, store: Kept, waiting: Callable[[str], None] = lambda _: None) -> None:
        self._store = store
        self._waiting = waiting

    def __call__(self, writes: Writes) -> Memory:
        """The memory of one call, which writes into ``writes``. On the worker's loop."""
        return Memory(_Reads(self._store, asyncio.get_running_loop(), self._waiting), writes)


class _Reads:
    """Asks the store on its own loop, for whatever thread."""

    def __init__(self, store: Kept, loop: asyncio.AbstractEventLoop, waiting: Callable[[str], None]) -> None:
        self._store = store
        self._loop = loop
        self._waiting = waiting
        self.waits = 0
        """Reads that wait for the store."""

    def recall(self, namespace: str, key: str) -> Future[bytes | None]:
        """One value."""
        return self._ask(lambda: self._store.recall(namespace, key))

    def recall_all(self, namespace: str, prefix: str, limit: int) -> Future[dict[str, bytes]]:
        """The first ``limit`` values under ``prefix``."""
        return self._ask(lambda: self._store.recall_all(namespace, prefix, limit=limit))

    def _ask(self, read: Callable[[], Awaitable[T]]) -> Future[T]:
        answer = self._insist(read)
        try:
            return asyncio.run_coroutine_threadsafe(answer, self._loop)
        except RuntimeError:  # closed: the worker has stopped
            answer.close()
            raise

    async def _insist(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read as soon as the store can be read: that it cannot is no failure of the tool's. Its timeout bounds it."""
        delay, waited = _FIRST_DELAY, False
        try:
            while True:
                try:
                    found = await read()
                except StoreError as error:
                    if not error.retryable:
                        raise
                    self.waits += not waited
                    waited = True
                    self._waiting(f"{type(error).__name__}: {error}")
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, _LAST_DELAY)
                else:
                    if waited:
                        self._waiting("")
                    return found
        finally:
            self.waits -= waited
