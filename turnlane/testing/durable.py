"""Durable tools without a worker: a notebook that stands for the store, and tries of a tool that write to it.

notebook = Notebook()
waits = await notebook.call(approve, {"order": 7})      # a Suspension: it waits for its event
notebook.deliver("approved", "7", {"by": "ann"})
reply = await notebook.call(approve, {"order": 7})      # a ToolReply: it went on with what it had recorded
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from turnlane.activities.durable import Journal, is_left
from turnlane.agent.durable import LeavesBody
from turnlane.agent.tools import Tool, ToolContext, ToolReply
from turnlane.records.base import Json
from turnlane.records.durable import DurableEntry, EntryKind, Suspension, event_key
from turnlane.records.errors import TurnlaneError
from turnlane.records.lossless import encode_lossless
from turnlane.store.payloads import NewEvent

CALL = ToolContext(conversation_id="conversation", run_id="run", step_number=0, call_id="call", agent="agent")


class Notebook:
    """What one call of a durable tool recorded, kept from one try to the next.

    `entries` can be read and spoilt, `events` are what the ledger was told. With `failure` set, whoever records
    something loses the call, as one does whose run was taken away.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[EntryKind, str], DurableEntry] = {}
        self.delivered: dict[str, DurableEntry] = {}
        self.events: list[NewEvent] = []
        self.failure: TurnlaneError | None = None
        self.tries = 0

    async def call(
        self, tool: Tool, arguments: Json, *, context: ToolContext = CALL, now: datetime | None = None
    ) -> ToolReply | Suspension:
        """Run the body once more: its reply, or what it waits for. `now` is the time by which it sleeps.

        Raises `failure` for a body that lost its call.
        """
        self.tries += 1
        journal = self.journal(replace(context, attempt=self.tries), now)
        try:
            return await tool.invoke(replace(context, attempt=self.tries, durable=journal), arguments)
        except (LeavesBody, BaseExceptionGroup) as error:
            if not is_left(error):
                raise
        finally:
            await journal.close()
        if journal.ended is not None:
            raise journal.ended
        return journal.suspension or Suspension(tried=self.tries)

    def journal(self, context: ToolContext = CALL, now: datetime | None = None) -> Journal:
        """What stands behind the durable methods of a context."""
        return Journal(self, context, _clock(now))

    def deliver(self, event: str, event_id: str, payload: Json = None) -> None:
        """Bring an event; the first under its id stands."""
        key = event_key(event, event_id)
        entry = DurableEntry(kind=EntryKind.EVENT, name=key, entry=encode_lossless(payload))
        self.delivered.setdefault(key, entry)

    # --- what a journal asks of it --------------------------------------------------------------

    async def load(self) -> Sequence[DurableEntry]:
        """Return what was recorded so far."""
        await asyncio.sleep(0)
        return list(self.entries.values())

    async def record(self, entry: DurableEntry, event: NewEvent, instead_of: str | None = None) -> DurableEntry:
        """Record an entry and return the one that stands."""
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        found = self.entries.get((entry.kind, entry.name))
        if found is not None and found.entry != instead_of:
            return found
        self.entries[entry.kind, entry.name] = entry
        self.events.append(event)
        return entry

    async def find_delivery(self, key: str) -> DurableEntry | None:
        """Return the event that was delivered under a key."""
        await asyncio.sleep(0)
        return self.delivered.get(key)


def _clock(now: datetime | None) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) if now is None else now
