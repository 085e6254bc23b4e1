"""The activity behind `deliver`: an event from outside, kept for the tool bodies that wait for it."""

from __future__ import annotations

from temporalio import activity

from turnlane.activities.clock import utc_now
from turnlane.activities.failing import as_failures
from turnlane.records.durable import DeliverEvent, DeliveryReply
from turnlane.store.protocol import Store


class DeliveryWork:
    """Keeps deliveries. One instance serves all lanes of the process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn(name="deliver")
    @as_failures
    async def deliver(self, request: DeliverEvent) -> DeliveryReply:
        """Keep an event; the first delivery under its name stands."""
        accepted = await self._store.deliver(request.conversation_id, request.delivery, utc_now())
        return DeliveryReply(accepted=accepted)
