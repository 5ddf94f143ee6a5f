"""Events of conversations, and how far each conversation's feed has come."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("context_id", sa.Text, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("task_id", sa.Text),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("spans", sa.Text),
    )
    keyed = sa.text("key IS NOT NULL")
    op.create_index(
        "events_key", "events", ["context_id", "key"], unique=True, sqlite_where=keyed, postgresql_where=keyed
    )
    op.create_table(
        "feeds",
        sa.Column("context_id", sa.Text, primary_key=True),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("open", sa.Integer, nullable=False),
        sa.Column("first_delta", sa.Integer, nullable=False),
    )
