"""Tables of the HTTP service."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")  # compared by code points, see 0001


def upgrade() -> None:
    _create_tokens()


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
