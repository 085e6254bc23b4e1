"""The tables: one class a table, one row a fact. Names start with `turnlane_`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, cast

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, LargeBinary, MetaData, Table, text
from sqlmodel import Field, SQLModel

from turnlane.store.columns import CODE, COUNT, JSON_TEXT, NAME, RECORD_ID, TIMESTAMP

LIVE = "state IN ('running', 'interrupt_requested')"
ACTIVE = "state IN ('queued', 'running', 'interrupt_requested')"
PENDING = "approval = 'pending'"


class StoreTable(SQLModel):
    """The base of every table, with metadata of its own so that an application's tables stay apart."""

    metadata: ClassVar[MetaData] = MetaData()


def _id(**options: Any) -> Any:
    return Field(sa_type=cast(Any, RECORD_ID), **options)


def _name(**options: Any) -> Any:
    return Field(sa_type=cast(Any, NAME), **options)


def _code(**options: Any) -> Any:
    return Field(sa_type=cast(Any, CODE), **options)


def _count(**options: Any) -> Any:
    return Field(sa_type=cast(Any, COUNT), **options)


def _json(**options: Any) -> Any:
    return Field(sa_type=cast(Any, JSON_TEXT), **options)


def _time(**options: Any) -> Any:
    return Field(sa_type=cast(Any, TIMESTAMP), **options)


def _of_conversation() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["conversation_id"], ["turnlane_conversation.id"])


class ConversationRow(StoreTable, table=True):
    """A conversation's head: its counters, and which incarnation of the lane may commit.

    A row with version 0 only reserves an epoch; every read takes it for unknown. `ledger_seq`,
    `lane_seq` and `last_order` name the last one given; `next_position` and `first_position` bound the
    positions given to messages, from below exclusively and from above inclusively. `spent` is the tally
    of all ended runs; NULL in a conversation from before it was kept, while none of its runs has ended since.
    `inherited` is the tally of what a branch copied: its source spent that. `model` is the key of the model that
    it chose.
    """

    __tablename__ = "turnlane_conversation"
    __table_args__ = (
        Index("ix_turnlane_conversation_created", "created_at", "id"),
        Index("ix_turnlane_conversation_tenant", "tenant", "created_at", "id"),
    )

    id: str = _id(primary_key=True)
    agent: str | None = _name(default=None)
    tenant: str | None = _name(default=None)
    version: int = _count(default=0)
    epoch: int = _count(default=0)
    owner: str | None = _json(default=None)
    lane_seq: int = _count(default=0)
    ledger_seq: int = _count(default=0)
    next_position: int = _count(default=1)
    first_position: int = _count(default=0)
    last_order: int = _count(default=0)
    spent: str | None = _json(default=None)
    inherited: str | None = _json(default=None)
    model: str | None = _name(default=None)
    created_at: datetime = _time()
    updated_at: datetime = _time()


class RunRow(StoreTable, table=True):
    """A run, and the state of its fence.

    `fence_step` and `fence_attempt` name the attempt that may write under `fencing_token`;
    `attempt_open` says that an attempt began whose end was never stored; `steps_done` counts the steps
    whose output is kept; `checkpoint_seq` is the ledger seq of the draft as it stands. `prepared` is what
    was prepared once for all steps of the run; `fence_model` is which of the agent's models it speaks with.
    """

    __tablename__ = "turnlane_run"
    __table_args__ = (
        _of_conversation(),
        Index("ux_turnlane_run_assistant", "conversation_id", "assistant_message_id", unique=True),
        Index("ux_turnlane_run_order", "conversation_id", "admission_order", unique=True),
        # The indexes are partial on PostgreSQL too: the migrations say so. To name its dialect here would
        # load all of it in every worker, for a tenth of the start.
        # At most one live run a conversation: the database's own word on it, whoever wrote.
        Index(
            "ux_turnlane_run_live",
            "conversation_id",
            unique=True,
            sqlite_where=text(LIVE),
        ),
        Index(
            "ix_turnlane_run_active",
            "conversation_id",
            "id",
            sqlite_where=text(ACTIVE),
        ),
    )

    conversation_id: str = _id(primary_key=True)
    id: str = _id(primary_key=True)
    assistant_message_id: str = _id()
    input_ids: str = _json()
    state: str = _code()
    revision: int = _count(default=0)
    admission_order: int = _count()
    queue_priority: str | None = _code(default=None)
    execution_sequence: int | None = _count(default=None)
    owner_id: str | None = _json(default=None)
    fencing_token: int | None = _count(default=None)
    terminal_reason: str | None = _code(default=None)
    terminal_policy_name: str | None = _name(default=None)
    absorbed_into_run_id: str | None = _id(default=None)
    abort_reason: str | None = _code(default=None)
    failure: str | None = _json(default=None)
    usage: str | None = _json(default=None)
    last_operation: str | None = _json(default=None)
    context: str | None = _json(default=None)
    fence_step: int = _count(default=-1)
    fence_attempt: int = _count(default=0)
    attempt_open: bool = Field(default=False)
    steps_done: int = _count(default=0)
    checkpoint_seq: int | None = _count(default=None)
    prepared: str | None = _json(default=None)
    fence_model: int = _count(default=0, sa_column_kwargs={"server_default": "0"})
    started_at: datetime | None = _time(default=None)
    first_output_at: datetime | None = _time(default=None)
    created_at: datetime = _time()
    updated_at: datetime = _time()


class MessageRow(StoreTable, table=True):
    """A message without its content, and its place in the causal order: `position`, then `place`.

    The inputs of one run share a position and differ in place; so a run's block moves as one. `run_id`
    is the run that owns the message now, of inputs too: absorption moves them.
    """

    __tablename__ = "turnlane_message"
    __table_args__ = (
        _of_conversation(),
        Index("ux_turnlane_message_position", "conversation_id", "position", "place", unique=True),
    )

    conversation_id: str = _id(primary_key=True)
    id: str = _id(primary_key=True)
    run_id: str | None = _id(default=None)
    role: str = _code()
    status: str = _code()
    position: int = _count()
    place: int = _count(default=0)
    compacted: bool = Field(default=False)
    # The record's `metadata`; that name is taken on a SQLModel class.
    details: str | None = _json(default=None)
    created_at: datetime = _time()
    updated_at: datetime = _time()


class SegmentRow(StoreTable, table=True):
    """A piece of a message's content: the parts of an input, of one model step, or one call's result.

    `parts` is a JSON list; NULL on a call that has no result yet. A call that somebody must approve has an
    `approval_id`; `approval` is how that stands (pending, approved, denied, withdrawn).
    """

    __tablename__ = "turnlane_segment"
    __table_args__ = (
        ForeignKeyConstraint(
            ["conversation_id", "message_id"], ["turnlane_message.conversation_id", "turnlane_message.id"]
        ),
        CheckConstraint("parts IS NOT NULL OR kind = 'call'", name="ck_turnlane_segment_parts"),
        Index("ux_turnlane_segment_approval", "conversation_id", "approval_id", unique=True),
        Index("ix_turnlane_segment_pending", "conversation_id", "message_id", sqlite_where=text(PENDING)),
    )

    conversation_id: str = _id(primary_key=True)
    message_id: str = _id(primary_key=True)
    step: int = _count(primary_key=True)
    slot: int = _count(primary_key=True)
    kind: str = _code()
    call_id: str | None = _id(default=None)
    tool_name: str | None = _id(default=None)
    started_at: datetime | None = _time(default=None)
    approval_id: str | None = _id(default=None)
    approval: str | None = _code(default=None)
    approval_expires_at: datetime | None = _time(default=None)
    parts: str | None = _json(default=None)


class AdmissionRow(StoreTable, table=True):
    """The receipt of one admission; `version` is the conversation's after it."""

    __tablename__ = "turnlane_admission"
    __table_args__ = (
        _of_conversation(),
        Index("ux_turnlane_admission_input", "conversation_id", "input_message_id", unique=True),
        Index("ux_turnlane_admission_version", "conversation_id", "version", unique=True),
        Index("ix_turnlane_admission_run", "conversation_id", "run_id"),
    )

    conversation_id: str = _id(primary_key=True)
    idempotency_key: str = _id(primary_key=True)
    content_digest: str = _name()
    input_message_id: str = _id()
    run_id: str = _id()
    assistant_message_id: str = _id()
    policy: str = _code()
    version: int = _count()


class LedgerRow(StoreTable, table=True):
    """A ledger event; of a lane's mutation also what a repeat of it is answered from.

    `notes` holds what watchers are told of it, without message content.
    """

    __tablename__ = "turnlane_ledger_event"
    __table_args__ = (
        _of_conversation(),
        Index("ux_turnlane_ledger_mutation", "conversation_id", "mutation_seq", unique=True),
        Index("ux_turnlane_ledger_once", "conversation_id", "kind", "once_key", unique=True),
    )

    conversation_id: str = _id(primary_key=True)
    seq: int = _count(primary_key=True)
    event_id: str = _id()
    version: int = _count()
    kind: str = _name()
    occurred_at: datetime = _time()
    payload: str = _json()
    ignorable: bool = Field(default=False)
    notes: str | None = _json(default=None)
    once_key: str | None = _id(default=None)
    mutation_seq: int | None = _count(default=None)
    digest: str | None = _code(default=None)
    epoch: int | None = _count(default=None)
    revisions: str | None = _json(default=None)


class NoChangeRow(StoreTable, table=True):
    """A mutation that changed nothing and so left no ledger event: what a repeat is answered from."""

    __tablename__ = "turnlane_no_change"
    __table_args__ = (_of_conversation(),)

    conversation_id: str = _id(primary_key=True)
    mutation_seq: int = _count(primary_key=True)
    digest: str = _code()
    version: int = _count()
    ledger_seq: int = _count()


class SeedRow(StoreTable, table=True):
    """The receipt of a seed: it is planted once, whatever becomes of its messages."""

    __tablename__ = "turnlane_seed"
    __table_args__ = (_of_conversation(),)

    conversation_id: str = _id(primary_key=True)
    seed_key: str = _id(primary_key=True)
    message_ids: str = _json()
    created_at: datetime = _time()


class BlobRow(StoreTable, table=True):
    """Large content by digest. `uses` counts those who put it and have not taken it into a message."""

    __tablename__ = "turnlane_blob"

    conversation_id: str = _id(primary_key=True)
    id: str = _id(primary_key=True)
    digest: str = _code()
    media_type: str = _name()
    size: int = _count()
    uses: int = _count(default=1)
    data: bytes = Field(sa_type=LargeBinary)
    created_at: datetime = _time()


class DurableEntryRow(StoreTable, table=True):
    """What a tool body recorded under a name, so that its next try goes on from there.

    `scope` names the call that recorded it; `entry` is a JSON record.
    """

    __tablename__ = "turnlane_durable_entry"
    __table_args__ = (_of_conversation(),)

    conversation_id: str = _id(primary_key=True)
    scope: str = _id(primary_key=True)
    kind: str = _code(primary_key=True)
    name: str = _id(primary_key=True)
    entry: str = _json()
    created_at: datetime = _time()
    updated_at: datetime = _time()


class TombstoneRow(StoreTable, table=True):
    """A purged conversation. `answers` holds what the purging batch was answered, for its repeat."""

    __tablename__ = "turnlane_tombstone"

    conversation_id: str = _id(primary_key=True)
    epoch: int = _count()
    answers: str = _json()
    purged_at: datetime = _time()


def table_of(row: type[SQLModel]) -> Table:
    """Return the table behind a row class, for statements."""
    return cast(Table, row.__table__)  # type: ignore[attr-defined]


CONVERSATION = table_of(ConversationRow)
RUN = table_of(RunRow)
MESSAGE = table_of(MessageRow)
SEGMENT = table_of(SegmentRow)
ADMISSION = table_of(AdmissionRow)
LEDGER = table_of(LedgerRow)
NO_CHANGE = table_of(NoChangeRow)
SEED = table_of(SeedRow)
BLOB = table_of(BlobRow)
DURABLE_ENTRY = table_of(DurableEntryRow)
TOMBSTONE = table_of(TombstoneRow)

IS_ACTIVE = text(f"turnlane_run.{ACTIVE}")
IS_PENDING = text(f"turnlane_segment.{PENDING}")

OWNED = (SEGMENT, MESSAGE, RUN, ADMISSION, LEDGER, NO_CHANGE, SEED, DURABLE_ENTRY, BLOB)
"""What a purge deletes before the conversation itself, in an order that foreign keys allow."""
