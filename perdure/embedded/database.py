"""The dev server's database file: fit to start on, and what to say when it is not."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from ..errors import ServerStartError
from .home import Home

PANIC = "panic: "
"""How the last words of a crashed Go program begin."""
_LAST_LINES = 5

# What SQLite and the system say, in the server's log, and what it means.
_CAUSES = (
    (
        ("disk is full", "no space left"),
        "the disk is full",
        "Free some space, or set PERDURE_HOME to another disk.",
    ),
    (
        ("readonly database", "read-only", "unable to open database"),
        "its database cannot be written",
        "Make {db} and its directory writable, or set PERDURE_HOME to another directory.",
    ),
    (
        ("not a database", "malformed", "no such table"),
        "its database is damaged",
        "Restore {db} from a backup, or move it away: open runs are lost then, transcripts are not.",
    ),
)


def prepare(home: Home) -> None:
    """See that the database can be written. One whose creation was cut short is removed: it holds nothing.

    Raises:
        ServerStartError: it cannot be written, or is no database.
    """
    path = home.temporal_db
    try:
        with path.open("r+b"):
            pass
        if _never_finished(path):
            discard(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ServerStartError(
            f"the Temporal dev server cannot write its database, {path}: {error.strerror}",
            hint="Make it a writable file, or set PERDURE_HOME to another directory.",
        ) from error
    except sqlite3.DatabaseError as error:
        raise explain(home, str(error)) from error


def _never_finished(path: Path) -> bool:
    """Whether the server died between the creation of the file and of its first namespace.

    It sets up a database only where there is no file, so it would never start on such a one again.
    ``namespaces`` is the first of its tables, and the row in it the last thing that is set up.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return True
        if "namespaces" not in tables:
            raise sqlite3.DatabaseError("file is not a database of Temporal")
        return connection.execute("SELECT 1 FROM namespaces WHERE name = 'default'").fetchone() is None


def discard(path: Path) -> None:
    """Remove a database and what SQLite keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def explain(home: Home, said: str) -> ServerStartError:
    """The error for a server that did not start, from what it said last."""
    low = said.lower()
    for signs, cause, way_out in _CAUSES:
        if any(sign in low for sign in signs):
            return ServerStartError(
                f"the Temporal dev server does not start: {cause}", hint=way_out.format(db=home.temporal_db)
            )
    _, crashed, words = said.rpartition(PANIC)
    lines = (crashed + words).splitlines()
    shown = lines[:_LAST_LINES] if crashed else lines[-_LAST_LINES:]
    last = "".join(f"\n  {line}" for line in shown) or " nothing"
    return ServerStartError(
        f"the Temporal dev server does not start; it said:{last}", hint=f"Its log is {home.server_log}."
    )
