"""The schema's versions. SQLAlchemy and alembic are loaded only if one is to apply.

A version file expands the schema, so that the code of older versions works on (tables, columns with defaults, indexes),
or it has ``contract = True`` and takes away what no code since its ``usable_from`` uses. Expanding versions are applied
when a store is opened; contracting ones by ``perdure store migrate --contract``, and to new stores. Why: decision 038.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import StoreError, StoreLocationError, StoreVersionError

from ..statements import load_statements

if TYPE_CHECKING:
    from alembic.script import Script
    from sqlalchemy import Connection

    from ..schema import Database

CURRENT_VERSION = "0002"
"""The newest version in ``versions/``. Numbered, so that a newer one is recognised."""
NEEDED_VERSION = "0002"
"""The newest expanding version, without which this code does not work."""
USABLE_FROM = "0001"
"""The oldest version whose code works with ``CURRENT_VERSION``: the ``usable_from`` of the last contracting version."""
VERSION_TABLE = "perdure_version"
"""Not alembic's default name: the database may be shared with a program that uses alembic too."""
UNFINISHED_COPY = "unfinished copy"
"""``meta.usable_from`` of a copy that is not complete: greater than every version, so no perdure opens it."""
FOLDER = Path(__file__).parent

_alembic_lock = threading.Lock()  # alembic keeps the environment that it runs in a module-level variable

SQL = load_statements("meta")


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
    row = database.run(SQL.read_version).fetchone()
    return row is not None and is_current_version(*row)


def is_current_version(version: str, usable_from: str | None) -> bool:
    """Whether this code works with a schema of ``version`` as it is; false if it is to be expanded first.

    Raises ``StoreVersionError`` for a newer one that it cannot use, ``StoreLocationError`` for an unfinished copy.
    """
    check_usable(version, usable_from)
    return version >= NEEDED_VERSION


def check_usable(version: str, usable_from: str | None) -> None:
    """Check ``meta.usable_from`` of a store with schema ``version``. Errors as of :func:`is_current_version`."""
    if usable_from == UNFINISHED_COPY:
        raise StoreLocationError(
            "the store is a copy that is not complete",
            hint="Finish it with the same `perdure store copy FROM TO`, or delete it and copy again.",
        )
    if (usable_from or version) > CURRENT_VERSION:
        raise StoreVersionError(
            f"the store has schema {version}, this perdure knows up to {CURRENT_VERSION}",
            hint="Upgrade perdure here: a newer version uses this store already.",
        )


def check_still_usable(version: str, usable_from: str | None) -> None:
    """Check a store that was opened before. Raises ``StoreError``, which is retryable: a newer worker does the work."""
    try:
        check_usable(version, usable_from)
    except StoreVersionError as error:
        raise StoreError(error.message, hint="Stop this process and upgrade it: newer workers do its work.") from None


def upgrade(connection: Connection, *, contract: bool = False) -> list[str]:
    """Apply the versions that are missing, in the caller's transaction, which must exclude other writers. Return them,
    each with its title.

    Without ``contract`` those before the first contracting one; all to a database without tables. Raises
    ``StoreVersionError`` if one that this code needs is behind a contracting one.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import text

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    version = context.get_current_revision() or ""
    scripts = [script for script in ScriptDirectory.from_config(config).walk_revisions() if script.revision > version]
    scripts.reverse()
    due = _select_due(scripts, contract=contract or not version)
    if (due[-1].revision if due else version) < NEEDED_VERSION:
        raise StoreVersionError(
            f"the store has schema {version}, and this perdure needs {NEEDED_VERSION}, which comes after a contraction",
            hint="Stop the workers of older versions, and run `perdure store migrate --contract`.",
        )
    if due:
        with _alembic_lock:
            command.upgrade(config, due[-1].revision)
        if contract and version:
            usable_from = {"usable_from": USABLE_FROM}
            connection.execute(text(SQL.set_usable_from.render("postgresql", usable_from)), usable_from)
    return [f"{script.revision} {script.doc}" for script in due]


def _select_due(scripts: Sequence[Script], *, contract: bool) -> list[Script]:
    """Select those to apply, in order: without ``contract`` the ones before the first that contracts."""
    ends = [index for index, script in enumerate(scripts) if getattr(script.module, "contract", False)]
    return list(scripts if contract or not ends else scripts[: ends[0]])
