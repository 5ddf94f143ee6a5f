"""A SQLite file as source or target of a copy (:mod:`.copies`).

Statements of any table are built here, of the names of the schema: a file would have each of them 24 times.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from . import meta, migrations
from .copies import COPIED_TABLES, PAGE_BYTES, PAGE_ROWS, Identity, Row, build_finished_error, build_occupied_error
from .meta import assign_store_id
from .schema import TABLES, as_bytes
from .sqlite import is_current, list_tables, parse_sqlite_url, upgrade_schema
from .sqlite_connection import SQLITE_FAILURES, SqliteDatabase, SqliteSession, StoreFile, translate_sqlite_failure
from .statements import load_statements

SQL = load_statements("copies")
T = TypeVar("T")

_WRITER_SECONDS = 60.0
"""Time to wait for the transaction of another process."""


class SqliteEnd:
    """A :class:`.copies.CopyEnd`. Its work blocks the event loop, which a command has for itself."""

    def __init__(self, url: str, *, is_source: bool) -> None:
        self._path = parse_sqlite_url(url)
        self.place = str(self._path)
        self._is_source = is_source
        self._opened: sqlite3.Connection | None = None
        self._data_version = 0

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._opened is None:
                uri = f"{self._path.as_uri()}?mode={'ro' if self._is_source else 'rw'}"
                self._opened = sqlite3.connect(uri, uri=True, timeout=_WRITER_SECONDS, isolation_level=None)
            return work(self._opened)
        except SQLITE_FAILURES as error:
            raise translate_sqlite_failure(error, self._path) from error

    async def aclose(self) -> None:
        """See :class:`.copies.CopyEnd`."""
        if self._opened is not None:
            with suppress(*SQLITE_FAILURES):
                self._opened.close()

    async def read_identity(self) -> Identity | None:
        """See :class:`.copies.CopyEnd`."""
        if not self._path.exists() or not self._path.stat().st_size:
            return None
        return self._run(self._read_identity)

    def _read_identity(self, connection: sqlite3.Connection) -> Identity | None:
        if self._is_source:
            connection.execute("BEGIN")
        if migrations.VERSION_TABLE not in list_tables(database := SqliteDatabase(connection)):
            is_current(database)  # raises the error for another program's file
            return None
        row = database.run(SQL.read_identity).fetchone()
        self._data_version = _read_data_version(connection)
        return None if row is None else Identity(*row)

    async def find_change(self) -> str | None:
        """See :class:`.copies.CopyEnd`."""

        def compare(connection: sqlite3.Connection) -> str | None:
            connection.execute("COMMIT")
            return None if _read_data_version(connection) == self._data_version else "by another process"

        return self._run(compare)

    async def read_key(self, table: str) -> tuple[str, ...]:
        """See :class:`.copies.CopyEnd`."""
        columns = self._run(lambda connection: connection.execute(f"PRAGMA table_info({table})").fetchall())
        return tuple(name for place, name in sorted((column[5], column[1]) for column in columns) if place)

    async def read_page(self, table: str, key: Sequence[str], after: Row | None) -> list[Row]:
        """See :class:`.copies.CopyEnd`."""
        names = ", ".join(key)
        behind = f"WHERE ({names}) > ({', '.join('?' * len(key))})" if after is not None else ""
        select = f"SELECT {', '.join(TABLES[table])} FROM {table} {behind} ORDER BY {names} LIMIT {PAGE_ROWS}"  # noqa: S608  # names of the schema

        def read(connection: sqlite3.Connection) -> list[Row]:
            types = {column[1]: column[2] for column in connection.execute(f"PRAGMA table_info({table})")}
            is_binary = [types[column] == "BLOB" for column in TABLES[table]]
            rows: list[Row] = []
            size = 0
            cursor = connection.execute(select, after or ())
            for values in cursor:
                row = tuple(
                    as_bytes(value) if binary and value is not None else value
                    for value, binary in zip(values, is_binary, strict=True)
                )
                rows.append(row)
                size += sum(len(value) for value in row if isinstance(value, str | bytes))
                if size > PAGE_BYTES:
                    break
            cursor.close()
            return rows

        return self._run(read)

    async def create(self, identity: Identity) -> None:
        """See :class:`.copies.CopyEnd`."""

        def create(database: SqliteDatabase) -> None:
            if migrations.VERSION_TABLE not in list_tables(database):
                is_current(database)  # raises the error for another program's file
                upgrade_schema(database)
            unfinished = migrations.UNFINISHED_COPY
            store_id = assign_store_id(database, identity.store_id, identity.created_at, unfinished)
            if store_id == identity.store_id:
                return
            for table in COPIED_TABLES:
                if database.run(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:  # noqa: S608  # a constant
                    raise build_occupied_error(self.place, store_id)
            names = {"store_id": identity.store_id, "created_at": identity.created_at}
            database.run(SQL.begin_copy, **names, unfinished=unfinished)

        session = SqliteSession(StoreFile(self._path, create=True), write=True, busy_timeout=_WRITER_SECONDS)
        try:
            session.run(create)
        finally:
            session.close()

    async def find_last_key(self, table: str, key: Sequence[str]) -> Row | None:
        """See :class:`.copies.CopyEnd`."""
        order = ", ".join(f"{column} DESC" for column in key)
        select = f"SELECT {', '.join(key)} FROM {table} ORDER BY {order} LIMIT 1"  # noqa: S608  # names of the schema
        row: Row | None = self._run(lambda connection: connection.execute(select).fetchone())
        return row

    async def write_page(self, table: str, rows: Sequence[Row]) -> None:
        """See :class:`.copies.CopyEnd`."""
        columns = TABLES[table]
        insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608  # names of the schema
        self._write(lambda connection: connection.executemany(insert, rows))

    async def clear(self, table: str) -> None:
        """See :class:`.copies.CopyEnd`."""
        self._write(lambda connection: connection.execute(f"DELETE FROM {table}"))  # noqa: S608  # names of the schema

    async def finish(self, usable_from: str) -> None:
        """See :class:`.copies.CopyEnd`."""
        self._write(
            lambda connection: SqliteDatabase(connection).run(meta.SQL.set_usable_from, usable_from=usable_from)
        )

    def _write(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                database = SqliteDatabase(connection)
                if database.run(SQL.find_unfinished, unfinished=migrations.UNFINISHED_COPY).fetchone() is None:
                    raise build_finished_error(self.place)
                work(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise

        self._run(write)


def _read_data_version(connection: sqlite3.Connection) -> int:
    """Return the number that changes with every commit of another connection."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
