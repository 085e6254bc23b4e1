"""A checked archive written into its rows: the inverse of exporting, so that another export is equal byte for byte.

An epoch travels, its owner does not: a lane that takes the conversation over has the next one, and whoever
wrote under the old one is fenced off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection
from sqlmodel import SQLModel

from turnlane.records.archives import (
    Archive,
    ArchivedEntry,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedNoChange,
    ArchivedRun,
    ArchivedSeed,
    ArchivedSnapshot,
    ArchivedSpill,
)
from turnlane.records.base import canonical_json
from turnlane.records.spending import Tally
from turnlane.store.archived import receipts_of
from turnlane.store.rows import dump_ids, dump_object, dump_parts, dump_usage
from turnlane.store.statements import insert_rows, new_row
from turnlane.store.tables import (
    AdmissionRow,
    BlobRow,
    ConversationRow,
    DurableEntryRow,
    LedgerRow,
    MessageRow,
    NoChangeRow,
    RunRow,
    SeedRow,
    SegmentRow,
)

Rows = tuple[type[SQLModel], list[Any]]


def rows_of(archive: Archive, now: datetime) -> list[Rows]:
    """Return the rows of a conversation that was checked, table by table in an order that foreign keys allow."""
    snapshot = archive.snapshot
    here = snapshot.conversation_id
    return [
        (ConversationRow, [_head(archive, now)]),
        (RunRow, [_run_row(here, run) for run in snapshot.runs]),
        (MessageRow, [_message_row(here, message) for message in snapshot.messages]),
        (SegmentRow, list(_segment_rows(here, snapshot))),
        (LedgerRow, [_event_row(event) for event in archive.events]),
        (AdmissionRow, list(_admission_rows(archive))),
        (SeedRow, [_seed_row(here, seed) for seed in snapshot.seeds]),
        (DurableEntryRow, [_kept(DurableEntryRow, here, entry) for entry in snapshot.entries]),
        (NoChangeRow, [_kept(NoChangeRow, here, row) for row in snapshot.unchanged]),
        (BlobRow, [_blob_row(here, spill) for spill in archive.spills]),
    ]


def insert_conversation(connection: Connection, rows: Iterable[Rows]) -> None:
    """Write the rows of a conversation that the store does not have."""
    for kind, records in rows:
        insert_rows(connection, kind, *records)


def _head(archive: Archive, now: datetime) -> ConversationRow:
    snapshot = archive.snapshot
    return new_row(
        ConversationRow,
        id=snapshot.conversation_id,
        agent=snapshot.agent,
        tenant=snapshot.tenant,
        version=snapshot.version,
        epoch=snapshot.epoch,
        lane_seq=snapshot.lane_seq,
        ledger_seq=len(archive.events),
        next_position=snapshot.next_position,
        first_position=snapshot.first_position,
        last_order=snapshot.last_order,
        spent=_dump_tally(snapshot.spent),
        inherited=_dump_tally(snapshot.inherited),
        model=snapshot.model,
        created_at=snapshot.created_at or now,
        updated_at=snapshot.updated_at or now,
    )


def _dump_tally(tally: Tally | None) -> str | None:
    return None if tally is None else tally.model_dump_json(exclude_none=True)


def _run_row(conversation_id: str, archived: ArchivedRun) -> RunRow:
    run = archived.run
    return new_row(
        RunRow,
        conversation_id=conversation_id,
        id=run.id,
        assistant_message_id=run.assistant_message_id,
        input_ids=dump_ids(run.input_message_ids),
        state=run.state,
        revision=run.revision,
        admission_order=run.admission_order,
        queue_priority=run.queue_priority,
        execution_sequence=run.execution_sequence,
        owner_id=run.owner_id,
        fencing_token=run.fencing_token,
        terminal_reason=run.terminal_reason,
        terminal_policy_name=run.terminal_policy_name,
        absorbed_into_run_id=run.absorbed_into_run_id,
        abort_reason=archived.abort_reason,
        failure=None if run.failure is None else run.failure.model_dump_json(),
        usage=dump_usage(run.usage),
        last_operation=None if run.last_operation is None else run.last_operation.model_dump_json(),
        context=dump_object(archived.context),
        fence_step=archived.fence_step,
        fence_attempt=archived.fence_attempt,
        attempt_open=archived.attempt_open,
        steps_done=archived.steps_done,
        checkpoint_seq=archived.checkpoint_seq,
        prepared=dump_object(archived.prepared),
        fence_model=archived.fence_model,
        started_at=archived.started_at,
        first_output_at=archived.first_output_at,
        created_at=run.created_at,
        updated_at=run.updated_at,
    )


def _message_row(conversation_id: str, message: ArchivedMessage) -> MessageRow:
    return new_row(
        MessageRow,
        conversation_id=conversation_id,
        id=message.id,
        run_id=message.run_id,
        role=message.role,
        status=message.status,
        position=message.position,
        place=message.place,
        compacted=message.compacted,
        details=dump_object(message.metadata),
        created_at=message.created_at,
        updated_at=message.updated_at,
    )


def _segment_rows(conversation_id: str, snapshot: ArchivedSnapshot) -> Iterable[SegmentRow]:
    for message in snapshot.messages:
        for piece in message.segments:
            fields = dict(piece) | {"parts": None if piece.parts is None else dump_parts(piece.parts)}
            yield new_row(SegmentRow, conversation_id=conversation_id, message_id=message.id, **fields)


def _event_row(event: ArchivedEvent) -> LedgerRow:
    mutation = event.mutation
    return new_row(
        LedgerRow,
        conversation_id=event.conversation_id,
        seq=event.seq,
        event_id=event.event_id,
        version=event.version,
        kind=event.kind,
        occurred_at=event.occurred_at,
        payload=canonical_json(event.payload),
        ignorable=event.ignorable is True,
        notes=canonical_json(list(event.notes)) if event.notes else None,
        once_key=event.once_key,
        mutation_seq=None if mutation is None else mutation.seq,
        digest=None if mutation is None else mutation.digest,
        epoch=None if mutation is None else mutation.epoch,
        revisions=None if mutation is None else json.dumps(mutation.revisions),
    )


def _admission_rows(archive: Archive) -> Iterable[AdmissionRow]:
    for receipt, version in receipts_of(archive):
        yield new_row(AdmissionRow, **receipt.model_dump(exclude={"schema_version"}), version=version)


def _seed_row(conversation_id: str, seed: ArchivedSeed) -> SeedRow:
    ids = dump_ids(seed.message_ids)
    return new_row(
        SeedRow, conversation_id=conversation_id, seed_key=seed.seed_key, message_ids=ids, created_at=seed.created_at
    )


def _kept(kind: type[Any], conversation_id: str, record: ArchivedEntry | ArchivedNoChange) -> Any:
    return new_row(kind, conversation_id=conversation_id, **dict(record))


def _blob_row(conversation_id: str, spill: ArchivedSpill) -> BlobRow:
    return new_row(
        BlobRow,
        conversation_id=conversation_id,
        id=spill.reference,
        digest=spill.reference.removeprefix("blob-"),
        media_type=spill.media_type,
        size=spill.size,
        uses=spill.uses,
        data=spill.data,
        created_at=spill.created_at,
    )
