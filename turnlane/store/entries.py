"""The rows of durable tool bodies, and the calls that may be run again because they keep such rows."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from turnlane.records.durable import CALL_ENTRY, DurableEntry, EntryKind, SuspendedCall, call_scope
from turnlane.records.steps import Fence
from turnlane.store.content import CALLS_OF_STEP
from turnlane.store.statements import change_row, find_row, insert_rows, new_row
from turnlane.store.tables import DURABLE_ENTRY, SEGMENT, DurableEntryRow

_OF_SCOPE = select(DURABLE_ENTRY.c.kind, DURABLE_ENTRY.c.name, DURABLE_ENTRY.c.entry).where(
    DURABLE_ENTRY.c.conversation_id == bindparam("conversation_id"), DURABLE_ENTRY.c.scope == bindparam("scope")
)

_OPEN_CALLS = (
    select(SEGMENT.c.step, SEGMENT.c.tool_name, SEGMENT.c.call_id)
    .where(*CALLS_OF_STEP, SEGMENT.c.parts.is_(None))
    .order_by(SEGMENT.c.slot)
)


def load_entries(connection: Connection, conversation_id: str, scope: str) -> tuple[DurableEntry, ...]:
    """Return the entries of a scope."""
    rows = connection.execute(_OF_SCOPE, {"conversation_id": conversation_id, "scope": scope})
    return tuple(DurableEntry(kind=EntryKind(row.kind), name=row.name, entry=row.entry) for row in rows)


def find_entry(
    connection: Connection, conversation_id: str, scope: str, kind: EntryKind, name: str
) -> DurableEntry | None:
    """Return the entry of a kind under a name."""
    row = find_row(connection, DurableEntryRow, conversation_id, scope, kind, name)
    return None if row is None else DurableEntry(kind=kind, name=name, entry=row.entry)


def write_entry(
    connection: Connection, conversation_id: str, scope: str, entry: DurableEntry, now: datetime, *, is_new: bool
) -> None:
    """Insert an entry, or replace the text of the one that is there."""
    if not is_new:
        key = (conversation_id, scope, entry.kind, entry.name)
        change_row(connection, DurableEntryRow, key, entry=entry.entry, updated_at=now)
        return
    row = new_row(
        DurableEntryRow,
        conversation_id=conversation_id,
        scope=scope,
        kind=entry.kind,
        name=entry.name,
        entry=entry.entry,
        created_at=now,
        updated_at=now,
    )
    insert_rows(connection, DurableEntryRow, row)


# --- calls that may be run again ----------------------------------------------------------------


def mark_call(connection: Connection, fence: Fence, call: SuspendedCall, now: datetime) -> SuspendedCall | None:
    """Note how a durable call stands, and return how it stood before."""
    scope = call_scope(fence.run_id, fence.step, call.tool_name, call.call_id)
    before = _find_call(connection, fence.conversation_id, scope)
    entry = DurableEntry(kind=EntryKind.CALL, name=CALL_ENTRY, entry=call.model_dump_json())
    write_entry(connection, fence.conversation_id, scope, entry, now, is_new=before is None)
    return before


def unfinished_calls(
    connection: Connection, conversation_id: str, run_id: str, message_id: str, step: int
) -> tuple[SuspendedCall, ...]:
    """Return the calls of a step that have no result and may be run again, in call order."""
    where = {"conversation_id": conversation_id, "message_id": message_id, "step": step}
    rows = connection.execute(_OPEN_CALLS, where).all()
    scopes = [call_scope(run_id, row.step, row.tool_name, row.call_id) for row in rows]
    found = [_find_call(connection, conversation_id, scope) for scope in scopes]
    return tuple(call for call in found if call is not None)


def _find_call(connection: Connection, conversation_id: str, scope: str) -> SuspendedCall | None:
    found = find_entry(connection, conversation_id, scope, EntryKind.CALL, CALL_ENTRY)
    return None if found is None else SuspendedCall.model_validate_json(found.entry)
