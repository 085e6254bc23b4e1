"""The neutral prompt: what goes to a provider adapter, whatever its wire format."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from turnlane.records.base import JsonObject, Payload, Text
from turnlane.records.messages import FilePart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart


class Speaker(StrEnum):
    """Who says a message of a prompt. Results of calls are said by `tool`."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


PromptPart = Annotated[TextPart | ReasoningPart | FilePart | ToolCallPart | ToolResultPart, Field(discriminator="type")]


class PromptMessage(Payload):
    """One message for the provider: text and files of a user, text, reasoning and calls of the assistant,
    or the results of the calls directly before it."""

    speaker: Speaker
    parts: Annotated[tuple[PromptPart, ...], Field(min_length=1)]


class ToolSpec(Payload):
    """A tool as a model sees it: `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: JsonObject


class SystemText(Payload):
    """A text of the instructions. `options` go with it to a provider: its name to fields of its own."""

    text: Text
    options: dict[str, JsonObject] | None = None


class Prompt(Payload):
    """Everything a model call says: instructions first, then the conversation, then the tools on offer.

    Each entry of `system` is a system message of its own; a plain text is one without options.
    """

    system: tuple[str | SystemText, ...] = ()
    messages: tuple[PromptMessage, ...] = ()
    tools: tuple[ToolSpec, ...] = ()

    @property
    def system_texts(self) -> tuple[SystemText, ...]:
        """The instructions, each with its options."""
        return tuple(given if isinstance(given, SystemText) else SystemText(text=given) for given in self.system)
