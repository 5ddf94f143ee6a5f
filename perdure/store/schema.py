"""The tables of the store, and SQLAlchemy Core statements compiled once per dialect and executed as driver SQL.

Core's own execution costs about 25 µs of CPU more per statement, and these run in every iteration. All differences
between SQLite and PostgreSQL are in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Dialect, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import ClauseElement


class Rows(Protocol):
    """The result of a statement: a driver's cursor, or SQLAlchemy's result."""

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
    """A connection in a transaction; an adapter passes the fastest that its driver has."""

    dialect: Dialect
    """The dialect that statements are compiled for."""

    def execute(self, sql: str, parameters: tuple[Any, ...], /) -> Rows:
        """Run ``sql`` with its parameters by position."""
        ...


class Statement:
    """A Core statement, compiled once per dialect; run with its parameters by name.

    ``query`` is the statement, or a function that builds it for a dialect.
    """

    def __init__(self, query: ClauseElement | Callable[[Dialect], ClauseElement]) -> None:
        self._query = query
        self._compiled: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {}

    def run(self, database: Database, **values: Any) -> Rows:
        """Execute it once."""
        dialect = database.dialect
        sql, names, constants = self._compiled.get(dialect.name) or self._compile(dialect)
        values |= constants
        return database.execute(sql, tuple(map(values.__getitem__, names)))

    def _compile(self, dialect: Dialect) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        query = self._query if isinstance(self._query, ClauseElement) else self._query(dialect)
        compiled: Any = query.compile(dialect=dialect)  # Any: typed as less than it is
        names = tuple(compiled.positiontup or ())
        # A dialect may add parameters of its own, for instance SQLite an offset to every limit.
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        self._compiled[dialect.name] = str(compiled), names, constants
        return self._compiled[dialect.name]


class KeyListStatement:
    """A statement over a list of keys, padded to a power of two so that few statements are compiled."""

    MAX_KEYS = 512
    """Keys in one statement; SQLite takes 32,766 parameters, PostgreSQL 32,767."""

    def __init__(self, build: Callable[[list[Any]], ClauseElement]) -> None:
        self._build = build
        self._by_count: dict[int, Statement] = {}

    def run(self, database: Database, keys: Sequence[str], **values: Any) -> Rows:
        """Execute it for at most ``MAX_KEYS`` keys; without keys it is run with one that matches no row."""
        count = 1 << max(len(keys) - 1, 0).bit_length()
        padded = [*keys, *[keys[-1] if keys else ""] * (count - len(keys))]
        if count not in self._by_count:
            names = [bindparam(f"k{i}", type_=sa.Text) for i in range(count)]
            self._by_count[count] = Statement(self._build(names))
        return self._by_count[count].run(database, **{f"k{i}": key for i, key in enumerate(padded)}, **values)

    def iter_rows(self, database: Database, keys: Iterable[str], **values: Any) -> Iterator[Any]:
        """Yield all rows for any number of keys."""
        unique = list(dict.fromkeys(keys))
        for start in range(0, len(unique), self.MAX_KEYS):
            yield from self.run(database, unique[start : start + self.MAX_KEYS], **values)


def build_insert(dialect: Dialect, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Build an INSERT with ON CONFLICT: the two dialects have the same syntax, but SQLAlchemy has a class for each."""
    insert = postgresql.insert(table) if dialect.name == "postgresql" else sqlite.insert(table)
    return insert.values({column.name: bindparam(column.name) for column in table.columns})


def build_insert_missing(table: sa.Table) -> Statement:
    return Statement(lambda dialect: build_insert(dialect, table).on_conflict_do_nothing())


def build_upsert(dialect: Dialect, table: sa.Table) -> Insert:
    """Build an upsert by primary key that keeps a row with a later ``asked_at``."""
    new_row = build_insert(dialect, table)
    key = [column.name for column in table.primary_key]
    new = {column.name: new_row.excluded[column.name] for column in table.columns}
    for name in (*key, "created_at"):
        new.pop(name, None)
    not_older = new_row.excluded.asked_at >= table.c.asked_at if "asked_at" in table.c else None
    return new_row.on_conflict_do_update(index_elements=key, set_=new, where=not_older)


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
