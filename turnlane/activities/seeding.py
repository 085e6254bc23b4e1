"""User instructions: said once in a conversation, as user messages in front of everything."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from turnlane.activities.failing import persist
from turnlane.records.messages import Message, MessageStatus, Role, TextPart
from turnlane.records.turns import Seed
from turnlane.store.protocol import Store

SEED_KEY = "prompt.user-instructions"


async def seed_to_plant(store: Store, conversation_id: str, texts: Sequence[str], now: datetime) -> Seed | None:
    """Return the seed of user instructions, or None if there are none or the conversation was given some before.

    What was planted stays as it was, whatever the texts are by now, and also once it was compacted.
    """
    if not texts:
        return None
    if await persist(lambda: store.is_seeded(conversation_id, SEED_KEY)):
        return None
    messages = [_message(conversation_id, index, text, now) for index, text in enumerate(texts)]
    return Seed(seed_key=SEED_KEY, messages=tuple(messages))


def seed_id(conversation_id: str, seed_key: str, index: int) -> str:
    """The id of a seed's message: the same from whoever plants it."""
    return hashlib.sha256(f"{conversation_id}\0{seed_key}\0{index}".encode()).hexdigest()


def _message(conversation_id: str, index: int, text: str, now: datetime) -> Message:
    return Message(
        id=seed_id(conversation_id, SEED_KEY, index),
        conversation_id=conversation_id,
        role=Role.USER,
        status=MessageStatus.COMMITTED,
        parts=(TextPart(text=text),),
        created_at=now,
        updated_at=now,
    )
