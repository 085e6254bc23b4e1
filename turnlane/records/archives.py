"""Archives: a whole conversation as bytes, and what is asked and answered of importing one and of branching.

An archive is one JSON object in canonical form (sorted keys, no spaces, UTF-8): the ledger, the records as they
stand, and the large content that they refer to. What can be rebuilt from the ledger (the receipts of admissions)
is not in it twice.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from turnlane.records.approvals import ApprovalState
from turnlane.records.base import Count, JsonObject, Name, Record, RecordId, Timestamp, canonical_json
from turnlane.records.durable import EntryKind
from turnlane.records.lane import AbortReason
from turnlane.records.ledger import LedgerEvent
from turnlane.records.messages import MessageStatus, Part, Role
from turnlane.records.runs import Run, Version
from turnlane.records.spending import Tally

ARCHIVE_FORMAT: Final = "turnlane.conversation"
ARCHIVE_VERSION: Final = 1

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Key = Annotated[str, Field(min_length=1, max_length=256)]
Code = Annotated[str, Field(min_length=1, max_length=32)]


class ArchivedMutation(Record):
    """Which of the lane's mutations an event is, so that a repeat of it is answered as the first time."""

    seq: int
    digest: Code
    epoch: int
    revisions: dict[str, int]


class ArchivedEvent(LedgerEvent):
    """A ledger event with what the store keeps beside it: its once-key, and what watchers are told of it."""

    once_key: Key | None = None
    notes: tuple[JsonObject, ...] = ()
    mutation: ArchivedMutation | None = None


class ArchivedRun(Record):
    """A run, and the state of its fence."""

    run: Run
    context: JsonObject | None = None
    abort_reason: AbortReason | None = None
    fence_step: int = -1
    fence_attempt: Count = 0
    fence_model: Count = 0
    attempt_open: bool = False
    steps_done: Count = 0
    checkpoint_seq: int | None = None
    prepared: JsonObject | None = None
    started_at: Timestamp | None = None
    first_output_at: Timestamp | None = None


class ArchivedSegment(Record):
    """A piece of a message: an input's content, a step's output, or one call and its result."""

    step: Count
    slot: Count
    kind: Code
    call_id: RecordId | None = None
    tool_name: Key | None = None
    started_at: Timestamp | None = None
    approval_id: RecordId | None = None
    approval: ApprovalState | None = None
    approval_expires_at: Timestamp | None = None
    parts: tuple[Part, ...] | None = None


class ArchivedMessage(Record):
    """A message in its place; those too that a summary stands for."""

    id: RecordId
    run_id: RecordId | None = None
    role: Role
    status: MessageStatus
    position: int
    place: int = 0
    compacted: bool = False
    metadata: JsonObject | None = None
    created_at: Timestamp
    updated_at: Timestamp
    segments: tuple[ArchivedSegment, ...] = ()


class ArchivedSeed(Record):
    """That a seed was planted, whatever became of its messages."""

    seed_key: RecordId
    message_ids: tuple[RecordId, ...]
    created_at: Timestamp


class ArchivedEntry(Record):
    """What a durable tool body recorded, or an event that was delivered to it. `entry` is kept as it was written."""

    scope: Key
    kind: EntryKind
    name: Key
    entry: str
    created_at: Timestamp
    updated_at: Timestamp


class ArchivedNoChange(Record):
    """A mutation that changed nothing, and what it was answered."""

    mutation_seq: int
    digest: Code
    version: Version
    ledger_seq: int


class ArchivedSnapshot(Record):
    """The records of a conversation as they stand. An unknown conversation has version 0 and nothing else."""

    conversation_id: RecordId
    version: Version = 0
    agent: Name | None = None
    tenant: Name | None = None
    model: Name | None = None
    epoch: Count = 0
    lane_seq: Count = 0
    last_order: Count = 0
    next_position: int = 1
    first_position: int = 0
    spent: Tally | None = None
    inherited: Tally | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    runs: tuple[ArchivedRun, ...] = ()
    messages: tuple[ArchivedMessage, ...] = ()
    seeds: tuple[ArchivedSeed, ...] = ()
    entries: tuple[ArchivedEntry, ...] = ()
    unchanged: tuple[ArchivedNoChange, ...] = ()


class SnapshotProjection(Record):
    """The first of an archive's projections: the records themselves."""

    archive_type: Literal["runtime-snapshot"] = "runtime-snapshot"
    snapshot: ArchivedSnapshot


class ArchivedSpill(Record):
    """Large content by reference, with what is needed to see that it is whole."""

    reference: RecordId
    media_type: Name
    size: Count
    sha256: Sha256
    uses: Count = 1
    created_at: Timestamp
    base64: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]

    @property
    def data(self) -> bytes:
        """The content itself."""
        return b64decode(self.base64)


class Archive(Record):
    """A conversation, whole: its ledger, its records, its large content."""

    format: Literal["turnlane.conversation"] = ARCHIVE_FORMAT
    format_version: Literal[1] = ARCHIVE_VERSION
    conversation_id: RecordId
    events: tuple[ArchivedEvent, ...] = ()
    projections: Annotated[tuple[SnapshotProjection, ...], Field(min_length=1, max_length=1)]
    spills: tuple[ArchivedSpill, ...] = ()

    @classmethod
    def empty(cls, conversation_id: str) -> Archive:
        """The archive of a conversation of which nothing is known."""
        snapshot = ArchivedSnapshot(conversation_id=conversation_id)
        return cls(conversation_id=conversation_id, projections=(SnapshotProjection(snapshot=snapshot),))

    @property
    def snapshot(self) -> ArchivedSnapshot:
        """The records."""
        return self.projections[0].snapshot

    def to_bytes(self) -> bytes:
        """The archive in its canonical form: equal archives are equal byte for byte."""
        return canonical_json(self.model_dump(mode="json")).encode()


class Imported(Record):
    """A conversation was restored under its own id, with so many ledger events."""

    conversation_id: RecordId
    events: Count


@dataclass(frozen=True, kw_only=True)
class ConversationSource:
    """Branch from a conversation of the store: up to the end of one run, or all of it."""

    kind: ClassVar[Literal["conversation"]] = "conversation"

    conversation_id: str
    through_run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ArchiveSource:
    """Branch from an archive: up to the end of one run, or all of it."""

    kind: ClassVar[Literal["archive"]] = "archive"

    data: bytes
    through_run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class BranchRequest:
    """Make a new conversation that begins with what was said in another one. The key makes a repeat the same branch."""

    request_key: str
    destination_conversation_id: str
    source: ConversationSource | ArchiveSource

    @property
    def fingerprint(self) -> str:
        """Tells this request from another one under its key. Of an archive it binds the bytes."""
        source = self.source
        origin = source.conversation_id if isinstance(source, ConversationSource) else _sha256(source.data)
        selected = [self.destination_conversation_id, source.kind, origin, source.through_run_id]
        return _sha256(canonical_json(selected).encode())


class BranchReceipt(Record):
    """What a branch was made of: which conversation, up to which event, and a digest of all that was copied."""

    schema_version: Literal[1] = 1
    request_key: RecordId
    request_fingerprint: Sha256
    source_kind: Literal["conversation", "archive"]
    source_conversation_id: RecordId
    destination_conversation_id: RecordId
    through_run_id: RecordId | None = None
    source_seq: Count
    source_version: Version
    source_digest: Sha256
    created_at: Timestamp


class Branched(Record):
    """The answer to a branch request: made now, or before under the same key."""

    outcome: Literal["created", "duplicate"]
    receipt: BranchReceipt


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
