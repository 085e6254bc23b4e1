"""Beginnings: the plain records that a history begins with, what they are in a prompt, and the digest of that.

Every step tells the whole history again, and of a long conversation nearly all is what the step before has told. So
the plain stretch from the first record on is kept, and goes on being right for as long as the records are the same:
not equal ones, the very same, which is told in no time. A store hands out what did not change as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from operator import is_
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import TypeAdapter

from turnlane.activities.plain import is_remembered, plain_message
from turnlane.records.prompt import PromptMessage, Speaker
from turnlane.store.payloads import HistoryMessage

if TYPE_CHECKING:
    from hashlib import _Hash

KEPT_RECORDS: Final = 4096
"""Of how many records in all a process keeps beginnings; long ones are not among them."""


_MESSAGES: Final[TypeAdapter[tuple[PromptMessage, ...]]] = TypeAdapter(tuple[PromptMessage, ...])
_UNSENT: Final[Any] = {"__all__": {"record_id"}}
"""What of messages is for us alone."""


class Beginning(NamedTuple):
    """Plain records of one conversation, from its first, a user's, to an answer; what each is in a prompt; and the
    digest of all that is sent of those. No answer follows another, so it is legal as it stands."""

    records: tuple[HistoryMessage, ...]
    messages: tuple[PromptMessage, ...]
    digest: _Hash


NOTHING: Final = Beginning((), (), sha256())


def begin(history: Sequence[HistoryMessage]) -> Beginning:
    """Return what a history begins with, as much of it as is known or can be told from records that are kept."""
    if not history:
        return NOTHING
    conversation_id = history[0].message.conversation_id
    known = _kept.get(conversation_id)
    start = known if known is not None and _begins(known.records, history) else NOTHING
    grown = _grown(start, history)
    if grown is not start:
        _keep(conversation_id, grown)
    return grown


def found_in(conversation_id: str, messages: Sequence[PromptMessage]) -> Beginning:
    """Return the beginning of a conversation if a prompt has it unchanged, else that of nothing."""
    known = _kept.get(conversation_id)
    return known if known is not None and _begins(known.messages, messages) else NOTHING


def digest_of(conversation_id: str, messages: Sequence[PromptMessage]) -> _Hash:
    """Return a digest of all that is sent of a prompt's messages, to be gone on with."""
    told = found_in(conversation_id, messages)
    return _with(told.digest, messages[len(told.messages) :])


def _begins(beginning: Sequence[object], whole: Sequence[object]) -> bool:
    return len(beginning) <= len(whole) and all(map(is_, beginning, whole))


def _grown(start: Beginning, history: Sequence[HistoryMessage]) -> Beginning:
    speaker = start.messages[-1].speaker if start.messages else Speaker.ASSISTANT
    conversation_id = history[0].message.conversation_id
    messages: list[PromptMessage] = []
    for item in history[len(start.records) :]:
        plain = plain_message(item) if item.message.conversation_id == conversation_id else None
        if plain is None or not is_remembered(plain) or plain.speaker is speaker is Speaker.ASSISTANT:
            break
        messages.append(plain)
        speaker = plain.speaker
    # A question that is not answered yet stands under a run that has not ended, and will be another record then.
    while messages and messages[-1].speaker is Speaker.USER:
        messages.pop()
    if not messages:
        return start
    records = tuple(history[: len(start.records) + len(messages)])
    return Beginning(records, (*start.messages, *messages), _with(start.digest, messages))


def _with(digest: _Hash, messages: Sequence[PromptMessage]) -> _Hash:
    """Go on with a digest: the same, however a prompt's messages are parted between the one and the other."""
    longer = digest.copy()
    if messages:
        longer.update(_MESSAGES.dump_json(tuple(messages), exclude=_UNSENT)[1:-1])
        longer.update(b",")
    return longer


# The one that grew last is last.
_kept: dict[str, Beginning] = {}
_lock: Final = Lock()


def _keep(conversation_id: str, beginning: Beginning) -> None:
    with _lock:
        _kept.pop(conversation_id, None)
        _kept[conversation_id] = beginning
        excess = sum(len(kept.records) for kept in _kept.values()) - KEPT_RECORDS
        for name in list(_kept):
            if excess <= 0:
                return
            excess -= len(_kept.pop(name).records)
