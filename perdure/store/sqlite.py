"""The store in a SQLite file: the embedded default, shared by all perdure processes of a machine."""

from __future__ import annotations

import asyncio
import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import StoreError, StoreLocationError, StoreVersionError
from ..ports.outbox import WriteOptions
from ..ports.store import AgentRow, Claim, Commit, EventBatch, EventRow, Node, RunRow, TurnRow
from ..ports.times import format_utc_now
from . import event_log, journal, memory, meta, migrations, nodes, retention, runs
from .agents import read_agent_names, read_agents, write_agents
from .sqlite_connection import SqliteDatabase, SqliteSession, StoreFile, StoreThread
from .sqlite_notify import EventWatcher, write_nudge
from .statements import Statement, load_statements
from .tables import StoreTables

SQL = load_statements("sqlite")
T = TypeVar("T")

_QUICK_KEYS = 8  # keys read on the event loop: each needs a page or two, nearly always in memory
_QUICK_EVENTS, _QUICK_BYTES = 64, 64 * 1024  # likewise: the events of a follower that is woken


class _Threads(NamedTuple):
    writer: StoreThread
    reader: StoreThread
    watcher: EventWatcher


class SqliteTables(StoreTables):
    """The methods of a store in SQLite, over what runs an operation on the database."""

    write_options: WriteOptions

    @abstractmethod
    async def _run_write(self, operation: Callable[..., T], *arguments: Any) -> T:
        """Run ``operation`` with the database and ``arguments``, in a transaction of its own."""

    @abstractmethod
    async def _run_read(self, operation: Callable[..., T], *arguments: Any) -> T:
        """Run an operation that reads."""

    @abstractmethod
    async def _run_quick_read(self, operation: Callable[..., T], *arguments: Any) -> T:
        """Run a read of a few rows."""

    @abstractmethod
    def _notify_watcher(self, events: EventBatch | None) -> None:
        """Wake those who wait for the events that were written."""

    async def _run_step(self, make_step: Callable[[], retention.Step[T]], *, write: bool = False) -> T:
        run = self._run_write if write else self._run_read
        return await run(lambda database: retention.run_step(database, make_step()))

    async def find_outcomes(self, keys: Sequence[str]) -> dict[str, bytes]:
        """See :class:`perdure.ports.store.Journal`."""
        if not keys:
            return {}
        run = self._run_quick_read if len(keys) <= _QUICK_KEYS else self._run_read
        return await run(journal.read_outcomes, keys)

    async def claim(self, key: str, owner: str, *, again: bool = False, events: EventBatch | None = None) -> Claim:
        """See :class:`perdure.ports.store.Journal`."""
        claim = await self._run_write(journal.claim_call, key, owner, again, self._now(), events, self.write_options)
        self._notify_watcher(events)
        return claim

    async def release_claim(self, key: str, owner: str) -> bool:
        """See :class:`perdure.ports.store.Journal`."""
        return bool(await self._change_rows(journal.SQL.release_claim, key=key, owner=owner))

    async def commit(self, commit: Commit) -> bytes | None:
        """See :class:`perdure.ports.store.Journal`."""
        recorded = await self._run_write(journal.write_commit, commit, self._now(), self.write_options)
        self._notify_watcher(commit.events)
        return recorded

    async def read_nodes(self, head: str, *, until: Sequence[str] = ()) -> list[Node]:
        """See :class:`perdure.ports.store.Transcripts`."""
        return await self._run_read(nodes.read_nodes, head, until)

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """See :class:`perdure.ports.store.Transcripts`."""
        return await self._run_read(nodes.read_blobs, hashes) if hashes else {}

    async def get_run(self, context_id: str) -> RunRow | None:
        """See :class:`perdure.ports.store.Runs`."""
        return await self._run_quick_read(runs.read_run, context_id)

    async def get_turn(self, context_id: str, task_id: str) -> TurnRow | None:
        """See :class:`perdure.ports.store.Turns`."""
        return await self._run_quick_read(runs.read_turn, context_id, task_id)

    async def find_message_turn(self, context_id: str, message_id: str) -> str | None:
        """See :class:`perdure.ports.store.Turns`."""
        return await self._run_quick_read(runs.find_turn_of_message, context_id, message_id)

    async def recall(self, namespace: str, key: str) -> bytes | None:
        """See :class:`perdure.ports.store.SharedMemory`."""
        return await self._run_read(memory.recall, namespace, key)

    async def recall_all(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, bytes]:
        """See :class:`perdure.ports.store.SharedMemory`."""
        return await self._run_read(memory.recall_all, namespace, prefix, limit)

    async def record_agents(self, agents: Sequence[AgentRow]) -> None:
        """See :class:`perdure.ports.store.AgentRegistry`."""
        await self._run_write(write_agents, agents, self._now())

    async def list_agents(self, name: str | None = None) -> list[AgentRow]:
        """See :class:`perdure.ports.store.AgentRegistry`."""
        return await self._run_read(read_agents, name)

    async def list_agent_names(self) -> list[str]:
        """See :class:`perdure.ports.store.AgentRegistry`."""
        return await self._run_read(read_agent_names)

    async def append(self, batch: EventBatch) -> bool:
        """See :class:`perdure.ports.store.EventLog`."""
        written = await self._run_write(event_log.append_batch, batch, self._now(), self.write_options)
        self._notify_watcher(batch)
        return written

    async def _select_rows(self, statement: Statement | str, **values: Any) -> list[Sequence[Any]]:
        return await self._run_read(_run_statement, statement, values)

    async def _change_rows(self, statement: Statement, **values: Any) -> list[Sequence[Any]]:
        return await self._run_write(_run_statement, statement, values)

    async def _read_latest_seq(self, context_id: str) -> int:
        seqs = await self._run_quick_read(event_log.read_latest_seqs, [context_id])
        return seqs.get(context_id, 0)


class SqliteStore(SqliteTables):
    """A ``Store`` in one file (``sqlite:///relative/path`` or ``sqlite:////absolute/path``).

    One thread writes and one reads (a few keys are read on the event loop), and one polls for events while a caller
    waits for them; any number of processes may have the file open. Work that was handed over is completed, also when
    its caller is cancelled.

    The file is made by ``open`` alone, readable by its owner only. If there is none, reads find nothing and writes
    raise ``StoreError``, until another process has made it. If the file of an open store is removed, calls raise
    ``StoreError`` until it is back; if it is replaced by a copy of the same store, work continues with that; another
    store raises ``StoreMismatchError``. When replacing the file, remove its -wal file too: SQLite would apply the old
    changes to the new file, undetected.

    ``busy_timeout``: seconds to wait for another process's transaction before ``StoreError``.
    """

    def __init__(self, url: str, *, busy_timeout: float = 5.0, now: Callable[[], str] = format_utc_now) -> None:
        self.path = parse_sqlite_url(url)
        self.place = str(self.path)
        self.store_id = ""
        self.write_options = WriteOptions()
        self._now = now
        self._busy_timeout = busy_timeout
        self._file = StoreFile(self.path)
        self._open_threads: _Threads | None = None
        self._loop_session_lock = threading.Lock()
        self._loop_session = SqliteSession(self._file, write=False, busy_timeout=0)

    @property
    def _threads(self) -> _Threads:
        """Raises ``StoreError`` if the store is not open."""
        if self._open_threads is None:
            raise StoreError(f"the store {self.path} is not open", hint="Call open() first.")
        return self._open_threads

    async def open(self, *, create: bool = True) -> None:
        """See :class:`perdure.ports.store.Store`."""
        if self._open_threads is None:
            writer, reader, watcher = (
                SqliteSession(self._file, write=n == 0, busy_timeout=self._busy_timeout) for n in range(3)
            )
            self._open_threads = _Threads(
                StoreThread("perdure-store-write", writer),
                StoreThread("perdure-store-read", reader),
                EventWatcher(watcher, self._read_latest_seq),
            )
            self.store_id = self._file.store_id = ""
        if self.store_id:
            return
        try:
            self.store_id = self._file.store_id = await self._prepare_store(create)
        except BaseException:
            await self.close()
            raise

    async def _prepare_store(self, create: bool) -> str:
        """Prepare the store and return the ``store_id``; "" if there is no store and none is made."""
        try:
            known_id = await self._run_read(_read_current_store_id)
        except StoreError as error:
            if isinstance(error, StoreVersionError) or not create:
                raise
            known_id = ""  # preparing it raises the error
        if known_id or not create:
            return known_id  # also of a store that another process has locked
        # Imported before the transaction, in which other processes would wait for it.
        await asyncio.to_thread(import_module, "alembic.command")
        self._file.create = True
        try:
            proposed_id, now = uuid.uuid4().hex, self._now()
            return await self._threads.writer.run(lambda database: _prepare_schema(database, proposed_id, now))
        finally:
            self._file.create = False

    async def close(self) -> None:
        """Finish the work that was handed over, close the file and end the threads. ``open`` may follow."""
        threads, self._open_threads = self._open_threads, None
        if threads is not None:
            await threads.watcher.close()
            with self._loop_session_lock:
                self._loop_session.close()
            await threads.reader.close()
            await threads.writer.close()

    async def _run_write(self, operation: Callable[..., T], *arguments: Any) -> T:
        threads = self._threads
        if not self.store_id:
            await self.open(create=False)
            if not self.store_id:
                raise StoreError(
                    f"there is no store at {self.path} yet",
                    hint="Workers make it when they start; or put its file there, or mount its volume.",
                )
        return await threads.writer.run(lambda database: operation(database, *arguments))

    async def _run_read(self, operation: Callable[..., T], *arguments: Any) -> T:
        return await self._threads.reader.run(lambda database: operation(database, *arguments))

    async def _run_quick_read(self, operation: Callable[..., T], *arguments: Any) -> T:
        """Run a read of a few rows on the event loop if that needs no waiting, otherwise on the reader's thread."""
        result = self._try_on_loop(operation, *arguments)
        return await self._run_read(operation, *arguments) if result is None else result[0]

    def _try_on_loop(self, operation: Callable[..., T], *arguments: Any) -> tuple[T] | None:
        """Run a read on the event loop itself, without waiting: 30 µs, where a thread hand-over costs 150 and wakes
        both.

        None if that fails (locked, missing): the thread then waits for it, or raises the error.
        """
        # An event loop of another thread may be using the connection, which must not be closed meanwhile.
        if not self._loop_session_lock.acquire(blocking=False):
            return None
        try:
            if self._open_threads is None:
                return None
            return (self._loop_session.run(lambda database: operation(database, *arguments)),)
        except StoreError:
            return None
        finally:
            self._loop_session_lock.release()

    def _notify_watcher(self, events: EventBatch | None) -> None:
        if events is not None and self._open_threads is not None:
            self._open_threads.watcher.notify_write(events.context_id)
            if events.lineage is not None:
                self._open_threads.watcher.notify_write(events.lineage.root)

    async def read_events(
        self, context_id: str, *, after: int = 0, limit: int = 1000, children: bool = True
    ) -> list[EventRow]:
        """See :class:`perdure.ports.store.EventLog`."""
        quick_limit = min(limit, _QUICK_EVENTS)
        read_page = partial(event_log.read_events, children=children)
        quick = self._try_on_loop(read_page, context_id, after, quick_limit, _QUICK_BYTES)
        if quick is None:
            return await self._run_read(read_page, context_id, after, limit)
        (rows,) = quick
        if len(rows) == quick_limit < limit or sum(len(row.body) for row in rows) > _QUICK_BYTES:
            return await self._run_read(read_page, context_id, after, limit)
        return rows

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        """See :class:`perdure.ports.store.EventLog`."""
        return await self._threads.watcher.wait_for_event(context_id, after, timeout)

    async def nudge(self, run_id: str) -> None:
        """See :class:`perdure.ports.nudges.Nudges`."""
        await self._run_write(write_nudge, run_id)

    def watch_nudges(self, on_nudge: Callable[[str], object]) -> Callable[[], None]:
        """See :class:`perdure.ports.nudges.Nudges`."""
        return (lambda: None) if self._open_threads is None else self._open_threads.watcher.watch_nudges(on_nudge)


def _run_statement(database: SqliteDatabase, statement: Statement | str, values: dict[str, Any]) -> list[Sequence[Any]]:
    return list(database.run(statement, **values))


def is_current(database: SqliteDatabase) -> bool:
    """Whether the database needs no migration; see :func:`.migrations.is_current`."""
    return migrations.is_current(database, list_tables(database))


def list_tables(database: SqliteDatabase) -> list[str]:
    """List the tables, without SQLite's own."""
    return [name for (name,) in database.run(SQL.list_tables)]


def _read_current_store_id(database: SqliteDatabase) -> str:
    return meta.read_store_id(database) or "" if is_current(database) else ""


def _prepare_schema(database: SqliteDatabase, proposed: str, now: str) -> str:
    if not is_current(database):
        upgrade_schema(database)
    return meta.assign_store_id(database, proposed, now)


def upgrade_schema(database: SqliteDatabase, *, contract: bool = False) -> list[str]:
    """Apply the versions that are missing; see :func:`.migrations.upgrade`."""
    with database.open_sqlalchemy() as connection:
        return migrations.upgrade(connection, contract=contract)


def parse_sqlite_url(url: str) -> Path:
    """Return the absolute path in a ``sqlite:///`` URL. Raises ``StoreLocationError`` for one without a file."""
    path = url.removeprefix("sqlite:///")
    if path == url or path in ("", ":memory:"):
        raise StoreLocationError(
            f"the store's URL {url!r} names no file",
            hint="Write sqlite:///relative/path.db or sqlite:////absolute/path.db.",
        )
    return Path(path).expanduser().absolute()
