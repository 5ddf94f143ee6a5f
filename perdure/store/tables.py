"""The tables of the newest schema. ``migrations/`` makes them; a test keeps the two alike."""

from __future__ import annotations

from dataclasses import fields

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from ..ports import RunRow

metadata = sa.MetaData()

meta = sa.Table(
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
journal = sa.Table(
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
sent = sa.Table(
    "sent",
    metadata,
    sa.Column("context_id", sa.Text, primary_key=True),
    sa.Column("message_id", sa.Text, primary_key=True),
    sa.Column("task_id", sa.Text, nullable=False),
)
memory = sa.Table(
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
    # Of a run below the one whose order it stands in: the id of that run. NULL for the conversation's own.
    sa.Column("child", sa.Text),
)
_keyed = events_table.c.key.is_not(None)
_of_child = events_table.c.child.is_not(None)
sa.Index(
    "events_key",
    events_table.c.context_id,
    events_table.c.key,
    unique=True,
    sqlite_where=_keyed,
    postgresql_where=_keyed,
)
sa.Index(
    "events_child",
    events_table.c.context_id,
    events_table.c.child,
    events_table.c.seq,
    sqlite_where=_of_child,
    postgresql_where=_of_child,
)
feeds = sa.Table(
    "feeds",
    metadata,
    sa.Column("context_id", sa.Text, primary_key=True),
    # The number of the last event. Whoever writes updates it first: the row's lock makes one order of all writers.
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("token", sa.Text, nullable=False),
    # The first delta that is neither complete nor retracted, and the first that is in the table; 0 without.
    sa.Column("open", sa.Integer, nullable=False),
    sa.Column("first_delta", sa.Integer, nullable=False),
    # The conversation in whose order the events stand, and the ways down from there (JSON: ways.py); NULL for its own.
    sa.Column("root", sa.Text),
    sa.Column("path", sa.Text),
)
RUN_COLUMNS = tuple(runs_table.columns.keys())
assert tuple(field.name for field in fields(RunRow)) == RUN_COLUMNS  # rows are read by position
