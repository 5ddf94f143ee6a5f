"""Tables of the HTTP service: API tokens, and logins of the console; grants for MCP servers; decisions that can be
taken back; webhooks, and the log of their deliveries; bulk actions."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")  # compared by code points, see 0001
NUMBER = sa.Integer().with_variant(sa.BigInteger(), "postgresql")


def upgrade() -> None:
    _create_tokens()
    _create_grants()
    _create_decisions()
    _create_webhooks()
    _create_bulk_actions()
    if op.get_context().dialect.name == "postgresql":
        op.get_bind().exec_driver_sql(_build_append_function())


def _create_tokens() -> None:
    """Create the table of API tokens, see ``perdure.ports.tokens``."""
    op.create_table(
        "api_tokens",
        sa.Column("id", TEXT, primary_key=True),
        # Of the secret, with the id.
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("created_by", TEXT, nullable=False),
        # JSON lists of names; NULL for all.
        sa.Column("tenants", TEXT),
        sa.Column("agents", TEXT),
        sa.Column("sessions", TEXT),
        sa.Column("expires_at", TEXT),
        sa.Column("revoked_at", TEXT),
        sa.Column("last_used_at", TEXT),
    )
    op.create_index("api_tokens_created_at", "api_tokens", ["created_at", "id"])
    op.create_table(
        "console_logins",
        sa.Column("id", TEXT, primary_key=True),
        # Of the secret, with the id.
        sa.Column("hash", TEXT, nullable=False),
        # The API token that it was made with.
        sa.Column("token_id", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("expires_at", TEXT, nullable=False),
    )
    op.create_index("console_logins_expires_at", "console_logins", ["expires_at"])


def _create_grants() -> None:
    """Create the tables of grants for MCP servers, and of sign-ins, see ``perdure.ports.grants``."""
    op.create_table(
        "grants",
        # "" for runs without a tenant, and for the grant that a tenant's runs share.
        sa.Column("tenant", TEXT, primary_key=True),
        sa.Column("user_id", TEXT, primary_key=True),
        sa.Column("server", TEXT, primary_key=True),
        sa.Column("version", NUMBER, nullable=False),
        sa.Column("sealed", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        # "" while nobody refreshes it.
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("leased_until", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("updated_at", TEXT, nullable=False),
    )
    op.create_table(
        "sign_ins",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("sealed", TEXT, nullable=False),
        sa.Column("expires_at", TEXT, nullable=False),
    )
    op.create_index("sign_ins_expires_at", "sign_ins", ["expires_at"])


def _create_decisions() -> None:
    """Create the table of decisions that can be taken back, see ``perdure.ports.decisions``."""
    op.create_table(
        "decisions",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("call_id", TEXT, primary_key=True),
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("tool", TEXT, nullable=False),
        sa.Column("tenant", TEXT),
        sa.Column("user_id", TEXT),
        sa.Column("by", TEXT, nullable=False),
        sa.Column("auth", TEXT, nullable=False),
        sa.Column("origin", TEXT, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("due_at", TEXT, nullable=False),
        # "" while no attempt to send it has begun.
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("leased_until", TEXT, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("note", TEXT),
        # NULL until it was sent.
        sa.Column("answer", sa.LargeBinary),
    )
    # Senders look here each second: it has few rows, or none.
    is_open = sa.text("answer IS NULL")
    op.create_index("decisions_due_at", "decisions", ["due_at"], sqlite_where=is_open, postgresql_where=is_open)


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("url", TEXT, nullable=False),
        sa.Column("events", TEXT, nullable=False),
        sa.Column("agent", TEXT),
        sa.Column("tenant", TEXT),
        sa.Column("session", TEXT),
        sa.Column("enabled", sa.Integer, nullable=False),
        sa.Column("disabled_reason", TEXT),
        sa.Column("failing_since", TEXT),
        sa.Column("secrets", TEXT, nullable=False),
        sa.Column("key_id", TEXT),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("updated_at", TEXT, nullable=False),
        sa.Column("allowed", TEXT, nullable=False),
    )
    # Each commit of an event that webhooks deliver looks here whether there is an enabled one.
    enabled = sa.text("enabled = 1")
    op.create_index("webhooks_enabled", "webhooks", ["id"], sqlite_where=enabled, postgresql_where=enabled)
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("webhook_id", TEXT, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("stream", TEXT, nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("context_id", TEXT, nullable=False),
        sa.Column("url", TEXT, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("error", TEXT),
        sa.Column("answer", TEXT),
        sa.Column("milliseconds", NUMBER, nullable=False),
        sa.Column("next_at", TEXT),
        sa.Column("created_at", TEXT, nullable=False),
    )
    op.create_index("webhook_deliveries_webhook_id", "webhook_deliveries", ["webhook_id", "created_at", "id"])
    op.create_index("webhook_deliveries_message_id", "webhook_deliveries", ["message_id"])
    op.create_index("webhook_deliveries_created_at", "webhook_deliveries", ["created_at"])


def _create_bulk_actions() -> None:
    """Create the tables of bulk actions and of their runs, see ``perdure.ports.bulk_actions``."""
    op.create_table(
        "bulk_actions",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("verb", TEXT, nullable=False),
        sa.Column("filter", TEXT, nullable=False),
        sa.Column("tenant", TEXT),
        sa.Column("user_id", TEXT),
        sa.Column("by", TEXT, nullable=False),
        sa.Column("auth", TEXT, nullable=False),
        sa.Column("origin", TEXT, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("per_second", sa.Float(53), nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("ended_at", TEXT),
        sa.Column("stopped_by", TEXT),
    )
    op.create_index("bulk_actions_created_at", "bulk_actions", ["created_at", "id"])
    op.create_table(
        "bulk_runs",
        sa.Column("bulk_id", TEXT, primary_key=True),
        sa.Column("context_id", TEXT, primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("execution", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=False),
        sa.Column("tenant", TEXT),
        sa.Column("user_id", TEXT),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("detail", TEXT),
        # How many attempts have begun to act on the run.
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("done_at", TEXT),
    )
    op.create_index("bulk_runs_position", "bulk_runs", ["bulk_id", "position"])
    op.create_index("bulk_runs_context_id", "bulk_runs", ["context_id"])


def _build_append_function() -> str:
    """Return the function of 0001 that writes events, with outbox rows for webhooks only while one is enabled.

    Its signature is the same, so code of 0001 calls it too: that asks for no such rows.
    """
    functions = Path(__file__).with_name("0001_postgresql.sql").read_text(encoding="utf-8")
    [function] = [one for one in functions.split("\n\n\n") if "CREATE FUNCTION perdure_append_0001(" in one]
    head, body = function.split("CREATE FUNCTION perdure_append_0001(")
    before = "WHERE p_outbox[n]::integer = i - v_shift - 1;"
    assert body.count(before) == 1, "0001_postgresql.sql was released, and does not change"
    after = (
        "WHERE p_outbox[n]::integer = i - v_shift - 1\n"
        "              AND (p_outbox[n + 1] <> 'perdure.webhooks' OR EXISTS (SELECT FROM webhooks WHERE enabled = 1));"
    )
    return f"{head}CREATE OR REPLACE FUNCTION perdure_append_0001({body.replace(before, after)}"
