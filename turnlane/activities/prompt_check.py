"""The prompt check: what every provider demands of a conversation, stated once and testable on any prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from turnlane.records.messages import TextPart, ToolCallPart, ToolResultPart
from turnlane.records.prompt import Prompt, PromptMessage, PromptPart, Speaker

_OTHER_THAN_USER = {Speaker.ASSISTANT: Speaker.TOOL, Speaker.TOOL: Speaker.ASSISTANT}
"""Who but a user may speak after whom. Users may speak twice: adapters merge them where a provider wants that."""


class Fault(NamedTuple):
    """What is wrong with a prompt, in words without content, and the record that it comes from, if one is known."""

    record_id: str | None
    words: str

    def __str__(self) -> str:
        return f"{self.words} (record {self.record_id})" if self.record_id is not None else self.words


def check_prompt(prompt: Prompt, sound: int = 0) -> list[Fault]:
    """Return what is wrong with a prompt; an empty list means nothing.

    Cheap enough for every request: one pass, and most messages are one text. The first `sound` messages are known
    to be texts of users and the assistant that may follow each other.
    """
    messages = prompt.messages
    faults = [] if messages else [Fault(None, "nothing is said")]
    plain = [_is_plain_text(message) for message in messages[sound:]]
    for place, is_plain in enumerate(plain, sound):
        if not is_plain:
            faults.extend(_fault(messages, place, words) for words in _message_faults(messages[place]))
    for place in range(max(sound, 1), len(messages)):
        one, two = messages[place - 1].speaker, messages[place].speaker
        if not _may_follow(one, two):
            faults.append(_fault(messages, place, f"{two} speaks after {one}"))
    faults.extend(_pairing_faults(messages, sound, plain))
    faults.extend(Fault(None, "a blank system text") for given in prompt.system_texts if not given.text.strip())
    return faults


def _fault(messages: Sequence[PromptMessage], place: int, words: str) -> Fault:
    return Fault(messages[place].record_id, f"message {place}: {words}")


def _may_follow(one: Speaker, two: Speaker) -> bool:
    if one is Speaker.USER:
        return two is not Speaker.TOOL
    return two is Speaker.USER or two is _OTHER_THAN_USER[one]


def _is_plain_text(message: PromptMessage) -> bool:
    """Whether it is one text of a user or of the assistant, as most are: nothing can be wrong with that."""
    parts = message.parts
    if len(parts) != 1 or message.speaker is Speaker.TOOL:
        return False
    part = parts[0]
    return isinstance(part, TextPart) and not part.text.isspace() and part.text != ""


def _message_faults(message: PromptMessage) -> Iterator[str]:
    if not message.parts:
        yield "no parts"
    if any(isinstance(part, TextPart) and not part.text.strip() for part in message.parts):
        yield "blank text"
    if any(isinstance(part, ToolCallPart) for part in message.parts) and message.speaker is not Speaker.ASSISTANT:
        yield "a call outside an assistant message"
    if any(isinstance(part, ToolResultPart) is not (message.speaker is Speaker.TOOL) for part in message.parts):
        yield "results stand in tool messages, and nothing else does"


def _pairing_faults(messages: Sequence[PromptMessage], sound: int, plain: Sequence[bool]) -> Iterator[Fault]:
    """What is wrong with calls and results from the message `sound` on, of which `plain` tells which are one text."""
    seen: set[str] = set()
    owed: list[str] = []
    for place, is_plain in enumerate(plain, sound):
        message = messages[place]
        if is_plain and not owed:
            continue
        if owed and message.speaker is not Speaker.TOOL:
            yield _fault(messages, place - 1, "its calls are not answered by the message behind it")
            owed = []
        if message.speaker is Speaker.TOOL:
            if _ids(message.parts, ToolResultPart) != owed:
                yield _fault(messages, place, "results do not match the calls before it")
            owed = []
        else:
            owed = _ids(message.parts, ToolCallPart)
            if len({*owed}) != len(owed) or seen.intersection(owed):
                yield _fault(messages, place, "a call id is used twice")
            seen.update(owed)
    if owed:
        yield _fault(messages, len(messages) - 1, "its calls are not answered")


def _ids(parts: Sequence[PromptPart], kind: type[ToolCallPart] | type[ToolResultPart]) -> list[str]:
    return [part.call_id for part in parts if isinstance(part, kind)]
