"""When a run was first acquired and first said something, for the times that operators are told."""

import sqlalchemy as sa
from alembic import op

from turnlane.store.columns import UtcTimestamp

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turnlane_run", sa.Column("started_at", UtcTimestamp(), nullable=True))
    op.add_column("turnlane_run", sa.Column("first_output_at", UtcTimestamp(), nullable=True))
