"""The schema's versions, applied when a store is opened. alembic is loaded only where one is to apply."""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection

from perdure.errors import StoreError, StoreVersionError

CURRENT_VERSION = "0001"
"""The newest version in ``versions/``. Numbered, so that a newer one is recognised."""
VERSION_TABLE = "perdure_version"
"""Not alembic's default name: the database may be shared with a program that uses alembic too."""

_alembic_lock = threading.Lock()  # alembic keeps the environment that it runs in a module-level variable


def read_version(connection: Connection) -> str | None:
    """Return the schema's version; None for a database that never was a store."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    row = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()  # noqa: S608  # a constant
    return None if row is None else str(row)


def is_current(connection: Connection) -> bool:
    """Whether no migration is to be applied. Raises ``StoreVersionError`` for a newer schema."""
    version = read_version(connection)
    if version is not None and version > CURRENT_VERSION:
        raise StoreVersionError(
            f"the store has schema {version}, this perdure knows up to {CURRENT_VERSION}",
            hint="Upgrade perdure here: a newer version uses this store already.",
        )
    return version == CURRENT_VERSION


def check_not_foreign(connection: Connection) -> None:
    """Raise ``StoreError`` for a SQLite file of another program."""
    tables = sa.inspect(connection).get_table_names() if connection.dialect.name == "sqlite" else []
    if tables and VERSION_TABLE not in tables:
        raise StoreError(
            f"the file is the database of another program (tables {', '.join(tables[:5])})",
            hint="Set PERDURE_STORE_URL to a file of its own.",
        )


def upgrade(connection: Connection) -> None:
    """Bring the schema to ``CURRENT_VERSION`` in the caller's transaction, which must exclude other writers.

    Raises ``StoreVersionError`` for a newer schema, ``StoreError`` for a SQLite file of another program.
    """
    if is_current(connection):
        return
    check_not_foreign(connection)

    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _alembic_lock:
        command.upgrade(config, CURRENT_VERSION)
