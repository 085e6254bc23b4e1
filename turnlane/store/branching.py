"""Archives and branches as transactions: export, import, and a branch in its three steps.

A branch finds out whether it was made before, reads its source as it stands at one moment, and writes the copy. The
source may go on meanwhile, or be purged: what was read is a prefix that does not change any more.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, select

from turnlane.records.archives import (
    Archive,
    ArchivedEvent,
    Branched,
    BranchReceipt,
    BranchRequest,
    Imported,
)
from turnlane.records.base import canonical_json, derived_id
from turnlane.records.errors import (
    ArchiveInvalidError,
    ConversationExistsError,
    ConversationNotFoundError,
    IdempotencyConflictError,
)
from turnlane.records.ledger import LedgerKind
from turnlane.store.archived import check, read_archive
from turnlane.store.copying import copy_of
from turnlane.store.exporting import Kept, archive_in, archive_of, load_rows
from turnlane.store.importing import Rows, insert_conversation, rows_of
from turnlane.store.ledger import ledger_event
from turnlane.store.prefixes import prefix_of
from turnlane.store.reads import find_known
from turnlane.store.tables import LEDGER
from turnlane.store.work import find_conversation, refuse_purged


def import_rows(connection: Connection, incoming: Incoming) -> Imported:
    """Write a conversation under its own id, where the store has nothing."""
    _refuse_existing(connection, incoming.conversation_id)
    if incoming.events:
        insert_conversation(connection, incoming.rows)
    return Imported(conversation_id=incoming.conversation_id, events=incoming.events)


def _refuse_existing(connection: Connection, conversation_id: str) -> None:
    if find_conversation(connection, conversation_id) is not None:
        raise ConversationExistsError("there is something under this id already", conversation_id=conversation_id)
    refuse_purged(connection, conversation_id)


class Incoming(NamedTuple):
    """A conversation that was checked, ready to be written."""

    conversation_id: str
    events: int
    rows: list[Rows]


def incoming(data: bytes, tenant: str | None, now: datetime) -> Incoming:
    """Return what an archive brings."""
    archive = archive_in_bytes(data, tenant)
    return Incoming(archive.conversation_id, len(archive.events), rows_of(archive, now))


def archive_in_bytes(data: bytes, tenant: str | None) -> Archive:
    """Return the archive that the bytes are, which with a tenant must be one of its own."""
    archive = read_archive(data)
    if tenant is not None and archive.snapshot.tenant != tenant:
        raise ArchiveInvalidError("the archive is another tenant's")
    return archive


# --- branches -----------------------------------------------------------------------------------


def find_branch(connection: Connection, request: BranchRequest, tenant: str | None) -> Branched | None:
    """Return what the request was answered before; None if nothing is there under the destination's id.

    Raises `IdempotencyConflictError` for another request under the same key, and `ConversationExistsError` for
    whatever else is there.
    """
    destination = request.destination_conversation_id
    head = find_known(connection, destination, tenant)
    if head is None:
        return None
    where = (LEDGER.c.conversation_id == destination, LEDGER.c.kind == LedgerKind.BRANCHED)
    row = connection.execute(select(LEDGER).where(*where, LEDGER.c.once_key == request.request_key)).first()
    if row is None:
        raise ConversationExistsError("there is something under this id already", conversation_id=destination)
    receipt = BranchReceipt.model_validate_json(canonical_json(ledger_event(row).payload))
    if receipt.request_fingerprint != request.fingerprint:
        raise IdempotencyConflictError("the key was used before, for another branch", conversation_id=destination)
    return Branched(outcome="duplicate", receipt=receipt)


def load_source(connection: Connection, conversation_id: str, tenant: str | None) -> Kept:
    """Return the conversation to copy. Raises `ConversationNotFoundError`, and for a purged one its own error."""
    kept = load_rows(connection, conversation_id, tenant)
    if kept.head is None or kept.head.version == 0:
        if tenant is None:
            refuse_purged(connection, conversation_id)
        raise ConversationNotFoundError("there is no such conversation", conversation_id=conversation_id)
    return kept


def source_of(found: Kept | bytes, tenant: str | None) -> Archive:
    """Return the archive to copy from: of rows that were loaded, or of bytes."""
    if isinstance(found, Kept):
        return archive_in(found)
    archive = archive_in_bytes(found, tenant)
    if archive.snapshot.version == 0:
        raise ConversationNotFoundError("nothing was said in the archive's conversation")
    return archive


class Copied(NamedTuple):
    """The conversation to write, its last event the one that tells where it is from, and what is answered then."""

    archive: Archive
    receipt: BranchReceipt


def make_copy(request: BranchRequest, source: Archive, now: datetime) -> Copied:
    """Return what a branch of the source is."""
    prefix = prefix_of(source, request.source.through_run_id)
    copied = copy_of(prefix, request.destination_conversation_id, now)
    receipt = BranchReceipt(
        request_key=request.request_key,
        request_fingerprint=request.fingerprint,
        source_kind=request.source.kind,
        source_conversation_id=source.conversation_id,
        destination_conversation_id=request.destination_conversation_id,
        through_run_id=request.source.through_run_id,
        source_seq=len(prefix.events),
        source_version=prefix.snapshot.version,
        source_digest=hashlib.sha256(prefix.to_bytes()).hexdigest(),
        created_at=now,
    )
    event = ArchivedEvent(
        event_id=derived_id("ev", copied.conversation_id, str(len(copied.events) + 1)),
        conversation_id=copied.conversation_id,
        seq=len(copied.events) + 1,
        version=copied.snapshot.version,
        kind=LedgerKind.BRANCHED,
        occurred_at=now,
        payload=receipt.model_dump(mode="json"),
        once_key=request.request_key,
    )
    archive = archive_of(copied.snapshot, events=(*copied.events, event), spills=copied.spills)
    check(archive)
    return Copied(archive, receipt)


def insert_branch(
    connection: Connection, request: BranchRequest, receipt: BranchReceipt, rows: list[Rows], tenant: str | None
) -> Branched:
    """Write a copy, unless the same request made it meanwhile."""
    destination = request.destination_conversation_id
    if find_conversation(connection, destination) is not None:
        found = find_branch(connection, request, tenant)
        if found is None:
            raise ConversationExistsError("there is something under this id already", conversation_id=destination)
        return found
    refuse_purged(connection, destination)
    insert_conversation(connection, rows)
    return Branched(outcome="created", receipt=receipt)
