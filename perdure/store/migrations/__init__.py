"""The schema's versions, applied when a store is opened. SQLAlchemy and alembic are loaded only if one is to apply."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import StoreError, StoreVersionError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ..schema import Database

CURRENT_VERSION = "0001"
"""The newest version in ``versions/``. Numbered, so that a newer one is recognised."""
VERSION_TABLE = "perdure_version"
"""Not alembic's default name: the database may be shared with a program that uses alembic too."""

_alembic_lock = threading.Lock()  # alembic keeps the environment that it runs in a module-level variable


def is_current(database: Database, tables: Sequence[str]) -> bool:
    """Whether no migration is to be applied to a database with ``tables``.

    Raises ``StoreVersionError`` for a newer schema, ``StoreError`` for the tables of another program.
    """
    if VERSION_TABLE not in tables:
        if tables:
            raise StoreError(
                f"the file is the database of another program (tables {', '.join(tables[:5])})",
                hint="Set PERDURE_STORE_URL to a file of its own.",
            )
        return False
    row = database.run(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608  # a constant
    return is_current_version("" if row is None else str(row[0]))


def is_current_version(version: str) -> bool:
    """Whether a schema of ``version`` needs no migration. Raises ``StoreVersionError`` for a newer one."""
    if version > CURRENT_VERSION:
        raise StoreVersionError(
            f"the store has schema {version}, this perdure knows up to {CURRENT_VERSION}",
            hint="Upgrade perdure here: a newer version uses this store already.",
        )
    return version == CURRENT_VERSION


def upgrade(connection: Connection) -> None:
    """Bring the schema to ``CURRENT_VERSION`` in the caller's transaction, which must exclude other writers."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _alembic_lock:
        command.upgrade(config, CURRENT_VERSION)
