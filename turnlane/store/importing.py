"""A checked archive written into its rows: the inverse of exporting, so that another export is equal byte for byte.

An epoch travels, its owner does not: a lane that takes the conversation over has the next one, and whoever
wrote under the old one is fenced off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection
from sqlmodel import SQLModel

from turnlane.records.archives import (
    Archive,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedRun,
    ArchivedSeed,
    ArchivedSnapshot,
    ArchivedSpill,
)
from turnlane.records.base import canonical_json
from turnlane.records.spending import Tally
from turnlane.store.archived import receipts_of, refuse
from turnlane.store.rows import Row, dump_ids, dump_object, dump_parts, dump_usage
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

LARGEST = 2**63 - 1

Rows = tuple[type[SQLModel], list[Any]]


def rows_of(archive: Archive, now: datetime) -> list[Rows]:
    """Return the rows of a conversation that was checked, table by table in an order that foreign keys allow."""
    snapshot = archive.snapshot
    here = snapshot.conversation_id
    rows: list[Rows] = [
        (ConversationRow, [_head(archive, now)]),
        (RunRow, [_run_row(run) for run in snapshot.runs]),
        (MessageRow, [_message_row(here, message) for message in snapshot.messages]),
        (SegmentRow, list(_segment_rows(here, snapshot))),
        (LedgerRow, [_event_row(event) for event in archive.events]),
        (AdmissionRow, list(_admission_rows(archive))),
        (SeedRow, [_seed_row(here, seed) for seed in snapshot.seeds]),
        (DurableEntryRow, [_alike(DurableEntryRow, each, conversation_id=here) for each in snapshot.entries]),
        (NoChangeRow, [_alike(NoChangeRow, each, conversation_id=here) for each in snapshot.unchanged]),
        (BlobRow, [_blob_row(here, spill) for spill in archive.spills]),
    ]
    for _, records in rows:
        for record in records:
            if any(isinstance(value, int) and abs(value) > LARGEST for value in vars(record).values()):
                refuse("a number is too large for a store")
    return rows


def insert_conversation(connection: Connection, rows: Iterable[Rows]) -> None:
    """Write the rows of a conversation that the store does not have."""
    for kind, records in rows:
        insert_rows(connection, kind, *records)


def _alike(kind: type[Row], /, *records: BaseModel, **other: Any) -> Row:
    """A row with what records have under the names of its columns, but for `other`."""
    columns = kind.model_fields.keys() - other.keys()
    return new_row(kind, **{name: value for record in records for name, value in record if name in columns}, **other)


def _head(archive: Archive, now: datetime) -> ConversationRow:
    snapshot = archive.snapshot
    return _alike(
        ConversationRow,
        snapshot,
        id=snapshot.conversation_id,
        ledger_seq=len(archive.events),
        spent=_dump_tally(snapshot.spent),
        inherited=_dump_tally(snapshot.inherited),
        created_at=snapshot.created_at or now,
        updated_at=snapshot.updated_at or now,
    )


def _dump_tally(tally: Tally | None) -> str | None:
    return None if tally is None else tally.model_dump_json(exclude_none=True)


def _run_row(archived: ArchivedRun) -> RunRow:
    run = archived.run
    return _alike(
        RunRow,
        run,
        archived,
        input_ids=dump_ids(run.input_message_ids),
        failure=None if run.failure is None else run.failure.model_dump_json(),
        usage=dump_usage(run.usage),
        last_operation=None if run.last_operation is None else run.last_operation.model_dump_json(),
        context=dump_object(archived.context),
        prepared=dump_object(archived.prepared),
    )


def _message_row(conversation_id: str, message: ArchivedMessage) -> MessageRow:
    return _alike(MessageRow, message, conversation_id=conversation_id, details=dump_object(message.metadata))


def _segment_rows(conversation_id: str, snapshot: ArchivedSnapshot) -> Iterable[SegmentRow]:
    for message in snapshot.messages:
        for piece in message.segments:
            parts = None if piece.parts is None else dump_parts(piece.parts)
            yield _alike(SegmentRow, piece, conversation_id=conversation_id, message_id=message.id, parts=parts)


def _event_row(event: ArchivedEvent) -> LedgerRow:
    mutation = event.mutation
    return _alike(
        LedgerRow,
        event,
        payload=canonical_json(event.payload),
        ignorable=event.ignorable is True,
        notes=canonical_json(list(event.notes)) if event.notes else None,
        mutation_seq=None if mutation is None else mutation.seq,
        digest=None if mutation is None else mutation.digest,
        epoch=None if mutation is None else mutation.epoch,
        revisions=None if mutation is None else json.dumps(mutation.revisions),
    )


def _admission_rows(archive: Archive) -> Iterable[AdmissionRow]:
    return (_alike(AdmissionRow, receipt, version=version) for receipt, version in receipts_of(archive))


def _seed_row(conversation_id: str, seed: ArchivedSeed) -> SeedRow:
    return _alike(SeedRow, seed, conversation_id=conversation_id, message_ids=dump_ids(seed.message_ids))


def _blob_row(conversation_id: str, spill: ArchivedSpill) -> BlobRow:
    return _alike(
        BlobRow,
        spill,
        conversation_id=conversation_id,
        id=spill.reference,
        digest=spill.reference.removeprefix("blob-"),
        data=spill.data,
    )
