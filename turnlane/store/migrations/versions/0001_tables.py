"""The tables."""

import sqlalchemy as sa
from alembic import op

from turnlane.store.columns import ExactString, UtcTimestamp

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "turnlane_blob",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("id", ExactString(256), nullable=False),
        sa.Column("digest", ExactString(32), nullable=False),
        sa.Column("media_type", ExactString(128), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("uses", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", "id"),
    )
    op.create_table(
        "turnlane_conversation",
        sa.Column("id", ExactString(256), nullable=False),
        sa.Column("agent", ExactString(128), nullable=True),
        sa.Column("tenant", ExactString(128), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lane_seq", sa.BigInteger(), nullable=False),
        sa.Column("ledger_seq", sa.BigInteger(), nullable=False),
        sa.Column("next_position", sa.BigInteger(), nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_order", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("updated_at", UtcTimestamp(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "turnlane_tombstone",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("answers", sa.Text(), nullable=False),
        sa.Column("purged_at", UtcTimestamp(), nullable=False),
        sa.PrimaryKeyConstraint("conversation_id"),
    )
    op.create_table(
        "turnlane_admission",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("idempotency_key", ExactString(256), nullable=False),
        sa.Column("content_digest", ExactString(128), nullable=False),
        sa.Column("input_message_id", ExactString(256), nullable=False),
        sa.Column("run_id", ExactString(256), nullable=False),
        sa.Column("assistant_message_id", ExactString(256), nullable=False),
        sa.Column("policy", ExactString(32), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["turnlane_conversation.id"],
        ),
        sa.PrimaryKeyConstraint("conversation_id", "idempotency_key"),
    )
    op.create_index("ix_turnlane_admission_run", "turnlane_admission", ["conversation_id", "run_id"], unique=False)
    op.create_index(
        "ux_turnlane_admission_input", "turnlane_admission", ["conversation_id", "input_message_id"], unique=True
    )
    op.create_index("ux_turnlane_admission_version", "turnlane_admission", ["conversation_id", "version"], unique=True)
    op.create_table(
        "turnlane_ledger_event",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("event_id", ExactString(256), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("kind", ExactString(128), nullable=False),
        sa.Column("occurred_at", UtcTimestamp(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("ignorable", sa.Boolean(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=True),
        sa.Column("once_key", ExactString(256), nullable=True),
        sa.Column("mutation_seq", sa.BigInteger(), nullable=True),
        sa.Column("digest", ExactString(32), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("revisions", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["turnlane_conversation.id"],
        ),
        sa.PrimaryKeyConstraint("conversation_id", "seq"),
    )
    op.create_index(
        "ux_turnlane_ledger_mutation", "turnlane_ledger_event", ["conversation_id", "mutation_seq"], unique=True
    )
    op.create_index(
        "ux_turnlane_ledger_once", "turnlane_ledger_event", ["conversation_id", "kind", "once_key"], unique=True
    )
    op.create_table(
        "turnlane_message",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("id", ExactString(256), nullable=False),
        sa.Column("run_id", ExactString(256), nullable=True),
        sa.Column("role", ExactString(32), nullable=False),
        sa.Column("status", ExactString(32), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("compacted", sa.Boolean(), nullable=False),
        sa.Column("details", sa.Text(), nullable=True),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("updated_at", UtcTimestamp(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["turnlane_conversation.id"],
        ),
        sa.PrimaryKeyConstraint("conversation_id", "id"),
    )
    op.create_index(
        "ux_turnlane_message_position", "turnlane_message", ["conversation_id", "position", "place"], unique=True
    )
    op.create_table(
        "turnlane_no_change",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("mutation_seq", sa.BigInteger(), nullable=False),
        sa.Column("digest", ExactString(32), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("ledger_seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["turnlane_conversation.id"],
        ),
        sa.PrimaryKeyConstraint("conversation_id", "mutation_seq"),
    )
    op.create_table(
        "turnlane_run",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("id", ExactString(256), nullable=False),
        sa.Column("assistant_message_id", ExactString(256), nullable=False),
        sa.Column("input_ids", sa.Text(), nullable=False),
        sa.Column("state", ExactString(32), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("admission_order", sa.BigInteger(), nullable=False),
        sa.Column("queue_priority", ExactString(32), nullable=True),
        sa.Column("execution_sequence", sa.BigInteger(), nullable=True),
        sa.Column("owner_id", sa.Text(), nullable=True),
        sa.Column("fencing_token", sa.BigInteger(), nullable=True),
        sa.Column("terminal_reason", ExactString(32), nullable=True),
        sa.Column("terminal_policy_name", ExactString(128), nullable=True),
        sa.Column("absorbed_into_run_id", ExactString(256), nullable=True),
        sa.Column("abort_reason", ExactString(32), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("last_operation", sa.Text(), nullable=True),
        sa.Column("context", sa.Text(), nullable=True),
        sa.Column("fence_step", sa.BigInteger(), nullable=False),
        sa.Column("fence_attempt", sa.BigInteger(), nullable=False),
        sa.Column("attempt_open", sa.Boolean(), nullable=False),
        sa.Column("steps_done", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint_seq", sa.BigInteger(), nullable=True),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.Column("updated_at", UtcTimestamp(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["turnlane_conversation.id"],
        ),
        sa.PrimaryKeyConstraint("conversation_id", "id"),
    )
    op.create_index(
        "ix_turnlane_run_active",
        "turnlane_run",
        ["conversation_id", "id"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'running', 'interrupt_requested')"),
        postgresql_where=sa.text("state IN ('queued', 'running', 'interrupt_requested')"),
    )
    op.create_index(
        "ux_turnlane_run_assistant", "turnlane_run", ["conversation_id", "assistant_message_id"], unique=True
    )
    op.create_index(
        "ux_turnlane_run_live",
        "turnlane_run",
        ["conversation_id"],
        unique=True,
        sqlite_where=sa.text("state IN ('running', 'interrupt_requested')"),
        postgresql_where=sa.text("state IN ('running', 'interrupt_requested')"),
    )
    op.create_index("ux_turnlane_run_order", "turnlane_run", ["conversation_id", "admission_order"], unique=True)
    op.create_table(
        "turnlane_seed",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("seed_key", ExactString(256), nullable=False),
        sa.Column("message_ids", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTimestamp(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["turnlane_conversation.id"],
        ),
        sa.PrimaryKeyConstraint("conversation_id", "seed_key"),
    )
    op.create_table(
        "turnlane_segment",
        sa.Column("conversation_id", ExactString(256), nullable=False),
        sa.Column("message_id", ExactString(256), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("kind", ExactString(32), nullable=False),
        sa.Column("call_id", ExactString(256), nullable=True),
        sa.Column("tool_name", ExactString(256), nullable=True),
        sa.Column("started_at", UtcTimestamp(), nullable=True),
        sa.Column("parts", sa.Text(), nullable=True),
        sa.CheckConstraint("parts IS NOT NULL OR kind = 'call'", name="ck_turnlane_segment_parts"),
        sa.ForeignKeyConstraint(
            ["conversation_id", "message_id"],
            ["turnlane_message.conversation_id", "turnlane_message.id"],
        ),
        sa.PrimaryKeyConstraint("conversation_id", "message_id", "step", "slot"),
    )
