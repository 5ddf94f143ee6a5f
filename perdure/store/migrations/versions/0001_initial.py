"""Transcripts, journal and runs."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
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
