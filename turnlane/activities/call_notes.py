"""Call notes: what a tool of turnlane's own wants the ledger to keep of its call."""

from __future__ import annotations

from turnlane.activities.clock import utc_now
from turnlane.activities.failing import persist
from turnlane.agent.tool_context import CallNote, ToolContext
from turnlane.records.base import derived_id
from turnlane.store.protocol import Store


async def keep_notes(store: Store, context: ToolContext) -> None:
    """Append the notes of a call to the ledger, each once, however often the call is tried."""
    for number, note in enumerate(context.notes):
        await _keep(store, context, note, number)


async def _keep(store: Store, context: ToolContext, note: CallNote, number: int) -> None:
    key = derived_id("note", context.idempotency_key, str(number))
    await persist(lambda: store.append_event(context.conversation_id, note.kind, note.payload, utc_now(), key))
