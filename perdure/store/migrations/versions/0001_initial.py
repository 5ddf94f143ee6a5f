"""Every table of the first schema."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

# Compared by code points, as SQLite does: times, tokens and ranges of keys are, whatever the database's own order.
TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
# Tables with bodies; ``key_id`` is that of the key that a row's body is encrypted with, NULL for a plain one.
BODY_TABLES = ("nodes", "blobs", "journal", "runs", "turns", "memory", "events")
# Numbers of events: SQLite's integers have 64 bits too.
NUMBER = sa.Integer().with_variant(sa.BigInteger(), "postgresql")


def upgrade() -> None:
    _create_transcripts()
    _create_runs()
    _create_turns()
    _create_events()
    _create_usage()
    _create_surfaces()
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
        sa.Column("key_id", TEXT),
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
        sa.Column("key_id", TEXT),
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
        sa.Column("key_id", TEXT),
        # The run that the call belongs to: its key is a hash.
        sa.Column("context_id", TEXT),
    )
    op.create_index("journal_context_id", "journal", ["context_id"])


def _create_runs() -> None:
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
        sa.Column("tenant", TEXT),
        sa.Column("user_id", TEXT),  # in PostgreSQL, `user` is the user of the connection
        sa.Column("key_id", TEXT),
        sa.Column("first_message", TEXT),
        sa.Column("error_type", TEXT),
        sa.Column("error", TEXT),
    )
    op.create_index("runs_created_at", "runs", ["created_at"])
    op.create_index("runs_agent", "runs", ["agent", "created_at"])
    op.create_index("runs_status", "runs", ["status", "created_at"])
    # Failed runs by the time of their end.
    is_failed = sa.text("error_type IS NOT NULL")
    op.create_index("runs_failed", "runs", ["updated_at"], sqlite_where=is_failed, postgresql_where=is_failed)
    _create_index_of_given("runs", "tenant")
    _create_index_of_given("runs", "user_id")


def _create_index_of_given(table: str, column: str) -> None:
    """Create an index for lists by an optional column; rows without a value are not in it, and cost nothing."""
    given = sa.text(f"{column} IS NOT NULL")
    op.create_index(f"{table}_{column}", table, [column, "created_at"], sqlite_where=given, postgresql_where=given)


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
        sa.Column("key_id", TEXT),
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
        sa.Column("key_id", TEXT),
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
        sa.Column("key_id", TEXT),
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
        # 1 while the run may have rows in failing_calls: without, nothing is looked up there.
        sa.Column("failing", sa.Integer, nullable=False),
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
    # Ids that are not given again: of root runs that a person has deleted.
    op.create_table(
        "deleted_runs",
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("deleted_at", TEXT, nullable=False),
    )


def _create_usage() -> None:
    op.create_table(
        "usage",
        sa.Column("context_id", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("purpose", TEXT, nullable=False),
        sa.Column("provider", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("requests", sa.Integer, nullable=False),
        sa.Column("input_tokens", NUMBER, nullable=False),
        sa.Column("output_tokens", NUMBER, nullable=False),
        sa.Column("cached_tokens", NUMBER, nullable=False),
        sa.Column("cache_write_tokens", NUMBER, nullable=False),
        sa.Column("reasoning_tokens", NUMBER, nullable=False),
        sa.Column("cost_usd", sa.Float(53)),
        sa.Column("milliseconds", NUMBER, nullable=False),
        sa.Column("task_id", TEXT),
        # The root run of a subagent's run; NULL for a root's own.
        sa.Column("root", TEXT),
        sa.Column("tenant", TEXT),
        sa.Column("user_id", TEXT),
        # That of the call in the journal, whose row may be deleted before this one.
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("created_at", TEXT, nullable=False),
    )
    op.create_index("usage_created_at", "usage", ["created_at"])
    op.create_index("usage_run", "usage", [sa.text("coalesce(root, context_id)")])
    op.create_index("usage_agent", "usage", ["agent", "created_at"])
    _create_index_of_given("usage", "tenant")
    op.create_table(
        "agents",
        sa.Column("hash", TEXT, primary_key=True),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("seen_at", TEXT, nullable=False),
    )
    op.create_index("agents_name", "agents", ["name", "seen_at"])


def _create_surfaces() -> None:
    """Create the tables that are not for runs themselves, which consoles, services and webhooks read."""
    op.create_table(
        "waits",
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("call_id", TEXT, primary_key=True),
        # The event that asks, whose body has the details: its stream and number.
        sa.Column("root", TEXT, nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("tool", TEXT, nullable=False),
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("expires_at", TEXT),
        sa.Column("summary", TEXT, nullable=False),
        sa.Column("amount", sa.Float(53)),
    )
    op.create_index("waits_created_at", "waits", ["created_at", "context_id", "call_id"])
    op.create_index("waits_agent", "waits", ["agent", "created_at"])
    expiring = sa.text("expires_at IS NOT NULL")
    op.create_index(
        "waits_expires_at", "waits", ["expires_at", "agent"], sqlite_where=expiring, postgresql_where=expiring
    )
    counted = sa.text("amount IS NOT NULL")
    op.create_index(
        "waits_amount",
        "waits",
        [sa.text("(-amount)"), "context_id", "call_id"],
        sqlite_where=counted,
        postgresql_where=counted,
    )
    _create_failures()
    op.create_table(
        "outbox",
        sa.Column("stream", TEXT, primary_key=True),
        sa.Column("seq", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("target", TEXT, primary_key=True),
        sa.Column("context_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("taken", sa.Integer, nullable=False),
        # The process that delivers it, until then; empty before the first.
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("leased_until", TEXT, nullable=False),
    )
    op.create_index("outbox_target", "outbox", ["target", "created_at"])
    _create_audit()
    if op.get_context().dialect.name == "sqlite":  # PostgreSQL has NOTIFY; see perdure.ports.nudges.Nudges
        op.create_table(
            "nudges",
            sa.Column("run_id", TEXT, primary_key=True),
            sa.Column("nudged_at", sa.Float, nullable=False),
        )
    encrypted = sa.text("key_id IS NOT NULL")
    for table in BODY_TABLES:  # empty as long as all bodies are plain
        op.create_index(f"{table}_key_id", table, ["key_id"], sqlite_where=encrypted, postgresql_where=encrypted)


def _create_failures() -> None:
    """Create the tables of calls that fail, and of the counts of failed attempts, see ``perdure.ports.failures``."""
    op.create_table(
        "failing_calls",
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("call", TEXT, primary_key=True),
        sa.Column("root", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("tenant", TEXT),
        sa.Column("user_id", TEXT),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("error_type", TEXT, nullable=False),
        sa.Column("error", TEXT, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("since", TEXT, nullable=False),
        sa.Column("last_at", TEXT, nullable=False),
        sa.Column("next_at", TEXT, nullable=False),
        # NULL before HELD_UP_ATTEMPTS.
        sa.Column("held_up_at", TEXT),
    )
    op.create_index("failing_calls_since", "failing_calls", ["since", "context_id", "call"])
    op.create_table(
        "failed_attempts",
        # The hour, and a hash of all columns that are not counts.
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("hour", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("tenant", TEXT),
        sa.Column("user_id", TEXT),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("error_type", TEXT, nullable=False),
        sa.Column("attempts", NUMBER, nullable=False),
        # Those after which the call was not tried again.
        sa.Column("ended", NUMBER, nullable=False),
    )
    op.create_index("failed_attempts_hour", "failed_attempts", ["hour"])


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("at", TEXT, nullable=False),
        sa.Column("by", TEXT, nullable=False),
        sa.Column("auth", TEXT, nullable=False),
        sa.Column("origin", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("verb", TEXT, nullable=False),
        sa.Column("call_id", TEXT),
        sa.Column("detail", TEXT),
        sa.Column("refused", TEXT),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("last_at", TEXT),
        sa.Column("agent", TEXT),
        sa.Column("tenant", TEXT),
        sa.Column("user_id", TEXT),
    )
    op.create_index("audit_at", "audit", ["at", "id"])
    op.create_index("audit_tenant", "audit", ["tenant", "at", "id"])
    op.create_index("audit_subject", "audit", ["subject", "at", "id"])
    op.create_table(
        "idempotency",
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("request_hash", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("leased_until", TEXT, nullable=False),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("expires_at", TEXT, nullable=False),
    )
    op.create_index("idempotency_expires_at", "idempotency", ["expires_at"])
