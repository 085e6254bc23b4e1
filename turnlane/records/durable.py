"""Durable tool bodies: what a body recorded under a name, and a call that waits without a worker.

A body that sleeps, or waits for an event, gives its worker back: the lane holds the wait, and then the
body runs again from its start, with everything it recorded at hand.
"""

from __future__ import annotations

from enum import StrEnum

from turnlane.records.base import Json, Name, Payload, RecordId, Timestamp, derived_id
from turnlane.records.calls import CallRef
from turnlane.records.limits import KIB

PAYLOAD_BYTES = 64 * KIB
"""The largest payload of an event and the largest proof of an effect, as JSON."""

ANY_EVENT = "*"
"""What a call waits for that waits for more events than travel with it: each delivery wakes it."""

WAITS_AT_ONCE = 4

CONVERSATION_SCOPE = "conversation"
"""The scope of what belongs to no single call: delivered events."""

CALL_ENTRY = "call"
"""The name of the entry in which a call says that its body may be run again."""


class EntryKind(StrEnum):
    """What is recorded: four kinds by a body, an event by whoever delivers it, `call` for the body itself."""

    STEP = "step"
    SLEEP = "sleep"
    PARK = "park"
    EFFECT = "effect"
    EVENT = "event"
    CALL = "call"


class DurableEntry(Payload):
    """One record of a scope. `entry` is JSON text, as it was written."""

    kind: EntryKind
    name: RecordId
    entry: str


class Suspension(Payload):
    """Until when a call sleeps, or which events it waits for; whichever comes first. `tried`: tries so far."""

    resume_at: Timestamp | None = None
    waits_for: tuple[Name, ...] = ()
    tried: int = 1


class SuspendedCall(CallRef):
    """A call whose body waits, as the lane carries it. Without a suspension it is to be run at once."""

    suspension: Suspension | None = None


class Delivery(Payload):
    """Something that happened outside: the first delivery under an event and its id stands."""

    event: Name
    id: RecordId
    payload: Json = None

    @property
    def key(self) -> str:
        """Names the event in histories and in the store."""
        return event_key(self.event, self.id)


class DeliveryReply(Payload):
    """Whether this delivery stands; False when another one, with another payload, came first."""

    accepted: bool


class DeliverEvent(Payload):
    """Keep a delivery in a conversation."""

    conversation_id: RecordId
    delivery: Delivery


def event_key(event: str, event_id: str) -> str:
    """The one name of an event and its id."""
    return derived_id("event", event, event_id)


def call_scope(run_id: str, step: int, tool_name: str, call_id: str) -> str:
    """The scope of one tool call: the same for every try of it, another for every other call.

    The step is part of it, since some providers give the calls of each step the same ids.
    """
    return derived_id("call", run_id, str(step), tool_name, call_id)
