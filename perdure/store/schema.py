"""The tables of the store, and what its SQL needs: statements that SQLite and PostgreSQL both take, run by the driver.

Parameters are named (``:name``). SQLAlchemy's own execution costs about 25 µs of CPU more per statement, and these run
in every iteration; it is used for the schema only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql


class Rows(Protocol):
    """The result of a statement: a driver's cursor."""

    @property
    def rowcount(self) -> int:
        """Number of rows written."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, None after the last."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows."""
        ...


class Database(Protocol):
    """A connection in a transaction."""

    def run(self, sql: str, /, **values: Any) -> Rows:
        """Execute ``sql`` with the values of its parameters."""
        ...


MAX_KEYS = 512
"""Keys in one statement; SQLite takes 32,766 parameters, PostgreSQL 32,767."""


def bind_keys(sql: str, keys: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return ``sql`` with parameters for at most ``MAX_KEYS`` keys in the place of ``:keys``, and their values.

    They are padded to a power of two, so that few statements are prepared. Without keys one is bound that matches no
    row.
    """
    count = 1 << max(len(keys) - 1, 0).bit_length()
    padded = [*keys, *[keys[-1] if keys else ""] * (count - len(keys))]
    values = {f"k{index}": key for index, key in enumerate(padded)}
    return sql.replace(":keys", ", ".join(f":{name}" for name in values)), values


def run_for_keys(database: Database, sql: str, keys: Iterable[str], **values: Any) -> Iterator[Any]:
    """Yield the rows of ``sql``, whose ``:keys`` are any number of keys."""
    unique = list(dict.fromkeys(keys))
    for start in range(0, len(unique), MAX_KEYS):
        statement, key_values = bind_keys(sql, unique[start : start + MAX_KEYS])
        yield from database.run(statement, **key_values, **values)


def build_insert(table: sa.Table, on_conflict: str = "DO NOTHING") -> str:
    """Build the INSERT of a whole row, its columns as parameters."""
    names = table.columns.keys()
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values}) ON CONFLICT {on_conflict}"  # noqa: S608  # names of the schema


def build_upsert(table: sa.Table) -> str:
    """Build an upsert by primary key that keeps ``created_at``, and a row with a later ``asked_at``."""
    key, names = table.primary_key.columns.keys(), table.columns.keys()
    new = [f"{name} = excluded.{name}" for name in names if name not in (*key, "created_at")]
    not_older = f" WHERE excluded.asked_at >= {table.name}.asked_at" if "asked_at" in table.c else ""
    return build_insert(table, f"({', '.join(key)}) DO UPDATE SET {', '.join(new)}{not_older}")


def as_bytes(value: Any) -> bytes:
    """Return ``value`` as bytes: SQLite has a type per value, so bytes that were altered by hand may come back as
    text."""
    return value.encode() if isinstance(value, str) else bytes(value)


# ---
# The tables of the newest schema. ``migrations/`` creates them; a test keeps the two equal.


metadata = sa.MetaData()

meta_table = sa.Table(
    "meta",
    metadata,
    sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    sa.Column("store_id", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
)
nodes_table = sa.Table(
    "nodes",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("parent", sa.Text),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
blobs_table = sa.Table(
    "blobs",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
journal_table = sa.Table(
    "journal",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text),
    sa.Column("owner", sa.Text),
    sa.Column("starts", sa.Integer, nullable=False),
    sa.Column("outcome", sa.LargeBinary),
    sa.Column("claimed_at", sa.Text),
    sa.Column("done_at", sa.Text),
)
runs_table = sa.Table(
    "runs",
    metadata,
    sa.Column("context_id", sa.Text, primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("head", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("iterations", sa.Integer, nullable=False),
    sa.Column("result", sa.LargeBinary),
    sa.Column("asked_at", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("updated_at", sa.Text, nullable=False),
    sa.Index("runs_created_at", "created_at"),
    sa.Index("runs_agent", "agent", "created_at"),
    sa.Index("runs_status", "status", "created_at"),
)
turns_table = sa.Table(
    "turns",
    metadata,
    sa.Column("context_id", sa.Text, primary_key=True),
    sa.Column("task_id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("head", sa.Text),
    sa.Column("result", sa.LargeBinary),
    sa.Column("asked_at", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("updated_at", sa.Text, nullable=False),
)
sent_messages_table = sa.Table(
    "sent",
    metadata,
    sa.Column("context_id", sa.Text, primary_key=True),
    sa.Column("message_id", sa.Text, primary_key=True),
    sa.Column("task_id", sa.Text, nullable=False),
)
memory_table = sa.Table(
    "memory",
    metadata,
    sa.Column("namespace", sa.Text, primary_key=True),
    # Compared by code points, as SQLite does: a range of keys is a prefix then, and the index serves it.
    sa.Column("key", sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"), primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
    sa.Column("updated_at", sa.Text, nullable=False),
)
events_table = sa.Table(
    "events",
    metadata,
    sa.Column("context_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("task_id", sa.Text),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("key", sa.Text),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("spans", sa.Text),
    # Id of the child run, for an event of a run below the stream's own; NULL for the stream's own run.
    sa.Column("child", sa.Text),
)
_HAS_KEY = events_table.c.key.is_not(None)
_HAS_CHILD = events_table.c.child.is_not(None)
sa.Index(
    "events_key",
    events_table.c.context_id,
    events_table.c.key,
    unique=True,
    sqlite_where=_HAS_KEY,
    postgresql_where=_HAS_KEY,
)
sa.Index(
    "events_child",
    events_table.c.context_id,
    events_table.c.child,
    events_table.c.seq,
    sqlite_where=_HAS_CHILD,
    postgresql_where=_HAS_CHILD,
)
feeds_table = sa.Table(
    "feeds",
    metadata,
    sa.Column("context_id", sa.Text, primary_key=True),
    # The number of the last event. Every writer locks the row first, which puts all writers in one order.
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("token", sa.Text, nullable=False),
    # The first delta that is neither complete nor retracted, and the first that is in the table; 0 without.
    sa.Column("open", sa.Integer, nullable=False),
    sa.Column("first_delta", sa.Integer, nullable=False),
    # The root run of the events' stream, and the paths from there (JSON: ``event_log.PathHistory``); NULL for its own.
    sa.Column("root", sa.Text),
    sa.Column("path", sa.Text),
)
