"""User instructions: said once in a conversation, as user messages in front of everything."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from turnlane.activities.failing import persist
from turnlane.records.messages import Message, MessageStatus, Role, TextPart
from turnlane.records.turns import Seed
from turnlane.store.payloads import HistoryMessage
from turnlane.store.protocol import Store

SEED_KEY = "prompt.user-instructions"


class Planting(NamedTuple):
    """A seed to be written with the first step. `is_new` is False where its messages are there already, imported
    with a history: then only its receipt is missing."""

    seed: Seed
    is_new: bool

    @property
    def shown(self) -> list[HistoryMessage]:
        """What stands in front of the history in this very prompt."""
        return [HistoryMessage(message=message) for message in self.seed.messages] if self.is_new else []


async def to_plant(store: Store, conversation_id: str, texts: Sequence[str], now: datetime) -> Planting | None:
    """Return what to plant of user instructions, or None if there are none or the conversation was given some before.

    What was planted stays as it was, whatever the texts are by now, and also once it was compacted.
    """
    if not texts or await persist(lambda: store.is_seeded(conversation_id, SEED_KEY)):
        return None
    messages = [_message(conversation_id, index, text, now) for index, text in enumerate(texts)]
    seed = Seed(seed_key=SEED_KEY, messages=tuple(messages))
    present = await persist(lambda: store.find_collisions(conversation_id, [message.id for message in messages]))
    return Planting(seed, is_new=not present)


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
