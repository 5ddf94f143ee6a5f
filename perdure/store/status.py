"""The state of a store for operators: where it is, its schema, how much it holds. Reads only, also a store that this
perdure cannot use."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from ..errors import StoreError
from . import is_sqlite_url, memory, meta, migrations
from .encrypted_bodies import build_key_counts_select, group_by_key
from .objects import RECORD_NAME, read_owner
from .schema import TABLES
from .sqlite import list_tables, parse_sqlite_url
from .sqlite_connection import SQLITE_FAILURES, SqliteDatabase, translate_sqlite_failure
from .statements import Statement, load_statements

SQL = load_statements("status")
COUNTED_BYTES = 64 * 1024 * 1024
"""The rows of a larger table are estimated on PostgreSQL, which counts by reading all of it."""


Fetch = Callable[..., Awaitable[list[Any]]]
"""Runs a statement with the values of its parameters, and returns its rows."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The size of a table. ``bytes`` with indexes and large values; None where the database does not say."""

    rows: int
    is_estimate: bool
    bytes: int | None


@dataclass(slots=True)
class ObjectStatus:
    """Where large blobs are objects. ``owner``: the store whose marker is at the location that is used."""

    recorded_url: str | None
    used_url: str | None
    owner: str | None = None
    flaw: str | None = None
    """Why this process cannot use them."""


@dataclass(slots=True)
class StoreStatus:
    """The state of a store. Times are ISO 8601."""

    place: str
    kind: str
    server: str
    store_id: str | None
    created_at: str | None
    schema: str
    known_schema: str
    """The newest version that this perdure knows."""
    usable_from: str | None
    """The oldest version whose code may use the store."""
    state: str
    """``current``, ``to be expanded``, ``to be contracted``, ``newer``, ``too new`` or ``unfinished copy``."""
    bytes: int
    oldest_run: str | None
    newest_run: str | None
    tables: dict[str, TableStatus] = field(default_factory=dict)
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    """The keys that bodies are encrypted with: of each the rows, by table. Other bodies are plain."""
    objects: ObjectStatus | None = None


async def read_store_status(url: str, *, blob_url: str | None = None, counts: bool = True) -> StoreStatus:
    """Read the state of the store at ``url``; ``blob_url`` is where this process looks for large blobs. Without
    ``counts`` it has no ``tables``, and costs the same whatever the store's size.

    Raises ``StoreError``, also if there is no store.
    """
    if is_sqlite_url(url):
        return await _read_sqlite_status(url, blob_url, counts)
    return await _read_postgres_status(url, blob_url, counts)


async def _read_sqlite_status(url: str, blob_url: str | None, counts: bool) -> StoreStatus:
    path = parse_sqlite_url(url)
    if not path.exists():
        raise _build_missing_error(str(path))
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
            database = SqliteDatabase(connection)

            async def fetch(statement: Statement | str, **values: Any) -> list[Any]:
                return database.run(statement, **values).fetchall()

            names = set(list_tables(database))
            files = (path, path.with_name(f"{path.name}-wal"))
            size = sum(file.stat().st_size for file in files if file.exists())
            server = f"SQLite {sqlite3.sqlite_version}"
            status = await _read_status(fetch, str(path), "sqlite", server, size, blob_url, names)
            # Built, not in a file: the tables are those that a store of an older schema has.
            for table in (table for table in TABLES if table in names and counts):  # 600,000 rows: 6 ms, in an index
                [(rows,)] = await fetch(f"SELECT count(*) FROM {table}")  # noqa: S608  # names of the schema
                status.tables[table] = TableStatus(rows, False, None)
            if counts:
                status.keys = group_by_key(await fetch(build_key_counts_select(names)))
            return status
    except SQLITE_FAILURES as error:
        raise translate_sqlite_failure(error, path) from error


async def _read_postgres_status(url: str, blob_url: str | None, counts: bool) -> StoreStatus:
    from .postgres_connection import bind_statement, open_connection, parse_postgres_url

    address = parse_postgres_url(url)
    async with open_connection(address) as connection:

        async def fetch(statement: Statement | str, **values: Any) -> list[Any]:
            sql, arguments = bind_statement(statement, values)
            rows: list[Any] = await connection.fetch(sql, *arguments)
            return rows

        postgres_sql = load_statements("postgres")
        sizes = await fetch(postgres_sql.list_table_sizes)
        tables = {row[0]: row for row in sizes if row[0] in TABLES or row[0] == migrations.VERSION_TABLE}
        size = sum(row[2] for row in tables.values())
        [(server,)] = await fetch(postgres_sql.read_server)
        status = await _read_status(fetch, address.place, "postgresql", server, size, blob_url, set(tables))
        for table in (table for table in TABLES if table in tables and counts):
            _, estimate, table_bytes = tables[table]
            is_estimate = table_bytes > COUNTED_BYTES and estimate >= 0
            [(rows,)] = [(int(estimate),)] if is_estimate else await fetch(f"SELECT count(*) FROM {table}")  # noqa: S608  # names of the schema
            status.tables[table] = TableStatus(rows, is_estimate, table_bytes)
        if counts:
            status.keys = group_by_key(await fetch(build_key_counts_select(tables)))
        return status


async def _read_status(
    fetch: Fetch, place: str, kind: str, server: str, size: int, blob_url: str | None, tables: set[str]
) -> StoreStatus:
    if migrations.VERSION_TABLE not in tables:
        raise _build_missing_error(place)
    [(version, usable_from, store_id, created_at)] = await fetch(meta.SQL.read_identity)
    [(oldest, newest)] = await fetch(SQL.read_run_times)
    location = await fetch(memory.SQL.recall, namespace=RECORD_NAME[0], key=RECORD_NAME[1])
    recorded_url = json.loads(location[0][0])["url"] if location else None
    return StoreStatus(
        place=place,
        kind=kind,
        server=server,
        store_id=store_id,
        created_at=created_at,
        schema=version,
        known_schema=migrations.CURRENT_VERSION,
        usable_from=usable_from,
        state=_describe_schema(version, usable_from),
        bytes=size,
        oldest_run=oldest,
        newest_run=newest,
        objects=await _read_object_status(recorded_url, blob_url, store_id),
    )


def _describe_schema(version: str, usable_from: str | None) -> str:
    if usable_from == migrations.UNFINISHED_COPY:
        return "unfinished copy"
    if version > migrations.CURRENT_VERSION:
        return "too new" if (usable_from or version) > migrations.CURRENT_VERSION else "newer"
    if version < migrations.NEEDED_VERSION:
        return "to be expanded"
    return "current" if version == migrations.CURRENT_VERSION else "to be contracted"


async def _read_object_status(recorded_url: str | None, used_url: str | None, store_id: str) -> ObjectStatus | None:
    if recorded_url is None and used_url is None:
        return None
    status = ObjectStatus(recorded_url, used_url)
    if used_url is None:
        status.flaw = f"PERDURE_BLOB_URL is not set: set it to {recorded_url}"
        return status
    try:
        status.owner = await read_owner(used_url)
    except StoreError as error:
        status.flaw = str(error)
        return status
    if status.owner not in (None, store_id):
        status.flaw = f"{used_url} has the objects of another store"
    elif status.owner is None and recorded_url is not None:
        status.flaw = f"{used_url} does not have the objects of this store: they were at {recorded_url}"
    return status


def _build_missing_error(place: str) -> StoreError:
    return StoreError(
        f"there is no store at {place}",
        hint="Workers make it when they start, and `perdure store migrate` does; or correct PERDURE_STORE_URL.",
    )
