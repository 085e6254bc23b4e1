"""Where the journal of a durable tool body is kept: the store, under the call's fence."""

from __future__ import annotations

from collections.abc import Sequence

from turnlane.activities.clock import utc_now
from turnlane.activities.failing import persist
from turnlane.records.durable import DurableEntry, call_scope
from turnlane.records.steps import CallRequest
from turnlane.store.payloads import NewEvent
from turnlane.store.protocol import Store


class StoreLog:
    """The entries of one call. A store that does not answer is waited for."""

    def __init__(self, store: Store, request: CallRequest) -> None:
        self._store = store
        self._request = request
        self._scope = call_scope(request.asking_run_id, request.asking_step, request.tool_name, request.call_id)

    async def load(self) -> Sequence[DurableEntry]:
        """Return what this call recorded so far."""
        return await persist(lambda: self._store.load_entries(self._request.fence.conversation_id, self._scope))

    async def record(self, entry: DurableEntry, event: NewEvent, instead_of: str | None = None) -> DurableEntry:
        """Record an entry and return the one that stands. Raises `StaleFenceError`."""
        request = self._request
        return await persist(
            lambda: self._store.record_entry(
                request.fence,
                request.assistant_message_id,
                self._scope,
                entry,
                event,
                utc_now(),
                instead_of=instead_of,
            )
        )

    async def find_delivery(self, key: str) -> DurableEntry | None:
        """Return the event that was delivered under a key."""
        return await persist(lambda: self._store.find_delivery(self._request.fence.conversation_id, key))
