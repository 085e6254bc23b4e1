"""The indexes that lists of conversations are read by."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_turnlane_conversation_created", "turnlane_conversation", ["created_at", "id"], unique=False)
    op.create_index(
        "ix_turnlane_conversation_tenant", "turnlane_conversation", ["tenant", "created_at", "id"], unique=False
    )
