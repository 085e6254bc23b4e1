"""The neutral prompt: what goes to a provider adapter, whatever its wire format."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from turnlane.records.base import JsonObject, Payload, RecordId, Text
from turnlane.records.messages import ReasoningPart, TextPart, ToolCallPart, ToolResultPart

ProviderOptions = dict[str, JsonObject]
"""Fields of a provider's own that go with a piece of a prompt: by `Model.provider`, so others never see them."""


def options_for(options: ProviderOptions | None, provider: str) -> JsonObject:
    """The fields for one provider; none is an empty object."""
    return (options or {}).get(provider, {})


class Speaker(StrEnum):
    """Who says a message of a prompt. Results of calls are said by `tool`."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class PromptFile(Payload):
    """A file as a provider can have it: a web address or data URL, base64 data, or the id of an upload there.

    Exactly one of `url`, `data` and `file_id` is set; `provider` says whose id it is.
    """

    type: Literal["prompt-file"] = "prompt-file"
    media_type: str
    filename: str | None = None
    url: str | None = None
    data: str | None = None
    file_id: str | None = None
    provider: str | None = None


PromptPart = Annotated[
    TextPart | ReasoningPart | PromptFile | ToolCallPart | ToolResultPart, Field(discriminator="type")
]


class PromptMessage(Payload):
    """One message for the provider: text and files of a user, text, reasoning and calls of the assistant,
    or the results of the calls directly before it.

    `record_id` is the record that it was made of (the first, if several), so that a fault can be named. It is
    not sent.
    """

    speaker: Speaker
    parts: Annotated[tuple[PromptPart, ...], Field(min_length=1)]
    record_id: RecordId | None = None


class ToolSpec(Payload):
    """A tool as a model sees it: `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: JsonObject
    options: ProviderOptions | None = None


class SystemText(Payload):
    """A text of the instructions, and what goes with it."""

    text: Text
    options: ProviderOptions | None = None


class Prompt(Payload):
    """Everything a model call says: instructions first, then the conversation, then the tools on offer.

    Each entry of `system` is a system message of its own; a plain text is one without options. `options` go
    with the request as a whole.
    """

    system: tuple[str | SystemText, ...] = ()
    messages: tuple[PromptMessage, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    options: ProviderOptions | None = None

    @property
    def system_texts(self) -> tuple[SystemText, ...]:
        """The instructions, each with its options."""
        return tuple(given if isinstance(given, SystemText) else SystemText(text=given) for given in self.system)
