"""Every table of the first schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_transcripts()
    _create_turns()
    _create_events()


def _create_transcripts() -> None:
    op.create_table(
        "meta",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
        sa.Column("store_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("hash", sa.Text, primary_key=True),
        sa.Column("parent", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "blobs",
        sa.Column("hash", sa.Text, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "journal",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text),
        sa.Column("owner", sa.Text),
        sa.Column("starts", sa.Integer, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
        sa.Column("claimed_at", sa.Text),
        sa.Column("done_at", sa.Text),
    )
    op.create_table(
        "runs",
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
    )
    op.create_index("runs_created_at", "runs", ["created_at"])
    op.create_index("runs_agent", "runs", ["agent", "created_at"])
    op.create_index("runs_status", "runs", ["status", "created_at"])


def _create_turns() -> None:
    op.create_table(
        "turns",
        sa.Column("context_id", sa.Text, primary_key=True),
        sa.Column("task_id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("head", sa.Text),
        sa.Column("result", sa.LargeBinary),
        sa.Column("asked_at", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
    )
    op.create_table(
        "sent",
        sa.Column("context_id", sa.Text, primary_key=True),
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("task_id", sa.Text, nullable=False),
    )
    op.create_table(
        "memory",
        sa.Column("namespace", sa.Text, primary_key=True),
        # Compared by code points, as SQLite does: a range of keys is a prefix then, and the index serves it.
        sa.Column("key", sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
    )


def _create_events() -> None:
    op.create_table(
        "events",
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
        sa.Column("context_id", sa.Text, primary_key=True),
        # The number of the last event. Every writer locks the row first, which puts all writers in one order.
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        # The first delta that is neither complete nor retracted, and the first that is in the table; 0 without.
        sa.Column("open", sa.Integer, nullable=False),
        sa.Column("first_delta", sa.Integer, nullable=False),
        # The root run of the events' stream, and the paths from there (``event_log.PathHistory``); NULL for its own.
        sa.Column("root", sa.Text),
        sa.Column("path", sa.Text),
    )
