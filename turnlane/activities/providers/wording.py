"""Wording: how parts of a prompt are put where a provider's format is narrower than ours."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from turnlane.agent.models import Model
from turnlane.records.messages import TextPart, ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.records.prompt import Prompt, PromptFile, PromptPart, options_for

_UNSENDABLE: Final = re.compile(r"[^a-zA-Z0-9_-]")
_SENDABLE_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME_LENGTH: Final = 64
_INLINE: Final = re.compile(r"data:(?P<media>[\w.+-]+/[\w.+-]+);base64,(?P<data>.+)", re.DOTALL)
IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
PDF: Final = "application/pdf"
EMPTY_OUTPUT: Final = "(no output)"
GO_ON: Final = "[go on]"
"""What a user says where the model's own words would stand last, and it is to go on."""


def extra_fields(model: Model, prompt: Prompt, body: dict[str, Any]) -> dict[str, Any]:
    """What is laid over a body: the prompt's options for this provider, and then the model's own `extra`.

    Tools in `extra` (those that the provider runs itself) stand beside the agent's own.
    """
    extra = {**options_for(prompt.options, model.provider), **model.extra}
    hosted, own = extra.get("tools"), body.get("tools")
    return {**extra, "tools": [*own, *hosted]} if isinstance(hosted, list) and own else extra


def wire_id(call_id: str) -> str:
    """The call id, or a stable stand-in for one that another provider made and this one would refuse."""
    if _SENDABLE_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:24]}"


def wire_name(tool_name: str) -> str:
    """The tool name with what no provider accepts replaced: a model may have made it up."""
    return _UNSENDABLE.sub("_", tool_name)[:_NAME_LENGTH]


def call_arguments(part: ToolCallPart) -> dict[str, Any]:
    """The arguments as an object; what was not one when the model sent it is shown under a name."""
    return part.input if isinstance(part.input, dict) else {"invalid_arguments": part.input}


def call_arguments_text(part: ToolCallPart) -> str:
    """The arguments as JSON text."""
    return json.dumps(call_arguments(part), ensure_ascii=False)


def text_first(parts: Sequence[PromptPart]) -> list[PromptPart]:
    """The parts with text behind a call moved before the first one: results must follow calls directly."""
    called = next((place for place, part in enumerate(parts) if isinstance(part, ToolCallPart)), len(parts))
    said = [part for part in parts[called:] if isinstance(part, TextPart)]
    return [*parts[:called], *said, *(part for part in parts[called:] if not isinstance(part, TextPart))]


def result_text(part: ToolResultPart) -> str:
    """A tool's output as text that is never blank."""
    output = part.output
    if output is None and part.outcome is not ToolOutcome.SUCCESS:
        return part.outcome.value
    if output is None:
        return EMPTY_OUTPUT
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return text if text.strip() else EMPTY_OUTPUT


def replayable(part: PromptPart, provider: str, origin: str | None = None) -> dict[str, Any] | None:
    """What must go back to `provider` with this reasoning, as it came; None for anybody else's."""
    envelope = getattr(part, "provider", None)
    if envelope is None or (envelope.provider, envelope.origin) != (provider, origin):
        return None
    return dict(envelope.data)


def web_url(part: PromptFile) -> str | None:
    """The address at which a provider could fetch the file itself."""
    return part.url if part.url is not None and part.url.startswith(("https://", "http://")) else None


def inline_data(part: PromptFile) -> tuple[str, str] | None:
    """The media type and base64 text of a file that travels with the prompt."""
    if part.data is not None:
        return part.media_type, part.data
    match = _INLINE.fullmatch(part.url or "")
    return (match["media"], match["data"]) if match is not None else None


def data_url(media_type: str, data: str) -> str:
    """Base64 text as a data URL."""
    return f"data:{media_type};base64,{data}"


def uploaded_id(part: PromptFile, provider: str) -> str | None:
    """The id of the file at this provider, if it was uploaded there."""
    return part.file_id if part.provider == provider else None


def attachment_note(media_type: str, filename: str | None) -> str:
    """Stands for a file that cannot be sent. It never tells the reference."""
    return f"[attachment: {filename or media_type}]"
