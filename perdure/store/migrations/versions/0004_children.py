"""Events of runs that calls of other agents begin stand in the order of the run at the top."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("events", sa.Column("child", sa.Text))
    of_child = sa.text("child IS NOT NULL")
    op.create_index(
        "events_child", "events", ["context_id", "child", "seq"], sqlite_where=of_child, postgresql_where=of_child
    )
    op.add_column("feeds", sa.Column("root", sa.Text))
    op.add_column("feeds", sa.Column("path", sa.Text))
