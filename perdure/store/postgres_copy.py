"""A PostgreSQL database as source or target of a copy (:mod:`.copies`).

Statements of any table are built here, of the names of the schema: a file would have each of them 24 times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from ..errors import StoreError
from . import meta, migrations
from .copies import COPIED_TABLES, PAGE_BYTES, PAGE_ROWS, Identity, Row, build_finished_error, build_occupied_error
from .postgres_connection import (
    POSTGRES_FAILURES,
    PostgresAddress,
    bind_statement,
    connect_to_postgres,
    escape_text,
    parse_postgres_url,
    translate_postgres_failure,
    unescape_text,
)
from .postgres_migration import LOCK_KEY, MIGRATION_SECONDS, migrate_postgres
from .schema import TABLES
from .statements import Statement, load_statements

SQL, POSTGRES_SQL = load_statements("copies"), load_statements("postgres")
T = TypeVar("T")

# What changes with every row that is inserted, updated or deleted. Reads no large values.
SELECT_FINGERPRINT = "SELECT count(*), sum(hashtextextended(ctid::text || ' ' || xmin::text, 0)::numeric) FROM {table}"
# A page ends after the row with which it exceeds the bytes; the server sends no more than that.
SELECT_PAGE = """
    SELECT {columns} FROM (
        SELECT *, sum({size}) OVER (ORDER BY {key}) - {size} AS bytes_before
        FROM (SELECT * FROM {table} {behind} ORDER BY {key} LIMIT {rows}) AS page
    ) AS sized WHERE bytes_before <= {bytes} ORDER BY {key}"""


class PostgresEnd:
    """A :class:`.copies.CopyEnd`. A source is read in one ``REPEATABLE READ`` transaction, also from a standby."""

    def __init__(self, address: PostgresAddress, connection: Any, *, is_source: bool) -> None:
        self._address = address
        self._connection = connection
        self._is_source = is_source
        self._snapshot: Any = None
        self._fingerprints: dict[str, Any] = {}
        self.place = address.place

    @classmethod
    async def open(cls, url: str, *, is_source: bool) -> PostgresEnd:
        """Connect. Raises ``StoreError``."""
        address = replace(parse_postgres_url(url), command_timeout=MIGRATION_SECONDS)
        return cls(address, await connect_to_postgres(address), is_source=is_source)

    async def _run(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except POSTGRES_FAILURES as error:
            raise translate_postgres_failure(error, self._address) from error

    async def _fetch(self, statement: Statement, **values: Any) -> list[Any]:
        sql, arguments = bind_statement(statement, values)
        rows: list[Any] = await self._connection.fetch(sql, *arguments)
        return rows

    async def _fetch_value(self, statement: Statement, **values: Any) -> Any:
        rows = await self._fetch(statement, **values)
        return rows[0][0] if rows else None

    async def aclose(self) -> None:
        """See :class:`.copies.CopyEnd`."""
        with suppress(*POSTGRES_FAILURES):
            await self._connection.close(timeout=5)

    async def read_identity(self) -> Identity | None:
        """See :class:`.copies.CopyEnd`."""
        if self._is_source:
            self._snapshot = self._connection.transaction(isolation="repeatable_read", readonly=True)
            await self._run(self._snapshot.start())
        if await self._run(self._fetch_value(POSTGRES_SQL.find_version_table)) is None:
            return None
        rows = await self._run(self._fetch(SQL.read_identity))
        if self._is_source:
            self._fingerprints = await self._read_fingerprints()
        return Identity(*rows[0]) if rows else None

    async def _read_fingerprints(self) -> dict[str, Any]:
        return {
            table: tuple(await self._run(self._connection.fetchrow(SELECT_FINGERPRINT.format(table=table))))
            for table in COPIED_TABLES
        }

    async def find_change(self) -> str | None:
        """See :class:`.copies.CopyEnd`."""
        await self._run(self._snapshot.rollback())
        present = await self._read_fingerprints()
        changed = [table for table in COPIED_TABLES if present[table] != self._fingerprints[table]]
        return f"tables {', '.join(changed)}" if changed else None

    async def read_key(self, table: str) -> tuple[str, ...]:
        """See :class:`.copies.CopyEnd`."""
        rows = await self._run(self._fetch(POSTGRES_SQL.list_key_columns, table=table))
        return tuple(name for (name,) in rows)

    async def read_page(self, table: str, key: Sequence[str], after: Row | None) -> list[Row]:
        """See :class:`.copies.CopyEnd`."""
        sized = {name for (name,) in await self._run(self._fetch(POSTGRES_SQL.list_sized_columns, table=table))}
        names = ", ".join(key)
        parameters = ", ".join(f"${number}" for number in range(1, len(key) + 1))
        select = SELECT_PAGE.format(
            columns=", ".join(TABLES[table]),
            size="(" + " + ".join(["0", *(f"coalesce(octet_length({name}), 0)" for name in sorted(sized))]) + ")",
            key=names,
            table=table,
            behind="" if after is None else f"WHERE ({names}) > ({parameters})",
            rows=PAGE_ROWS,
            bytes=PAGE_BYTES,
        )
        rows = await self._run(self._connection.fetch(select, *map(_escape, after or ())))
        return [tuple(unescape_text(value) if type(value) is str else value for value in row) for row in rows]

    async def create(self, identity: Identity) -> None:
        """See :class:`.copies.CopyEnd`."""
        if not await self._run(self._fetch_value(POSTGRES_SQL.lock_copy, key=LOCK_KEY + 1)):
            raise StoreError(f"another `perdure store copy` writes to {self.place}", hint="Wait until it has ended.")
        if await self.read_identity() is None:
            unfinished = migrations.UNFINISHED_COPY
            await migrate_postgres(self._address, identity.store_id, identity.created_at, usable_from=unfinished)
        await self._run(self._mark_unfinished(identity))

    async def _mark_unfinished(self, identity: Identity) -> None:
        async with self._connection.transaction():
            store_id = await self._fetch_value(POSTGRES_SQL.lock_store_id)
            if store_id == identity.store_id:
                return
            for table in COPIED_TABLES:
                if await self._connection.fetchval(f"SELECT EXISTS (SELECT FROM {table})"):  # noqa: S608  # a constant
                    raise build_occupied_error(self.place, store_id)
            names = {"store_id": identity.store_id, "created_at": identity.created_at}
            await self._fetch(SQL.begin_copy, **names, unfinished=migrations.UNFINISHED_COPY)

    async def find_last_key(self, table: str, key: Sequence[str]) -> Row | None:
        """See :class:`.copies.CopyEnd`."""
        order = ", ".join(f"{column} DESC" for column in key)
        select = f"SELECT {', '.join(key)} FROM {table} ORDER BY {order} LIMIT 1"  # noqa: S608  # names of the schema
        row = await self._run(self._connection.fetchrow(select))
        return None if row is None else tuple(unescape_text(value) if type(value) is str else value for value in row)

    async def write_page(self, table: str, rows: Sequence[Row]) -> None:
        """See :class:`.copies.CopyEnd`."""
        records = [tuple(map(_escape, row)) for row in rows]
        await self._write(self._connection.copy_records_to_table, table, records=records, columns=TABLES[table])

    async def clear(self, table: str) -> None:
        """See :class:`.copies.CopyEnd`."""
        await self._write(self._connection.execute, f"DELETE FROM {table}")  # noqa: S608  # names of the schema

    async def finish(self, usable_from: str) -> None:
        """See :class:`.copies.CopyEnd`. Sets the sequences behind the copied numbers first."""
        for table in COPIED_TABLES:
            for column in TABLES[table]:
                find = self._fetch_value(POSTGRES_SQL.find_sequence, table=table, column=column)
                if (sequence := await self._run(find)) is not None:
                    select = f"SELECT setval('{sequence}', max({column})) FROM {table}"  # noqa: S608  # names of the schema
                    await self._run(self._connection.execute(select))
        await self._write(self._fetch, meta.SQL.set_usable_from, usable_from=usable_from)

    async def _write(self, work: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> None:
        async def write() -> None:
            async with self._connection.transaction():
                if not await self._fetch(SQL.find_unfinished, unfinished=migrations.UNFINISHED_COPY):
                    raise build_finished_error(self.place)
                await work(*arguments, **options)

        await self._run(write())


def _escape(value: Any) -> Any:
    return escape_text(value) if type(value) is str else value
