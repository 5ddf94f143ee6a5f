"""The row that identifies the store."""

from __future__ import annotations

from . import migrations
from .schema import Database
from .statements import load_statements

SQL = load_statements("meta")


def assign_store_id(database: Database, proposed: str, now: str, usable_from: str = migrations.USABLE_FROM) -> str:
    """Return the recorded ``store_id``, or record ``proposed`` as such."""
    database.run(SQL.insert_store_id, id=1, store_id=proposed, created_at=now, usable_from=usable_from)
    return str(database.run(SQL.read_store_id).fetchone()[0])


def read_store_id(database: Database) -> str | None:
    """Return the recorded ``store_id``, if any."""
    row = database.run(SQL.read_store_id).fetchone()
    return None if row is None else str(row[0])
