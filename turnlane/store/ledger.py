"""The ledger read back, and events that change no record appended to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from turnlane.records.base import JsonObject
from turnlane.records.errors import InvalidInputError, StoreIntegrityError
from turnlane.records.events import DurableEvent
from turnlane.records.ledger import LedgerEvent, LedgerPage
from turnlane.store.delivery import CheckpointNote, Told, load_notes, make_events
from turnlane.store.pages import check_limit
from turnlane.store.reads import find_known, find_visible
from turnlane.store.rows import load_object, select_active
from turnlane.store.spending import count_spend, spent_without_run
from turnlane.store.tables import LEDGER, RUN
from turnlane.store.work import KNOWN_KINDS, Work, create_conversation, find_conversation


def ledger_event(row: Any) -> LedgerEvent:
    """Return the event that a row holds; one of a kind that this release must know, and does not, is refused."""
    if row.kind not in KNOWN_KINDS and not row.ignorable:
        raise StoreIntegrityError("the ledger has an event of an unknown kind", seq=row.seq, kind=row.kind)
    return LedgerEvent(
        event_id=row.event_id,
        conversation_id=row.conversation_id,
        seq=row.seq,
        version=row.version,
        kind=row.kind,
        occurred_at=row.occurred_at,
        payload=load_object(row.payload) or {},
        ignorable=True if row.ignorable else None,
    )


def append_event(
    connection: Connection, conversation_id: str, kind: str, payload: JsonObject, now: datetime, key: str | None
) -> LedgerEvent:
    """Append an event; with a key that this kind has seen, return the one that is there."""
    head = find_conversation(connection, conversation_id) or create_conversation(connection, conversation_id, now)
    found = None if key is None else find_event(connection, conversation_id, kind, key)
    if found is not None:
        return found
    work = Work(connection, head)
    entry = work.record(kind, now, payload)
    entry.once_key = key
    count_spend(work, spent_without_run(kind, payload))
    work.flush(head.updated_at)
    return ledger_event(entry)


def find_event(connection: Connection, conversation_id: str, kind: str, key: str) -> LedgerEvent | None:
    """Return the event of a kind that was appended under a key."""
    where = (LEDGER.c.conversation_id == conversation_id, LEDGER.c.kind == kind, LEDGER.c.once_key == key)
    found = connection.execute(select(LEDGER).where(*where)).first()
    return None if found is None else ledger_event(found)


def read_events(
    connection: Connection,
    conversation_id: str,
    from_seq: int | None,
    to_seq: int | None,
    limit: int,
    tenant: str | None,
    kinds: Sequence[str] | None = None,
) -> LedgerPage:
    """Return events in order, both bounds included; `next_seq` only if more match."""
    _check_bounds(from_seq, to_seq)
    query = select(LEDGER).where(LEDGER.c.conversation_id == conversation_id, LEDGER.c.seq >= (from_seq or 1))
    if to_seq is not None:
        query = query.where(LEDGER.c.seq <= to_seq)
    if kinds is not None:
        query = query.where(LEDGER.c.kind.in_(kinds))
    query = query.order_by(LEDGER.c.seq).limit(check_limit(limit) + 1)
    if tenant is not None and find_visible(connection, conversation_id, tenant) is None:
        return LedgerPage(items=())
    rows = connection.execute(query).all()
    items = tuple(ledger_event(row) for row in rows[:limit])
    return LedgerPage(items=items, next_seq=items[-1].seq + 1 if len(rows) > limit else None)


def _check_bounds(from_seq: int | None, to_seq: int | None) -> None:
    if any(bound is not None and bound < 1 for bound in (from_seq, to_seq)):
        raise InvalidInputError("a ledger starts at 1", fields=["from_seq", "to_seq"])
    if from_seq is not None and to_seq is not None and from_seq > to_seq:
        raise InvalidInputError("from_seq is behind to_seq", fields=["from_seq", "to_seq"])


def last_seq(connection: Connection, conversation_id: str, tenant: str | None) -> int:
    """Return the seq of the last event; 0 for a conversation that has none, or that the tenant may not see."""
    # Refusals are written down before anything is committed.
    head = find_known(connection, conversation_id, tenant)
    return head.ledger_seq if head is not None else 0


def seq_before_version(connection: Connection, conversation_id: str, version: int, tenant: str | None) -> int:
    """Return the seq just before the first event at or after a version."""
    if find_visible(connection, conversation_id, tenant) is None:
        return 0
    # From the end: versions grow with seq, no index has them, and who asks wants a recent one.
    where = (LEDGER.c.conversation_id == conversation_id, LEDGER.c.version < version)
    query = select(LEDGER.c.seq).where(*where).order_by(LEDGER.c.seq.desc()).limit(1)
    return connection.execute(query).scalar() or 0


def events_since(
    connection: Connection, conversation_id: str, seq: int, limit: int, tenant: str | None
) -> tuple[tuple[DurableEvent, ...], int]:
    """Return what watchers were told after `seq`, and the last seq read; of drafts only the ones that stand."""
    columns = (LEDGER.c.seq, LEDGER.c.version, LEDGER.c.occurred_at, LEDGER.c.notes)
    query = select(*columns).where(LEDGER.c.conversation_id == conversation_id, LEDGER.c.seq > seq)
    query = query.order_by(LEDGER.c.seq).limit(check_limit(limit))
    if find_visible(connection, conversation_id, tenant) is None:
        return (), seq
    rows = connection.execute(query).all()
    drafts = _standing_drafts(connection, conversation_id)
    told = [
        Told(note, row.version, row.occurred_at)
        for row in rows
        for note in load_notes(row.notes)
        if not isinstance(note, CheckpointNote) or row.seq in drafts
    ]
    return make_events(connection, conversation_id, told, {}), rows[-1].seq if rows else seq


def _standing_drafts(connection: Connection, conversation_id: str) -> frozenset[int]:
    active = select_active(RUN.c.conversation_id == conversation_id)
    drafts = connection.execute(active.with_only_columns(RUN.c.checkpoint_seq)).scalars()
    return frozenset(seq for seq in drafts if seq is not None)
