"""The store in a SQLite database in memory: no file, no thread, no sync. For ``perdure.testing`` alone."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from ..ports.outbox import WriteOptions
from ..ports.store import EventBatch, EventRow
from ..ports.times import format_utc_now
from . import event_log, meta
from .sqlite import SqliteTables, upgrade_schema
from .sqlite_connection import SQLITE_FAILURES, SqliteDatabase, translate_sqlite_failure

T = TypeVar("T")

Waiter = tuple[str, int, asyncio.Future[int]]
"""Conversation, number after which an event is awaited, and the future to resolve, on any event loop."""

_template_lock = threading.Lock()


@cache
def _make_template() -> bytes:
    """Return an empty database with the newest schema: the migrations take 150 ms, a copy of their result 0.1."""
    connection = _connect()
    try:
        connection.execute("BEGIN")
        upgrade_schema(SqliteDatabase(connection))
        connection.execute("COMMIT")
        return connection.serialize()
    finally:
        connection.close()


def _connect() -> sqlite3.Connection:
    # Used by one thread at a time, whichever that is: `_run` has a lock.
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=512)


class SqliteMemoryStore(SqliteTables):
    """A ``Store`` in memory, which ends with the object. Its first use opens it, and ``close`` keeps its contents.

    An operation runs where it is called, on any event loop or thread, one at a time: all of it or nothing.
    """

    def __init__(self, *, now: Callable[[], str] = format_utc_now) -> None:
        self.place = "memory"
        self.store_id = ""
        self.write_options = WriteOptions()
        self._now = now
        self._lock = threading.Lock()
        self._database: SqliteDatabase | None = None
        self._waiters: set[Waiter] = set()
        self._nudge_watchers: list[tuple[asyncio.AbstractEventLoop, Callable[[str], object]]] = []

    async def open(self, *, create: bool = True) -> None:
        """See :class:`perdure.ports.store.Store`."""
        self.store_id = self._run(meta.assign_store_id, uuid.uuid4().hex, self._now())

    async def close(self) -> None:
        """Do nothing; the contents stay."""

    def _get_database(self) -> SqliteDatabase:
        if self._database is None:
            with _template_lock:
                template = _make_template()
            connection = _connect()
            weakref.finalize(self, connection.close)
            connection.deserialize(template)
            self._database = SqliteDatabase(connection)
        return self._database

    def _run(self, operation: Callable[..., T], *arguments: Any) -> T:
        """Run an operation in a transaction. Raises ``StoreError``."""
        with self._lock:
            database = self._get_database()
            try:
                database.execute("BEGIN")
                result = operation(database, *arguments)
                database.execute("COMMIT")
                return result
            except BaseException as error:
                if database.connection.in_transaction:
                    database.execute("ROLLBACK")
                if isinstance(error, SQLITE_FAILURES):
                    raise translate_sqlite_failure(error, Path(self.place)) from error
                raise

    async def _run_write(self, operation: Callable[..., T], *arguments: Any) -> T:
        return self._run(operation, *arguments)

    _run_read = _run_quick_read = _run_write

    async def read_events(
        self, context_id: str, *, after: int = 0, limit: int = 1000, children: bool = True
    ) -> list[EventRow]:
        """See :class:`perdure.ports.store.EventLog`."""
        return await self._run_read(partial(event_log.read_events, children=children), context_id, after, limit)

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        """See :class:`perdure.ports.store.EventLog`."""
        next_seq: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiter = context_id, after, next_seq
        self._waiters.add(waiter)
        try:
            # After the registration: events written before this read are seen by it, later ones by their writer.
            if (latest := await self._read_latest_seq(context_id)) > after:
                return latest
            await asyncio.wait([next_seq], timeout=timeout)
            return next_seq.result() if next_seq.done() else 0
        finally:
            self._waiters.discard(waiter)

    async def nudge(self, run_id: str) -> None:
        """See :class:`perdure.ports.nudges.Nudges`."""
        for loop, on_nudge in tuple(self._nudge_watchers):
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(on_nudge, run_id)

    def watch_nudges(self, on_nudge: Callable[[str], object]) -> Callable[[], None]:
        """See :class:`perdure.ports.nudges.Nudges`."""
        watcher = asyncio.get_running_loop(), on_nudge
        self._nudge_watchers.append(watcher)
        return lambda: self._nudge_watchers.remove(watcher) if watcher in self._nudge_watchers else None

    def _notify_watcher(self, events: EventBatch | None) -> None:
        waiters = tuple(self._waiters)
        if events is None or not waiters:
            return
        latest_seqs = self._run(event_log.read_latest_seqs, [context_id for context_id, _, _ in waiters])
        for context_id, after, next_seq in waiters:
            if (seq := latest_seqs.get(context_id, 0)) > after:
                next_seq.get_loop().call_soon_threadsafe(_resolve_future, next_seq, seq)


def _resolve_future(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)
