"""Plain records: one text that was said to its end, by a user or the model, as most of a conversation is.

What such a record is in a prompt follows from the record alone. So it is made once, and not again for every step
of every turn behind it: of a long conversation that would be most of the work of a projection.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from turnlane.records.messages import MessageStatus, Role, TextPart
from turnlane.records.prompt import PromptMessage, Speaker
from turnlane.store.payloads import HistoryMessage

REMEMBERED: Final = 4096
REMEMBERED_SIZE: Final = 4096
"""Of how many plain records a process keeps what they are, and of how many characters at most: so it keeps 16 MB of
text at the worst. What a longer one is, is made anew by every step."""

TEXT: Final = frozenset({"text"})
"""The kinds of parts that a plain record has."""

# A record is known by its identity, which is its own for as long as it is kept here.
_known: dict[int, tuple[HistoryMessage, PromptMessage]] = {}
_lock: Final = Lock()


def plain_message(item: HistoryMessage) -> PromptMessage | None:
    """The message of a plain record; None for any other."""
    known = _known.get(id(item))
    if known is not None and known[0] is item:
        return known[1]
    made = _made(item)
    if made is not None and is_remembered(made):
        with _lock:
            _known[id(item)] = (item, made)
            if len(_known) > REMEMBERED:
                del _known[next(iter(_known))]
    return made


def is_remembered(message: PromptMessage) -> bool:
    """Whether a plain record's message is small enough to be kept: one that is not is made anew each time."""
    return sum(len(part.text) for part in message.parts if isinstance(part, TextPart)) <= REMEMBERED_SIZE


def _made(item: HistoryMessage) -> PromptMessage | None:
    message = item.message
    if message.role is Role.USER and message.status is MessageStatus.COMMITTED:
        return _one_text(message.id, Speaker.USER, message.parts)
    if message.role is Role.ASSISTANT and message.status is MessageStatus.COMPLETED and len(item.steps) == 1:
        return _one_text(message.id, Speaker.ASSISTANT, item.steps[0].parts)
    return None


def _one_text(record_id: str, speaker: Speaker, parts: tuple[object, ...]) -> PromptMessage | None:
    (said, *others) = parts or (None,)
    if others or not isinstance(said, TextPart) or not said.text.strip():
        return None
    return PromptMessage(speaker=speaker, parts=(said,), record_id=record_id)
