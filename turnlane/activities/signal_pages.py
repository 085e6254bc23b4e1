"""Signal pages: inputs that a lane cannot take along to its next history, kept in the store meanwhile."""

from __future__ import annotations

from temporalio import activity

from turnlane.activities.clock import utc_now
from turnlane.activities.failing import as_failures
from turnlane.records.admissions import BlobRef
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.mutations import PageRequest, SignalPage
from turnlane.store.protocol import Store


class SignalPages:
    """Keeps pages. One instance serves all lanes of the process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn(name="keep_signals")
    @as_failures
    async def keep(self, page: SignalPage) -> BlobRef:
        """Keep a page, until the conversation is purged. Kept again, it is the same."""
        data = page.model_dump_json().encode()
        return await self._store.put_blob(page.conversation_id, data, "application/json", utc_now())

    @activity.defn(name="load_signals")
    @as_failures
    async def load(self, request: PageRequest) -> SignalPage:
        """Return a page as it was kept. Nothing is left of one whose conversation was purged."""
        data = await self._store.get_blob(request.conversation_id, request.page.id)
        if data is not None:
            return SignalPage.model_validate_json(data)
        if not await self._store.is_purged(request.conversation_id):
            raise StoreIntegrityError("a page of signalled inputs is gone", blob_id=request.page.id)
        return SignalPage(conversation_id=request.conversation_id, inputs=())
