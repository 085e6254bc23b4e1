"""What a branch inherited, which is not its own spend."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turnlane_conversation", sa.Column("inherited", sa.Text(), nullable=True))
