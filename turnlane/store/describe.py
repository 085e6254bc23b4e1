"""What the ledger says of a mutation: everything but content, which it names by digest and size."""

from __future__ import annotations

import hashlib

from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.messages import Message, MessageStatus, Part
from turnlane.records.mutations import AdmitInput, CompactRange, Effect, SeedInputs
from turnlane.store.rows import PARTS


def describe_parts(message_id: str, status: MessageStatus, parts: tuple[Part, ...]) -> JsonObject:
    """Return id, status, digest, count and size of a piece of content."""
    text = canonical_json(PARTS.dump_python(parts, mode="json")).encode()
    return {
        "id": message_id,
        "status": status.value,
        "sha256": hashlib.sha256(text).hexdigest(),
        "parts": len(parts),
        "bytes": len(text),
    }


def describe_message(message: Message) -> JsonObject:
    return describe_parts(message.id, message.status, message.parts)


def describe_effect(effect: Effect, message: Message | None = None) -> JsonObject:
    """Return an effect for the ledger. `message` is the admitted one, or the summary, with its content in it."""
    match effect:
        case AdmitInput():
            plain: JsonObject = effect.model_dump(mode="json", exclude={"message": True, "run": {"context"}})
            plain["message"] = describe_message(message or effect.message)
        case CompactRange():
            plain = effect.model_dump(mode="json", exclude={"summary"})
            plain["summary"] = describe_message(message or effect.summary)
        case SeedInputs():
            plain = effect.model_dump(mode="json", exclude={"messages"})
            plain["messages"] = [describe_message(each) for each in effect.messages]
        case _:
            plain = effect.model_dump(mode="json")
    return plain
