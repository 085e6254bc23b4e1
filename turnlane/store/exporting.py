"""A conversation read from its rows into an archive. Nothing but the lane's owner is left out."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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


def _snapshot(kept: Kept, head: ConversationRow) -> ArchivedSnapshot:
    return ArchivedSnapshot(
        conversation_id=head.id,
        version=head.version,
        agent=head.agent,
        tenant=head.tenant,
        model=head.model,
        epoch=head.epoch,
        lane_seq=head.lane_seq,
        last_order=head.last_order,
        next_position=head.next_position,
        first_position=head.first_position,
        spent=_tally(head.spent),
        inherited=_tally(head.inherited),
        created_at=head.created_at,
        updated_at=head.updated_at,
        runs=tuple(map(_run, kept.runs)),
        messages=tuple(_messages(kept)),
        seeds=tuple(
            ArchivedSeed(seed_key=row.seed_key, message_ids=load_ids(row.message_ids), created_at=row.created_at)
            for row in kept.seeds
        ),
        entries=tuple(map(_entry, kept.entries)),
        unchanged=tuple(
            ArchivedNoChange(
                mutation_seq=row.mutation_seq, digest=row.digest, version=row.version, ledger_seq=row.ledger_seq
            )
            for row in kept.unchanged
        ),
    )


def _tally(text: str | None) -> Tally | None:
    return None if text is None else Tally.model_validate_json(text)


def _run(row: RunRow) -> ArchivedRun:
    return ArchivedRun(
        run=run_record(row),
        context=load_object(row.context),
        abort_reason=None if row.abort_reason is None else AbortReason(row.abort_reason),
        fence_step=row.fence_step,
        fence_attempt=row.fence_attempt,
        fence_model=row.fence_model,
        attempt_open=row.attempt_open,
        steps_done=row.steps_done,
        checkpoint_seq=row.checkpoint_seq,
        prepared=load_object(row.prepared),
        started_at=row.started_at,
        first_output_at=row.first_output_at,
    )


def _messages(kept: Kept) -> Iterable[ArchivedMessage]:
    pieces: dict[str, list[ArchivedSegment]] = defaultdict(list)
    for row in kept.segments:
        pieces[row.message_id].append(_segment(row))
    for message in kept.messages:
        yield ArchivedMessage(
            id=message.id,
            run_id=message.run_id,
            role=Role(message.role),
            status=MessageStatus(message.status),
            position=message.position,
            place=message.place,
            compacted=message.compacted,
            metadata=load_object(message.details),
            created_at=message.created_at,
            updated_at=message.updated_at,
            segments=tuple(pieces[message.id]),
        )


def _segment(row: SegmentRow) -> ArchivedSegment:
    return ArchivedSegment(
        step=row.step,
        slot=row.slot,
        kind=row.kind,
        call_id=row.call_id,
        tool_name=row.tool_name,
        started_at=row.started_at,
        approval_id=row.approval_id,
        approval=None if row.approval is None else ApprovalState(row.approval),
        approval_expires_at=row.approval_expires_at,
        parts=None if row.parts is None else load_parts(row.parts),
    )


def _entry(row: DurableEntryRow) -> ArchivedEntry:
    return ArchivedEntry(
        scope=row.scope,
        kind=EntryKind(row.kind),
        name=row.name,
        entry=row.entry,
        created_at=row.created_at,
        updated_at=row.updated_at,
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
