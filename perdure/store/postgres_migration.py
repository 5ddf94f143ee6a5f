"""Brings a PostgreSQL database to the newest schema (apart because it imports SQLAlchemy and alembic)."""

from __future__ import annotations

from typing import Any

from alembic.util import CommandError
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from ..errors import StoreError, StoreVersionError
from . import migrations
from .postgres_connection import POSTGRES_FAILURES, PostgresAddress, connect_to_postgres, translate_postgres_failure
from .schema import TABLES

LOCK_KEY = 0x7065726475726501
"""Key of the advisory lock under which one process at a time migrates a database."""


async def migrate_postgres(address: PostgresAddress, proposed_id: str, now: str) -> None:
    """Create or upgrade the schema in one transaction, and record ``proposed_id`` if the store has no id yet.

    Processes that do so at once wait for the first. Raises ``StoreError``.
    """

    async def connect() -> Any:
        return await connect_to_postgres(address)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_migrate, address.place, proposed_id, now)
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


def _migrate(connection: Connection, place: str, proposed_id: str, now: str) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
    tables = set(inspect(connection).get_table_names())
    if migrations.VERSION_TABLE not in tables and (foreign := sorted(tables & TABLES.keys())):
        raise StoreError(
            f"{place} has tables of another program (tables {', '.join(foreign[:5])})",
            hint="Set PERDURE_STORE_URL to a database of its own.",
        )
    version = ""
    if migrations.VERSION_TABLE in tables:
        version = connection.execute(text(f"SELECT version_num FROM {migrations.VERSION_TABLE}")).scalar() or ""  # noqa: S608  # a constant
    if not migrations.is_current_version(version):
        migrations.upgrade(connection)
    connection.execute(
        text("INSERT INTO meta (id, store_id, created_at) VALUES (1, :store_id, :now) ON CONFLICT (id) DO NOTHING"),
        {"store_id": proposed_id, "now": now},
    )
