"""Every table of the first schema."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

# Compared by code points, as SQLite does: times, tokens and ranges of keys are, whatever the database's own order.
TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
# Numbers of events: SQLite's integers have 64 bits too.
NUMBER = sa.Integer().with_variant(sa.BigInteger(), "postgresql")


def upgrade() -> None:
    _create_transcripts()
    _create_turns()
    _create_events()
    _create_references()
    if op.get_context().dialect.name == "postgresql":
        functions = Path(__file__).with_name("0001_postgresql.sql").read_text(encoding="utf-8")
        for function in functions.split("\n\n\n")[1:]:
            op.get_bind().exec_driver_sql(function)


def _create_transcripts() -> None:
    op.create_table(
        "meta",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
        sa.Column("store_id", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        # The oldest schema version whose code may use this database (``migrations.check_usable``).
        sa.Column("usable_from", TEXT, nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("hash", TEXT, primary_key=True),
        sa.Column("parent", TEXT),
        sa.Column("body", sa.LargeBinary, nullable=False),
        # The day (UTC) on which it was written, or referred to again: see store/retention.py.
        sa.Column("used_on", TEXT, nullable=False),
    )
    has_parent = sa.text("parent IS NOT NULL")
    op.create_index("nodes_parent", "nodes", ["parent"], sqlite_where=has_parent, postgresql_where=has_parent)
    op.create_index("nodes_used_on", "nodes", ["used_on", "hash"])
    op.create_table(
        "blobs",
        sa.Column("hash", TEXT, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("used_on", TEXT, nullable=False),
    )
    op.create_index("blobs_used_on", "blobs", ["used_on", "hash"])
    op.create_table(
        "journal",
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("kind", TEXT),
        sa.Column("owner", TEXT),
        sa.Column("starts", sa.Integer, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
        sa.Column("claimed_at", TEXT),
        sa.Column("done_at", TEXT),
        # The run that the call belongs to: its key is a hash.
        sa.Column("context_id", TEXT),
    )
    op.create_index("journal_context_id", "journal", ["context_id"])
    op.create_table(
        "runs",
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("scope", TEXT, nullable=False),
        sa.Column("head", TEXT),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("iterations", sa.Integer, nullable=False),
        sa.Column("result", sa.LargeBinary),
        sa.Column("asked_at", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("updated_at", TEXT, nullable=False),
    )
    op.create_index("runs_created_at", "runs", ["created_at"])
    op.create_index("runs_agent", "runs", ["agent", "created_at"])
    op.create_index("runs_status", "runs", ["status", "created_at"])


def _create_turns() -> None:
    op.create_table(
        "turns",
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("task_id", TEXT, primary_key=True),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("head", TEXT),
        sa.Column("result", sa.LargeBinary),
        sa.Column("asked_at", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("updated_at", TEXT, nullable=False),
    )
    op.create_table(
        "sent",
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("message_id", TEXT, primary_key=True),
        sa.Column("task_id", TEXT, nullable=False),
    )
    op.create_table(
        "memory",
        sa.Column("namespace", TEXT, primary_key=True),
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("updated_at", TEXT, nullable=False),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("seq", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("task_id", TEXT),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("key", TEXT),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("spans", TEXT),
        # Id of the child run, for an event of a run below the stream's own; NULL for the stream's own run.
        sa.Column("child", TEXT),
    )
    keyed = sa.text("key IS NOT NULL")
    op.create_index(
        "events_key", "events", ["context_id", "key"], unique=True, sqlite_where=keyed, postgresql_where=keyed
    )
    of_child = sa.text("child IS NOT NULL")
    op.create_index(
        "events_child", "events", ["context_id", "child", "seq"], sqlite_where=of_child, postgresql_where=of_child
    )
    op.create_table(
        "feeds",
        sa.Column("context_id", TEXT, primary_key=True),
        # The number of the last event. Every writer locks the row first, which puts all writers in one order.
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("token", TEXT, nullable=False),
        # The first delta that is neither complete nor retracted, and the first that is in the table; 0 without.
        sa.Column("open", NUMBER, nullable=False),
        sa.Column("first_delta", NUMBER, nullable=False),
        # The root run of the events' stream, and the paths from there (``event_log.PathHistory``); NULL for its own.
        sa.Column("root", TEXT),
        sa.Column("path", TEXT),
    )
    has_root = sa.text("root IS NOT NULL")
    op.create_index("feeds_root", "feeds", ["root"], sqlite_where=has_root, postgresql_where=has_root)


def _create_references() -> None:
    # What the body of a node, and what the journal, the events and the results of a run refer to: blobs, and heads of
    # transcripts that a summary replaces.
    op.create_table(
        "node_references",
        sa.Column("target", TEXT, primary_key=True),
        sa.Column("node", TEXT, primary_key=True),
    )
    op.create_index("node_references_node", "node_references", ["node"])
    op.create_table(
        "run_references",
        sa.Column("target", TEXT, primary_key=True),
        sa.Column("context_id", TEXT, primary_key=True),
    )
    op.create_index("run_references_context_id", "run_references", ["context_id"])
