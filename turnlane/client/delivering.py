"""Delivering an event to a conversation, whether or not its lane, or any worker, is up."""

from __future__ import annotations

import logging
from typing import Any

from turnlane.client.lane_calls import UNHEARD, LaneCalls
from turnlane.client.requests import checked_id, request
from turnlane.records.durable import PAYLOAD_BYTES, Delivery, DeliveryReply
from turnlane.records.errors import InputTooLargeError, InvalidInputError
from turnlane.records.lossless import NotLosslessError, encode_lossless

logger = logging.getLogger(__name__)


async def deliver(lanes: LaneCalls, conversation_id: str, event: str, event_id: str, payload: Any) -> bool | None:
    """See `Turnlane.deliver`."""
    checked_id("conversation_id", conversation_id)
    delivery = _checked(event, event_id, payload)
    try:
        return (await lanes.control(conversation_id, "deliver", delivery, DeliveryReply)).accepted
    except UNHEARD:
        logger.info("no worker answered; the delivery goes as a signal")
    await lanes.signal_with_start(conversation_id, "deliver", delivery)
    return None


def _checked(event: str, event_id: str, payload: Any) -> Delivery:
    """A delivery whose payload comes out as it went in. Events are stored and sent as text, so that is clean."""
    try:
        size = len(encode_lossless(payload))
    except NotLosslessError as error:
        raise InvalidInputError(f"the payload is not lossless JSON: {error}", fields=["payload"]) from None
    if size > PAYLOAD_BYTES:
        raise InputTooLargeError("the payload of an event is too large", limit=PAYLOAD_BYTES, size=size)
    return request(Delivery, event=event, id=event_id, payload=payload)
