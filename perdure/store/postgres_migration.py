"""Brings a PostgreSQL database to the newest schema (apart because it imports SQLAlchemy and alembic)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from alembic.util import CommandError
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from ..errors import StoreError, StoreVersionError
from . import meta, migrations
from .postgres_connection import (
    APPLICATION_PREFIX,
    POSTGRES_FAILURES,
    PostgresAddress,
    connect_to_postgres,
    translate_postgres_failure,
)
from .schema import TABLES
from .statements import load_statements

SQL = load_statements("postgres")

LOCK_KEY = 0x7065726475726501
"""Key of the advisory lock under which one process at a time migrates a database."""


INSUFFICIENT_PRIVILEGE = "42501"
LOCK_SECONDS = 5
"""Time that a change of the schema waits for a table: workers that use the table wait behind it."""
MIGRATION_SECONDS = 24 * 3600.0
"""Time for one statement: an index of a large table takes long, and others wait for the advisory lock meanwhile."""


async def migrate_postgres(
    address: PostgresAddress,
    proposed_id: str,
    now: str,
    *,
    contract: bool = False,
    usable_from: str = migrations.USABLE_FROM,
) -> list[str]:
    """Create or upgrade the schema in one transaction, and record ``proposed_id`` if the store has no id yet. Return
    the versions that were applied; with ``contract`` also those that older code does not work with.

    Processes that do so at once wait for the first. Raises ``StoreError``.
    """

    async def connect() -> Any:
        return await connect_to_postgres(replace(address, command_timeout=MIGRATION_SECONDS))

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            identity = {"id": 1, "store_id": proposed_id, "created_at": now, "usable_from": usable_from}
            return await connection.run_sync(_migrate, address.place, identity, contract)
    except CommandError as error:
        raise StoreVersionError(
            f"the schema of {address.place} cannot be upgraded: {error}", hint="Install the perdure that made it."
        ) from error
    except POSTGRES_FAILURES as error:  # one that SQLAlchemy does not wrap
        raise translate_postgres_failure(error, address) from error
    except SQLAlchemyError as error:
        original = getattr(error, "orig", None)
        cause = getattr(original, "driver_exception", None) or getattr(original, "__cause__", None) or error
        raise translate_postgres_failure(cause, address) from cause
    finally:
        await engine.dispose()


def _migrate(connection: Connection, place: str, identity: dict[str, Any], contract: bool) -> list[str]:
    connection.execute(text(SQL.lock_migration.render("postgresql", {})), {"key": LOCK_KEY})
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
    tables = set(inspect(connection).get_table_names())
    version, usable_from, applied = "", None, []
    if migrations.VERSION_TABLE in tables:
        row = connection.execute(text(migrations.SQL.read_version.render("postgresql", {}))).first()
        version, usable_from = ("", None) if row is None else (row[0], row[1])
    elif foreign := sorted(tables & TABLES.keys()):
        raise StoreError(
            f"{place} has tables of another program (tables {', '.join(foreign[:5])})",
            hint="Set PERDURE_STORE_URL to a database of its own.",
        )
    is_current = migrations.is_current_version(version, usable_from)
    if contract and version:
        _check_no_older_code(connection, place)
    if contract or not is_current:
        applied = _upgrade(connection, place, version, contract=contract)
    connection.execute(
        text(meta.SQL.insert_store_id.render("postgresql", identity)),
        identity,
    )
    return applied


def _upgrade(connection: Connection, place: str, version: str, *, contract: bool) -> list[str]:
    try:
        return migrations.upgrade(connection, contract=contract)
    except DBAPIError as error:
        if not version or getattr(error.orig, "sqlstate", None) != INSUFFICIENT_PRIVILEGE:
            raise
        reason = str(error.orig).rpartition(": ")[2]
        raise StoreVersionError(
            f"the store {place} has schema {version}, and its user may not upgrade it to "
            f"{migrations.CURRENT_VERSION} ({reason})",
            hint="Run `perdure store migrate` with the URL of the user who owns the tables, then start this again.",
        ) from error


def _check_no_older_code(connection: Connection, place: str) -> None:
    """Check that no connection is of code older than ``USABLE_FROM``. Connections are all that a server knows: a worker
    without one, and those of users whose connections this user may not see, go unnoticed."""
    names = connection.execute(
        text(SQL.list_connected_code.render("postgresql", {"prefix": APPLICATION_PREFIX})),
        {"prefix": APPLICATION_PREFIX},
    ).scalars()
    older = sorted(name for name in names if name.removeprefix(APPLICATION_PREFIX) < migrations.USABLE_FROM)
    if older:
        raise StoreVersionError(
            f"{len(older)} connections to {place} are of code that knows the schema up to "
            f"{older[0].removeprefix(APPLICATION_PREFIX)}, and the contraction needs {migrations.USABLE_FROM}",
            hint="Stop those workers and clients (pg_stat_activity has their addresses), then run it again.",
        )
