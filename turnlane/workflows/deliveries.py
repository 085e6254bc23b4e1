"""Deliveries: events from outside that tool bodies wait for. Kept in the store, then told to the round under way."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow

from turnlane.records.durable import PAYLOAD_BYTES, DeliverEvent, Delivery, DeliveryReply
from turnlane.records.errors import ConversationPurgedError, InputTooLargeError, InvalidInputError, TurnlaneError
from turnlane.records.lossless import NotLosslessError, encode_lossless
from turnlane.workflows.calls import as_failure, store_call
from turnlane.workflows.core import LaneCore

DELIVER = "deliver"


class Deliveries:
    """Takes what is delivered to a lane. `heard` is told the key of each event once it is durable."""

    def __init__(self, core: LaneCore, heard: Callable[[str], None]) -> None:
        self._core = core
        self._heard = heard

    def objection(self, delivery: Delivery) -> TurnlaneError | None:
        """What is wrong with a delivery whatever the store says."""
        try:
            size = len(encode_lossless(delivery.payload))
        except NotLosslessError:
            return InvalidInputError("the payload of an event is lossless JSON", fields=["payload"])
        if size > PAYLOAD_BYTES:
            return InputTooLargeError("the payload of an event is too large", limit=PAYLOAD_BYTES, size=size)
        if self._core.head.purged:
            return ConversationPurgedError("the conversation was purged")
        return None

    async def deliver(self, delivery: Delivery) -> DeliveryReply:
        """Keep an event; the first delivery stands. Answers when it is durable."""
        try:
            return await self._keep(delivery)
        except TurnlaneError as refused:
            raise as_failure(refused) from refused

    async def deliver_quietly(self, delivery: Delivery) -> None:
        """The same for a caller that gets no answer: what cannot be kept is not kept. A failure would end the lane."""
        try:
            await self._keep(delivery)
        except TurnlaneError as refused:
            workflow.logger.info("a delivery was not kept: %s", refused.code)

    async def _keep(self, delivery: Delivery) -> DeliveryReply:
        """Keep an event, whether or not the store still takes what this incarnation of the lane decides."""
        core = self._core
        await core.opened()
        error = self.objection(delivery)
        if error is not None:
            raise error
        request = DeliverEvent(conversation_id=core.conversation_id, delivery=delivery)
        reply = await store_call(DELIVER, request, DeliveryReply, core.settings, core.outage)
        self._heard(delivery.key)
        return reply
