"""The transcript: a stretch of conversation as text, for a model that is to summarise it.

Text and not messages, because what a provider demands of messages (results behind their calls, signed
reasoning, the tools on offer) would have to hold for a stretch that was cut out of a conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turnlane.records.base import Json, canonical_json
from turnlane.records.messages import (
    FilePart,
    Message,
    Part,
    Role,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

OUTPUT_CHARACTERS = 4000
"""How much of a tool's arguments or output a transcript shows: its beginning and its end."""

_NAMES = {Role.USER: "User", Role.ASSISTANT: "Assistant", Role.SYSTEM: "System", Role.SUMMARY: "Earlier summary"}


def transcript(messages: Iterable[Message]) -> str:
    """Return what was said, speaker by speaker, with tool calls and their results; reasoning is left out."""
    return "\n\n".join(text for text in map(_message, messages) if text)


def transcripts(messages: Iterable[Message], characters: int) -> Iterator[str]:
    """Yield the transcript in pieces of at most about so many characters: of whole messages, where they are short
    enough, else of one that is continued from piece to piece."""
    piece: list[str] = []
    size = 0
    for text in (part for message in messages for part in _divided(message, characters)):
        if piece and size + len(text) > characters:
            yield "\n\n".join(piece)
            piece, size = [], 0
        piece.append(text)
        size += len(text)
    if piece:
        yield "\n\n".join(piece)


def _divided(message: Message, characters: int) -> Iterator[str]:
    """The text of a message, if it says anything; a long one in several."""
    text = _message(message)
    if text:
        yield text[:characters]
    for start in range(characters, len(text), characters):
        yield f"{_NAMES[message.role]}, continued:\n{text[start : start + characters]}"


def _message(message: Message) -> str:
    lines = [line for line in map(_part, message.parts) if line]
    return f"{_NAMES[message.role]}:\n" + "\n".join(lines) if lines and message.role in _NAMES else ""


def _part(part: Part) -> str:
    match part:
        case TextPart():
            return part.text.strip()
        case FilePart():
            return f"[file: {part.filename or part.media_type}]"
        case SourcePart():
            return f"[source: {part.title or part.url or part.source_id}]"
        case ToolCallPart():
            return f"[called {part.tool_name} with {_short(part.input)}]"
        case ToolResultPart():
            return f"[{part.tool_name} answered ({part.outcome.value}): {_short(part.output)}]"
        case _:
            return ""


def _short(value: Json) -> str:
    text = value if isinstance(value, str) else canonical_json(value)
    if len(text) <= OUTPUT_CHARACTERS:
        return text
    half = OUTPUT_CHARACTERS // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"
