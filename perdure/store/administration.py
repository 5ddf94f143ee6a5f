"""What operators do with a store: bring its schema to the newest version, and copy it into another database."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import StoreVersionError
from ..ports.times import format_utc_now
from . import is_sqlite_url
from .copies import CopyEnd, CopyResult, copy_rows
from .meta import assign_store_id
from .sqlite import is_current, parse_sqlite_url, upgrade_schema
from .sqlite_connection import SQLITE_FAILURES, SqliteDatabase, SqliteSession, StoreFile, translate_sqlite_failure

MIGRATION_TIMEOUT = 600.0
"""Seconds to wait for another process that migrates the same SQLite file."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What a migration has done."""

    place: str
    applied: list[str]
    """The versions that were applied, each with its title; empty if the schema was current."""


async def migrate_store(url: str, *, contract: bool = False) -> Migration:
    """Create the store at ``url``, or bring its schema to the newest version; ``contract``: also versions that take
    away what older code needs. Another process that does so at the same time is waited for.

    Raises ``StoreError``; ``StoreVersionError`` for a contraction while older code is connected.
    """
    proposed_id, now = uuid.uuid4().hex, format_utc_now()
    if is_sqlite_url(url):
        path = parse_sqlite_url(url)
        place, applied = str(path), _migrate_sqlite(path, proposed_id, now, contract=contract)
    else:
        from .postgres_connection import parse_postgres_url
        from .postgres_migration import migrate_postgres

        address = parse_postgres_url(url)
        place, applied = address.place, await migrate_postgres(address, proposed_id, now, contract=contract)
    return Migration(place, applied)


def _migrate_sqlite(path: Path, proposed_id: str, now: str, *, contract: bool) -> list[str]:
    session = SqliteSession(StoreFile(path, create=True), write=True, busy_timeout=MIGRATION_TIMEOUT)

    def migrate(database: SqliteDatabase) -> list[str]:
        applied = [] if is_current(database) and not contract else upgrade_schema(database, contract=contract)
        assign_store_id(database, proposed_id, now)
        return applied

    try:
        if contract and path.exists():
            return _run_alone(path, migrate)
        return session.run(migrate)
    finally:
        session.close()


def _run_alone(path: Path, work: Callable[[SqliteDatabase], list[str]]) -> list[str]:
    """Run ``work`` in a transaction while no other connection has the file open. SQLite ends the WAL mode for such a
    connection alone, so that tells whether there are others."""
    import sqlite3

    connection = sqlite3.connect(path, isolation_level=None, timeout=1)
    try:
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            raise StoreVersionError(
                f"another process has the store {path} open, and after a contraction older code does not work",
                hint="Stop all workers, clients and commands that use it, then run this again.",
            ) from None
        connection.execute("BEGIN EXCLUSIVE")
        result = work(SqliteDatabase(connection))
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
        return result
    except SQLITE_FAILURES as error:
        raise translate_sqlite_failure(error, path) from error
    finally:
        with suppress(*SQLITE_FAILURES):
            connection.close()


async def copy_store(
    source_url: str, target_url: str, *, report: Callable[[str], None], keep_damaged: bool = False
) -> CopyResult:
    """Copy the store at ``source_url`` to ``target_url``; see :func:`.copies.copy_rows`."""
    async with (
        aclosing(await _open_copy_end(source_url, is_source=True)) as source,
        aclosing(await _open_copy_end(target_url, is_source=False)) as target,
    ):
        return await copy_rows(source, target, report=report, keep_damaged=keep_damaged)


async def _open_copy_end(url: str, *, is_source: bool) -> CopyEnd:
    if is_sqlite_url(url):
        from .sqlite_copy import SqliteEnd

        return SqliteEnd(url, is_source=is_source)
    from .postgres_copy import PostgresEnd

    return await PostgresEnd.open(url, is_source=is_source)
