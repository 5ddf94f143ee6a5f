"""A connection to a SQLite file, and how work is done on it.

Work goes to the driver directly: SQLAlchemy's connection costs 25 µs of CPU a statement and 60 µs a transaction more.
"""

from __future__ import annotations

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
from .sqlite_errors import FAILURES, translate
from .thread import Done

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
        self._file: tuple[int, int] | None = None
        self.store_id: str | None = None
        """Until it is set, a writer creates the file; from then on another store in its place is refused."""

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
        create = self._write and self.store_id is None
        if not create:
            self._identity()  # SQLite's own word for a missing file says less
        self._database = SqliteDatabase(self._connect(create))
        self._file = self._identity()
        if self.store_id is not None:
            self._check(self._database)
        return self._database

    def _identity(self) -> tuple[int, int]:
        stat = self._path.stat()
        return stat.st_dev, stat.st_ino

    def _check(self, database: SqliteDatabase) -> None:
        found = sql.store_id(database)
        if found != self.store_id:
            raise StoreMismatchError(
                f"{self._path} is now another store ({found}) than the one that was opened ({self.store_id})",
                hint="Put the right file back, or restart this program to use the new one.",
            )

    def _connect(self, create: bool) -> sqlite3.Connection:
        uri = f"{self._path.as_uri()}?mode={'rwc' if create else 'rw'}"
        connection = sqlite3.connect(uri, uri=True, timeout=self._busy_timeout, isolation_level=None)
        try:
            if self._write:
                connection.execute("PRAGMA journal_mode = WAL")
                # FULL, not NORMAL: kill -9 loses nothing with either, but a power loss may take the last
                # commits under NORMAL, while Temporal, which syncs its own, remembers the heads and effects
                # in them. Measured: 0.2 ms wall and 0.1 ms CPU per commit on a disk that syncs in 0.1 ms.
                connection.execute("PRAGMA synchronous = FULL")
            else:
                connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        return connection


def _copy(error: StoreError) -> StoreError:
    """One for each waiter: a traceback grows wherever an error is raised."""
    copy = type(error)(error.message, hint=error.hint)
    copy.__cause__ = error.__cause__
    return copy
