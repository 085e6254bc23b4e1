"""What approvals, durable tool bodies, prepared turns and budgets keep."""

import sqlalchemy as sa
from alembic import op

from turnlane.store.columns import ExactString, UtcTimestamp

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turnlane_conversation", sa.Column("spent", sa.Text(), nullable=True))
    op.add_column("turnlane_conversation", sa.Column("model", ExactString(128), nullable=True))
    op.add_column("turnlane_run", sa.Column("prepared", sa.Text(), nullable=True))
    op.add_column("turnlane_run", sa.Column("fence_model", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("turnlane_segment", sa.Column("approval_id", ExactString(256), nullable=True))
    op.add_column("turnlane_segment", sa.Column("approval", ExactString(32), nullable=True))
    op.add_column("turnlane_segment", sa.Column("approval_expires_at", UtcTimestamp(), nullable=True))
    op.create_index(
        "ux_turnlane_segment_approval", "turnlane_segment", ["conversation_id", "approval_id"], unique=True
    )
    op.create_index(
        "ix_turnlane_segment_pending",
        "turnlane_segment",
        ["conversation_id", "message_id"],
        sqlite_where=sa.text("approval = 'pending'"),
        postgresql_where=sa.text("approval = 'pending'"),
    )
    op.create_table(
        "turnlane_durable_entry",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("scope", ExactString(256), nullable=False),
        sa.Column("kind", ExactString(32), nullable=False),
        sa.Column("name", ExactString(256), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("updated_at", UtcTimestamp(), nullable=False),
        sa.ForeignKeyConstraint(["conversation_id"], ["turnlane_conversation.id"]),
        sa.PrimaryKeyConstraint("conversation_id", "scope", "kind", "name"),
    )
