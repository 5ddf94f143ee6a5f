"""Turns, the messages they took in, and memory."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
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
        sa.Column("key", sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
    )
