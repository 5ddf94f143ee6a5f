"""A connection to a SQLite file, and how work is done on it.

Work goes to the driver directly: SQLAlchemy's connection costs 25 µs of CPU a statement and 60 µs a transaction more.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.pysqlite import dialect as pysqlite
from sqlalchemy.pool import NullPool

from ..errors import StoreError, StoreMismatchError
from . import sql
from .migrations import CURRENT, VERSION_TABLE
from .sqlite_errors import FAILURES, translate
from .tables import metadata
from .thread import Done

logger = logging.getLogger("perdure.store")

T = TypeVar("T")
DIALECT = pysqlite()


class SqliteDatabase:
    """A ``Database`` over the driver's connection."""

    dialect = DIALECT

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute

    @contextmanager
    def alchemy(self) -> Iterator[sa.Connection]:
        """The same connection for SQLAlchemy, inside the transaction that is open: for the schema, not for rows."""
        engine = sa.create_engine("sqlite://", creator=lambda: _Borrowed(self.connection), poolclass=NullPool)
        with engine.connect() as connection:
            yield connection


class _Borrowed:
    """A driver's connection whose transaction is somebody else's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        pass

    rollback = close = commit


Work = Callable[[SqliteDatabase], Any]


class Session:
    """One connection to the file, for one thread. After a failure the next work opens a new one.

    ``busy_timeout``: seconds to wait for another process's transaction.
    """

    def __init__(self, path: Path, *, write: bool, busy_timeout: float) -> None:
        self._path = path
        self._write = write
        self._busy_timeout = busy_timeout
        self._database: SqliteDatabase | None = None
        self._file: tuple[int, ...] | None = None
        self._still = False
        """Whether the connection does not see what others write (see :meth:`_read_only`)."""
        self.create = False
        """Whether a writer makes the file where there is none."""
        self.store_id = ""
        """Once it is set, another store in the place of this one is refused."""

    def run(self, work: Callable[[SqliteDatabase], T]) -> T:
        """``work`` in a transaction of its own: all of it, or nothing. Raises ``StoreError``.

        A reader has no transaction: it runs one statement at a time, and SQLite keeps that consistent.
        """
        try:
            database = self._connected()
            if not self._write:
                return work(database)
            # At once for writing: a lock taken later could fail in the middle, where waiting does not help.
            database.execute("BEGIN IMMEDIATE")
            result = work(database)
            database.execute("COMMIT")
            return result
        except FAILURES as error:
            self.close()
            raise translate(error, self._path) from error
        except BaseException:
            self.close()
            raise

    def run_all(self, works: Sequence[Work]) -> list[Done]:
        """All of ``works``: those of a writer in one transaction, which shares the sync of the disk.

        If that fails, each alone, so that each gets its own answer; they are all safe to run again.
        """
        if self._write and len(works) > 1:
            begun = False

            def together(database: SqliteDatabase) -> list[Done]:
                nonlocal begun
                begun = True
                return [(work(database), None) for work in works]

            try:
                return self.run(together)
            except Exception as error:
                if not begun and isinstance(error, StoreError):  # locked, read-only, removed: so it is for all
                    return [(None, _copy(error)) for _ in works]
        return [self._attempt(work) for work in works]

    def _attempt(self, work: Work) -> Done:
        try:
            return self.run(work), None
        except BaseException as error:  # whatever it is, it belongs to the one who waits
            return None, error

    def close(self) -> None:
        """Give the connection back, and with it an open transaction. What fails here has failed before."""
        database, self._database = self._database, None
        if database is not None:
            with suppress(*FAILURES):
                database.connection.close()

    def _connected(self) -> SqliteDatabase:
        """The connection, to the file that now has this path.

        A file that is removed or replaced stays alive for who has it open, and what is written to it is lost
        without an error: so every use looks whether the path still names the same file.
        """
        if self._database is not None:
            if self._identity() == self._file:
                return self._database
            self.close()
        if self._write and self.create:
            self._make_file()
        self._still = not self._write
        before = self._identity()  # also because SQLite's own word for a missing file says less
        self._database = SqliteDatabase(self._connect() if self._write else self._read_only(before))
        self._file = before if self._still else before[:2]
        if self.store_id:
            self._check(self._database)
        return self._database

    def _identity(self) -> tuple[int, ...]:
        """Of the file at the path; () where a reader may find none, because no store is known to be there."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            if self._write or self.store_id:
                raise
            return ()
        if not self._still:
            return stat.st_dev, stat.st_ino
        wal = (0, 0)
        with suppress(FileNotFoundError):
            changes = self._path.with_name(f"{self._path.name}-wal").stat()
            wal = changes.st_size, changes.st_mtime_ns
        return stat.st_dev, stat.st_ino, *wal, stat.st_size, stat.st_mtime_ns

    def _make_file(self) -> None:
        """Readable by its owner alone from its first moment on; SQLite gives -wal and -shm the mode of the file."""
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _check(self, database: SqliteDatabase) -> None:
        found = sql.store_id(database)
        if found != self.store_id:
            raise StoreMismatchError(
                f"{self._path} is now another store ({found}) than the one that was opened ({self.store_id})",
                hint="Put the right file back, or restart this program to use the new one.",
            )

    def _connect(self) -> sqlite3.Connection:
        connection = self._opened("mode=rw")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # FULL, not NORMAL: kill -9 loses nothing with either, but a power loss may take the last
            # commits under NORMAL, while Temporal, which syncs its own, remembers the heads and effects
            # in them. Measured: 0.2 ms wall and 0.1 ms CPU per commit on a disk that syncs in 0.1 ms.
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _read_only(self, identity: tuple[int, ...]) -> sqlite3.Connection:
        """A connection that writes nothing into the file.

        SQLite reads a file in WAL mode with the help of -wal and -shm beside it, which it makes. Where it may not, as
        on a disk that is mounted read-only, and no -wal has changes that the file lacks, the file is read as one that
        cannot change: ``immutable``. Where no store was ever made, an empty one in memory is read, until there is one.
        These two connections do not see what others write, so a change of the file makes the next work open it anew.
        """
        if not identity:
            return _empty()
        connection = self._opened("mode=ro")
        try:
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        except sqlite3.Error as error:
            connection.close()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            refused = code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            wal_bytes = identity[2]
            if not refused or wal_bytes or os.access(self._path.parent, os.W_OK):
                raise
            logger.info("the store %s is on a disk that cannot be written: it is read as it is now", self._path)
            return self._opened("mode=ro&immutable=1")
        if not tables and not self.store_id:
            connection.close()
            return _empty()
        self._still = False
        return connection

    def _opened(self, options: str) -> sqlite3.Connection:
        uri = f"{self._path.as_uri()}?{options}"
        # Used by one thread at a time, but not always the same: who closes it may be another one.
        return sqlite3.connect(uri, uri=True, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)


def _empty() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with SqliteDatabase(connection).alchemy() as alchemy:
        metadata.create_all(alchemy)
    connection.execute(f"CREATE TABLE {VERSION_TABLE} AS SELECT '{CURRENT}' AS version_num")
    return connection


def _copy(error: StoreError) -> StoreError:
    """One for each waiter: a traceback grows wherever an error is raised."""
    copy = type(error)(error.message, hint=error.hint)
    copy.__cause__ = error.__cause__
    return copy
