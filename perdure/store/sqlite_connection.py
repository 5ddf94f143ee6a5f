"""Connections to a SQLite file, the threads that run work on them, and the translation of SQLite's errors.

Work goes to the driver directly: SQLAlchemy's connection costs 25 µs of CPU a statement and 60 µs a transaction more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import StoreError, StoreMismatchError
from . import meta
from .migrations import CURRENT_VERSION, VERSION_TABLE, check_still_usable
from .schema import MAX_KEYS, TABLES
from .statements import PARAMETER, Statement, load_statements

if TYPE_CHECKING:
    from sqlalchemy import Connection

logger = logging.getLogger("perdure.store")

SQL = load_statements("sqlite")
T = TypeVar("T")

# ---
# Translation of every SQLite failure into a ``StoreError`` that names the file and the way out.


SqliteFailure = sqlite3.Error | sqlite3.Warning | OSError
SQLITE_FAILURES = (sqlite3.Error, sqlite3.Warning, OSError)
"""Exceptions that work on a SQLite file may raise."""

_WAL_RETRY_SECONDS = 0.01

CLOSED = "the store is closed"
CLOSED_HINT = "Open it again with open()."

_CANNOT_OPEN_ERROR = (
    "the store {path} cannot be opened",
    "Make the file and its directory readable and writable, or set PERDURE_STORE_URL to another place.",
)
_NO_DIRECTORY_ERROR = (
    "the store {path} cannot be opened: there is no directory {directory}",
    "Create the directory, or set PERDURE_STORE_URL to another place.",
)
_IS_DIRECTORY_ERROR = ("the store {path} is a directory", "Set PERDURE_STORE_URL to the path of a file.")
_FILE_REMOVED_ERROR = (
    "the store {path} was removed while it was in use",
    "Put the file back (with its -wal file, if it has one); the work goes on with it.",
)
_UNKNOWN_ERROR = ("the store {path} fails", "Run `perdure doctor`, and `sqlite3 {path} 'PRAGMA integrity_check'`.")
_ERRORS = {
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL): (
        "the store {path} is locked by another process",
        "Close the program that holds it (a database browser?); the work is tried again.",
    ),
    (sqlite3.SQLITE_FULL,): (
        "the disk of the store {path} is full",
        "Free space there; nothing is half-written, and the work is tried again.",
    ),
    (sqlite3.SQLITE_READONLY,): (
        "the store {path} is read-only",
        "Make the file and its directory writable for this user (SQLite also writes {name}-wal and -shm).",
    ),
    (sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN): _CANNOT_OPEN_ERROR,
    (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT): (
        "{path} is not a SQLite database",
        "Set PERDURE_STORE_URL to another file, or restore this one from a backup.",
    ),
    (sqlite3.SQLITE_CORRUPT,): (
        "the store {path} is damaged",
        "Stop the workers; restore the file from a backup, or save what is left by `sqlite3 {path} .recover`.",
    ),
    (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOLFS): (
        "the disk of the store {path} fails to read or write",
        "Check the disk and the system's log; the work is tried again.",
    ),
    # SQLITE_ERROR is for instance a missing table: the statements are right.
    (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH): (
        "{path} is not laid out as a perdure store",
        "Another program changed it? Restore it from a backup, or set PERDURE_STORE_URL to another file.",
    ),
    (sqlite3.SQLITE_TOOBIG,): ("a value is too large for the store {path}", "SQLite takes up to 1 GB in one value."),
}
_AWAY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
_ERRORS_BY_CODE = {code: texts for codes, texts in _ERRORS.items() for code in codes}


def translate_sqlite_failure(error: SqliteFailure, path: Path) -> StoreError:
    """Translate ``error`` into a ``StoreError``. Total: unknown errors are translated too."""
    message, hint = _select_error_texts(error, path)
    names = {"path": path, "name": path.name, "directory": path.parent}
    error_name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    store_error = StoreError(f"{message.format(**names)} ({error_name}: {error})", hint=hint.format(**names))
    store_error.away = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _AWAY_CODES
    return store_error


def _select_error_texts(error: SqliteFailure, path: Path) -> tuple[str, str]:
    if isinstance(error, FileNotFoundError):
        return _FILE_REMOVED_ERROR if path.parent.is_dir() else _NO_DIRECTORY_ERROR
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return _CANNOT_OPEN_ERROR if isinstance(error, OSError) else _UNKNOWN_ERROR
    texts = _ERRORS_BY_CODE.get(code & 0xFF, _UNKNOWN_ERROR)  # extended codes keep the primary one in the low byte
    if path.is_dir():
        return _IS_DIRECTORY_ERROR
    if texts is _CANNOT_OPEN_ERROR and not path.parent.is_dir():
        return _NO_DIRECTORY_ERROR
    return texts


# ---
# A connection to the file.


@lru_cache(maxsize=1024)
def _bind_by_position(sql: str) -> tuple[str, list[str]]:
    """Return ``sql`` with ``?`` in the place of its named parameters, and their names in that order.

    SQLite looks for each named parameter among all of the statement: with 512 of them that takes longer than the query.
    """
    names: list[str] = []

    def replace(parameter: re.Match[str]) -> str:
        names.append(parameter[1])
        return "?"

    return PARAMETER.sub(replace, sql), names


def _expand_lists(sql: str, lists: Iterable[str], values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return ``sql`` with a parameter for each value of its lists, and the values by these.

    A list of up to ``MAX_KEYS`` is padded to a power of two, so that few statements are prepared.
    """
    for name in lists:
        keys = values.get(name)
        if keys is None:  # of a condition that is left out
            continue
        count = 1 << (len(keys) - 1).bit_length() if 0 < len(keys) <= MAX_KEYS else len(keys)
        padded = [*keys, *[keys[-1]] * (count - len(keys))] if keys else []
        named = {f"{name}_{index}": key for index, key in enumerate(padded)}
        sql = sql.replace(f"IN (:{name})", f"IN ({', '.join(f':{key}' for key in named)})")
        values = values | named
    return sql, values


class SqliteDatabase:
    """A ``Database`` over the driver's connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute

    def run(self, statement: Statement | str, /, **values: Any) -> sqlite3.Cursor:
        """See :class:`.schema.Database`."""
        if isinstance(statement, str):
            sql, names = _bind_by_position(statement)
            return self.connection.execute(sql, [values[name] for name in names])
        sql = statement.render("sqlite", values)
        if statement.lists:
            sql, values = _expand_lists(sql, statement.lists, values)
        sql, names = _bind_by_position(sql)
        return self.connection.execute(sql, statement.get_values(names, values))

    @contextmanager
    def open_sqlalchemy(self) -> Iterator[Connection]:
        """Wrap the connection for SQLAlchemy, inside the open transaction: for migrations. Raises the
        driver's errors."""
        from sqlalchemy import create_engine
        from sqlalchemy.exc import SQLAlchemyError
        from sqlalchemy.pool import NullPool

        engine = create_engine("sqlite://", creator=lambda: _BorrowedConnection(self.connection), poolclass=NullPool)
        try:
            with engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            original = getattr(error, "orig", None)
            # Not its str(), which is the statement with all parameters.
            other = sqlite3.DatabaseError(f"{type(error).__name__}: {error.args[0] if error.args else ''}")
            raise (original if isinstance(original, SqliteFailure) else other) from None


class _BorrowedConnection:
    """A driver's connection whose transaction belongs to the caller."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        pass

    rollback = close = commit


DatabaseWork = Callable[[SqliteDatabase], Any]


WorkResult = tuple[Any, BaseException | None]
"""What a work returned, or its exception."""


@dataclass
class StoreFile:
    """The file of a store, for all sessions of one ``SqliteStore``."""

    path: Path
    store_id: str = ""
    """Once set, another store at the same path is refused."""
    create: bool = False
    """Whether a writer makes the file if it is missing."""


class SqliteSession:
    """One connection to the file, for one thread. After a failure the next work opens a new one.

    ``busy_timeout``: seconds to wait for another process's transaction.
    """

    def __init__(self, file: StoreFile, *, write: bool, busy_timeout: float) -> None:
        self._file = file
        self._path = file.path
        self._is_writer = write
        self._busy_timeout = busy_timeout
        self._database: SqliteDatabase | None = None
        self._file_identity: tuple[int, ...] | None = None
        self._is_snapshot = False
        """Whether the connection does not see other connections' writes (see :meth:`_open_for_reading`)."""

    def run(self, work: Callable[[SqliteDatabase], T]) -> T:
        """Run ``work`` in a transaction of its own: all of it, or nothing. Raises ``StoreError``.

        A reader has no transaction: it runs one statement at a time, and SQLite keeps that consistent.
        """
        try:
            database = self._get_database()
            if not self._is_writer:
                return work(database)
            # Lock for writing at once: a later lock could fail in the middle, where waiting does not help.
            database.execute("BEGIN IMMEDIATE")
            result = work(database)
            database.execute("COMMIT")
            return result
        except SQLITE_FAILURES as error:
            self.close()
            raise translate_sqlite_failure(error, self._path) from error
        except BaseException:
            self.close()
            raise

    def run_all(self, works: Sequence[DatabaseWork]) -> list[WorkResult]:
        """Run all of ``works``: those of a writer in one transaction, which shares the sync of the disk.

        If that fails, each alone, so that each gets its own result; they are all safe to run again.
        """
        if self._is_writer and len(works) > 1:
            has_begun = False

            def run_together(database: SqliteDatabase) -> list[WorkResult]:
                nonlocal has_begun
                has_begun = True
                return [(work(database), None) for work in works]

            try:
                return self.run(run_together)
            except Exception as error:
                if not has_begun and isinstance(error, StoreError):  # locked, read-only, removed: the same for all
                    return [(None, _copy_store_error(error)) for _ in works]
        return [self._run_alone(work) for work in works]

    def _run_alone(self, work: DatabaseWork) -> WorkResult:
        try:
            return self.run(work), None
        except BaseException as error:  # any exception belongs to the waiting caller
            return None, error

    def close(self) -> None:
        """Close the connection, and with it an open transaction. Errors are ignored: they were raised before."""
        database, self._database = self._database, None
        if database is not None:
            with suppress(*SQLITE_FAILURES):
                database.connection.close()

    def _get_database(self) -> SqliteDatabase:
        """Return a connection to the file that now has this path.

        A file that is removed or replaced stays alive for processes that have it open, and writes to it are lost
        without an error: so every use checks whether the path still names the same file.
        """
        if self._database is not None:
            if self._read_file_identity() == self._file_identity:
                return self._database
            self.close()
        if self._is_writer and self._file.create:
            self._create_file()
        self._is_snapshot = not self._is_writer
        before = self._read_file_identity()  # also because SQLite's own error for a missing file says less
        self._database = SqliteDatabase(self._open_for_writing() if self._is_writer else self._open_for_reading(before))
        self._file_identity = before if self._is_snapshot else before[:2]
        if self._file.store_id:
            self._check_same_store(self._database)
        return self._database

    def _read_file_identity(self) -> tuple[int, ...]:
        """Return the identity of the file at the path; () if a reader may find none, because no store is known to be
        there."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            if self._is_writer or self._file.store_id:
                raise
            return ()
        if not self._is_snapshot:
            return stat.st_dev, stat.st_ino
        wal = (0, 0)
        with suppress(FileNotFoundError):
            changes = self._path.with_name(f"{self._path.name}-wal").stat()
            wal = changes.st_size, changes.st_mtime_ns
        return stat.st_dev, stat.st_ino, *wal, stat.st_size, stat.st_mtime_ns

    def _create_file(self) -> None:
        """Create the file, readable by its owner alone from the start; SQLite gives -wal and -shm the mode of the
        file."""
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _check_same_store(self, database: SqliteDatabase) -> None:
        for version, usable_from in database.run(meta.SQL.read_version):
            check_still_usable(version, usable_from)
        store_id = meta.read_store_id(database)
        if store_id != self._file.store_id:
            raise StoreMismatchError(
                f"{self._path} is now another store ({store_id}) than the one that was opened ({self._file.store_id})",
                hint="Put the right file back, or restart this program to use the new one.",
            )

    def _open_for_writing(self) -> sqlite3.Connection:
        connection = self._open_connection("mode=rw")
        try:
            self._use_wal(connection)
            # FULL, not NORMAL: kill -9 loses nothing with either, but a power loss may take the last
            # commits under NORMAL, while Temporal, which syncs its own, remembers the heads and effects
            # in them. Measured: 0.2 ms wall and 0.1 ms CPU per commit on a disk that syncs in 0.1 ms.
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch a new file to WAL. Two that do so at once are in each other's way, and SQLite then refuses one at
        once, without waiting."""
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() >= deadline:
                    raise
            time.sleep(_WAL_RETRY_SECONDS)

    def _open_for_reading(self, identity: tuple[int, ...]) -> sqlite3.Connection:
        """Open a connection that writes nothing into the file.

        SQLite reads a file in WAL mode with the help of -wal and -shm beside it, which it makes. If it may not, as on a
        read-only disk, and no -wal has changes that the file lacks, the file is read as ``immutable``. If no store was
        ever made, an empty one in memory is read until there is one. These two connections do not see other writes, so
        a change of the file makes the next work open it again.
        """
        if not identity:
            return _open_empty_store()
        connection = self._open_connection("mode=ro")
        try:
            tables = SqliteDatabase(connection).run(SQL.count_tables).fetchone()[0]
        except sqlite3.Error as error:
            connection.close()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            refused = code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            wal_bytes = identity[2]
            if not refused or wal_bytes or os.access(self._path.parent, os.W_OK):
                raise
            logger.info("the store %s is on a disk that cannot be written: it is read as it is now", self._path)
            return self._open_connection("mode=ro&immutable=1")
        if not tables and not self._file.store_id:
            connection.close()
            return _open_empty_store()
        self._is_snapshot = False
        return connection

    def _open_connection(self, options: str) -> sqlite3.Connection:
        uri = f"{self._path.as_uri()}?{options}"
        # Used by one thread at a time, but not always the same: another one may close it.
        return sqlite3.connect(uri, uri=True, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)


def _open_empty_store() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    # Built, not in a file: what the tables are is in the migrations alone, and these take 150 ms to run.
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    connection.execute(f"CREATE TABLE {VERSION_TABLE} AS SELECT '{CURRENT_VERSION}' AS version_num")
    return connection


def _copy_store_error(error: StoreError) -> StoreError:
    """Copy an error, one for each waiter: a traceback grows wherever an error is raised."""
    copy = type(error)(error.message, hint=error.hint)
    copy.__cause__ = error.__cause__
    return copy


# ---
# A thread that runs work for event loops, in order, all that is queued in one batch.
#
# Work that was handed over is always run to its end, even if its caller stops waiting: a cancelled activity must
# not lose the outcome of an effect that was paid. One hand-over costs 35 µs less than ``run_in_executor``.


_MAX_WORKS_AT_ONCE = 64  # enough to share a disk sync, few enough for short waits


class StoreThread:
    """One thread and its session. A daemon, so that a program that does not call ``close`` still exits."""

    def __init__(self, name: str, session: SqliteSession) -> None:
        self._session = session
        self._queue: SimpleQueue[tuple[DatabaseWork | None, asyncio.Future[Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run_thread, name=name, daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Finish the work that was handed over, close the session, and end the thread."""
        if not self._closed:
            await self.run(None)
            self._thread.join()  # it has nothing left to do

    def run(self, work: Callable[[SqliteDatabase], T] | None) -> asyncio.Future[T]:
        """Queue ``work``, or with None the end. The future gets its result or exception. Raises ``StoreError`` after
        :meth:`close`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:  # otherwise work could be queued after the end
            if self._closed:
                raise StoreError(CLOSED, hint=CLOSED_HINT)
            self._closed = work is None
            self._queue.put((work, future))
        return future

    def _run_thread(self) -> None:
        ended = False
        while not ended:
            ended = self._run_queued()  # a frame of its own: an idle thread keeps nothing alive

    def _run_queued(self) -> bool:
        """Run the queued work; true after the end."""
        queued = [self._queue.get()]
        while len(queued) < _MAX_WORKS_AT_ONCE and queued[-1][0] is not None and not self._queue.empty():
            queued.append(self._queue.get_nowait())  # there is one: this thread is the only consumer
        results = self._session.run_all([work for work, _ in queued if work is not None])
        ended = queued[-1][0] is None
        if ended:
            self._session.close()
            results.append((None, None))
        resolutions: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], WorkResult]]] = defaultdict(list)
        for (_, future), result in zip(queued, results, strict=True):
            resolutions[future.get_loop()].append((future, result))
        for loop, resolved in resolutions.items():
            with suppress(RuntimeError):  # the loop was closed meanwhile, with its waiters
                loop.call_soon_threadsafe(_resolve_futures, resolved)
        return ended


def _resolve_futures(resolved: list[tuple[asyncio.Future[Any], WorkResult]]) -> None:
    for future, (value, error) in resolved:
        if future.done():  # cancelled meanwhile
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
