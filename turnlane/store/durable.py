"""What tool bodies record, and the events that are delivered to them. The first record under a name stands."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from turnlane.records.base import JsonObject
from turnlane.records.durable import CONVERSATION_SCOPE, Delivery, DurableEntry, EntryKind
from turnlane.records.ledger import LedgerKind
from turnlane.records.lossless import encode_lossless
from turnlane.records.steps import Fence
from turnlane.store.entries import find_entry, write_entry
from turnlane.store.fenced import ONLY_RUNNING, check_attempt
from turnlane.store.payloads import NewEvent
from turnlane.store.work import Work, create_conversation, find_conversation


def record_entry(
    connection: Connection,
    fence: Fence,
    assistant_id: str,
    scope: str,
    entry: DurableEntry,
    event: NewEvent,
    now: datetime,
    instead_of: str | None,
) -> DurableEntry:
    """Record an entry under a call's fence, unless another one stands; the one that stands afterwards."""
    work, _ = check_attempt(connection, fence, assistant_id, ONLY_RUNNING)
    found = find_entry(connection, fence.conversation_id, scope, entry.kind, entry.name)
    if found is not None and found.entry != instead_of:
        return found
    write_entry(connection, fence.conversation_id, scope, entry, now, is_new=found is None)
    _tell(work, event, now)
    return entry


def deliver(connection: Connection, conversation_id: str, delivery: Delivery, now: datetime) -> bool:
    """Keep an event's payload unless one was delivered before; whether this payload is the one that stands."""
    head = find_conversation(connection, conversation_id) or create_conversation(connection, conversation_id, now)
    payload = encode_lossless(delivery.payload)
    found = find_delivery(connection, conversation_id, delivery.key)
    if found is not None:
        return found.entry == payload
    entry = DurableEntry(kind=EntryKind.EVENT, name=delivery.key, entry=payload)
    write_entry(connection, conversation_id, CONVERSATION_SCOPE, entry, now, is_new=True)
    told: JsonObject = {"event": delivery.event, "id": delivery.id, "bytes": len(payload)}
    _tell(Work(connection, head), NewEvent(kind=LedgerKind.DURABLE_EVENT, payload=told), now)
    return True


def find_delivery(connection: Connection, conversation_id: str, key: str) -> DurableEntry | None:
    """Return what was delivered under an event's key."""
    return find_entry(connection, conversation_id, CONVERSATION_SCOPE, EntryKind.EVENT, key)


def _tell(work: Work, event: NewEvent, now: datetime) -> None:
    work.record(event.kind, now, event.payload)
    work.flush(now)
