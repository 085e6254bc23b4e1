"""A conversation read from its rows into an archive. Nothing but the lane's owner is left out."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection, select

from turnlane.records.approvals import ApprovalState
from turnlane.records.archives import (
    Archive,
    ArchivedEntry,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedMutation,
    ArchivedNoChange,
    ArchivedRun,
    ArchivedSeed,
    ArchivedSegment,
    ArchivedSnapshot,
    ArchivedSpill,
    SnapshotProjection,
)
from turnlane.records.durable import EntryKind
from turnlane.records.lane import AbortReason
from turnlane.records.messages import MessageStatus, Role
from turnlane.records.spending import Tally
from turnlane.store.ledger import ledger_event
from turnlane.store.reads import find_known
from turnlane.store.rows import Row, fetch, load_ids, load_object, load_parts, run_record
from turnlane.store.tables import (
    BLOB,
    DURABLE_ENTRY,
    LEDGER,
    MESSAGE,
    NO_CHANGE,
    RUN,
    SEED,
    SEGMENT,
    BlobRow,
    ConversationRow,
    DurableEntryRow,
    LedgerRow,
    MessageRow,
    NoChangeRow,
    RunRow,
    SeedRow,
    SegmentRow,
    table_of,
)

R = TypeVar("R", bound=BaseModel)


class Kept(NamedTuple):
    """The rows of a conversation, as they were at one moment."""

    conversation_id: str
    head: ConversationRow | None = None
    runs: Sequence[RunRow] = ()
    messages: Sequence[MessageRow] = ()
    segments: Sequence[SegmentRow] = ()
    events: Sequence[LedgerRow] = ()
    seeds: Sequence[SeedRow] = ()
    entries: Sequence[DurableEntryRow] = ()
    unchanged: Sequence[NoChangeRow] = ()
    blobs: Sequence[BlobRow] = ()


def load_rows(connection: Connection, conversation_id: str, tenant: str | None) -> Kept:
    """Return all that the store has of a conversation; nothing of an unknown one."""
    head = find_known(connection, conversation_id, tenant)
    if head is None or (head.version == 0 and head.ledger_seq == 0):
        return Kept(conversation_id)

    def rows(kind: type[Row], *order: Any) -> Sequence[Row]:
        table = table_of(kind)
        return fetch(connection, select(table).where(table.c.conversation_id == head.id).order_by(*order), kind)

    return Kept(
        conversation_id=head.id,
        head=head,
        runs=rows(RunRow, RUN.c.admission_order),
        messages=rows(MessageRow, MESSAGE.c.position, MESSAGE.c.place),
        segments=rows(SegmentRow, SEGMENT.c.message_id, SEGMENT.c.step, SEGMENT.c.slot),
        events=rows(LedgerRow, LEDGER.c.seq),
        seeds=rows(SeedRow, SEED.c.seed_key),
        entries=rows(DurableEntryRow, DURABLE_ENTRY.c.scope, DURABLE_ENTRY.c.kind, DURABLE_ENTRY.c.name),
        unchanged=rows(NoChangeRow, NO_CHANGE.c.mutation_seq),
        blobs=rows(BlobRow, BLOB.c.id),
    )


def archive_in(kept: Kept) -> Archive:
    """Return the archive that the rows are. Needs no connection: of a long conversation it takes a while."""
    if kept.head is None:
        return Archive.empty(kept.conversation_id)
    return archive_of(_snapshot(kept, kept.head), events=map(_event, kept.events), spills=map(_spill, kept.blobs))


def archive_of(
    snapshot: ArchivedSnapshot, events: Iterable[ArchivedEvent] = (), spills: Iterable[ArchivedSpill] = ()
) -> Archive:
    """Return the archive of these records."""
    return Archive(
        conversation_id=snapshot.conversation_id,
        events=tuple(events),
        projections=(SnapshotProjection(snapshot=snapshot),),
        spills=tuple(spills),
    )


def _alike(kind: type[R], row: Any, /, **other: Any) -> R:
    """A record with what a row has under the names of its fields, but for `other`."""
    return kind(**{name: getattr(row, name) for name in kind.model_fields if name not in other}, **other)


def _snapshot(kept: Kept, head: ConversationRow) -> ArchivedSnapshot:
    return _alike(
        ArchivedSnapshot,
        head,
        conversation_id=head.id,
        spent=_tally(head.spent),
        inherited=_tally(head.inherited),
        runs=tuple(map(_run, kept.runs)),
        messages=tuple(_messages(kept)),
        seeds=tuple(_alike(ArchivedSeed, row, message_ids=load_ids(row.message_ids)) for row in kept.seeds),
        entries=tuple(_alike(ArchivedEntry, row, kind=EntryKind(row.kind)) for row in kept.entries),
        unchanged=tuple(_alike(ArchivedNoChange, row) for row in kept.unchanged),
    )


def _tally(text: str | None) -> Tally | None:
    return None if text is None else Tally.model_validate_json(text)


def _run(row: RunRow) -> ArchivedRun:
    return _alike(
        ArchivedRun,
        row,
        run=run_record(row),
        context=load_object(row.context),
        abort_reason=None if row.abort_reason is None else AbortReason(row.abort_reason),
        prepared=load_object(row.prepared),
    )


def _messages(kept: Kept) -> Iterable[ArchivedMessage]:
    pieces: dict[str, list[ArchivedSegment]] = defaultdict(list)
    for row in kept.segments:
        pieces[row.message_id].append(_segment(row))
    for message in kept.messages:
        yield _alike(
            ArchivedMessage,
            message,
            role=Role(message.role),
            status=MessageStatus(message.status),
            metadata=load_object(message.details),
            segments=tuple(pieces[message.id]),
        )


def _segment(row: SegmentRow) -> ArchivedSegment:
    return _alike(
        ArchivedSegment,
        row,
        approval=None if row.approval is None else ApprovalState(row.approval),
        parts=None if row.parts is None else load_parts(row.parts),
    )


def _event(row: LedgerRow) -> ArchivedEvent:
    mutation = None
    if row.mutation_seq is not None:
        mutation = ArchivedMutation(
            seq=row.mutation_seq,
            digest=row.digest or "",
            epoch=row.epoch or 0,
            revisions=json.loads(row.revisions or "{}"),
        )
    return ArchivedEvent(
        **dict(ledger_event(row)),
        once_key=row.once_key,
        notes=tuple(json.loads(row.notes)) if row.notes else (),
        mutation=mutation,
    )


def _spill(row: BlobRow) -> ArchivedSpill:
    return ArchivedSpill(
        reference=row.id,
        media_type=row.media_type,
        size=row.size,
        sha256=hashlib.sha256(row.data).hexdigest(),
        uses=row.uses,
        created_at=row.created_at,
        base64=b64encode(row.data).decode(),
    )
