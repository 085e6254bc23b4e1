"""Messages: what was said in a conversation, as typed parts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from turnlane.records.base import (
    Json,
    JsonObject,
    Name,
    ProviderEnvelope,
    Record,
    RecordId,
    Text,
    Timestamp,
)


class Role(StrEnum):
    """Who speaks. `tool` carries approval answers only; results live in the assistant message."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"
    SUMMARY = "summary"


class MessageStatus(StrEnum):
    """How far a message got. Inputs and summaries are always `committed`."""

    COMMITTED = "committed"
    STREAMING = "streaming"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    SUPERSEDED = "superseded"
    FAILED = "failed"


SPEAKABLE: frozenset[MessageStatus] = frozenset(
    {MessageStatus.COMMITTED, MessageStatus.COMPLETED, MessageStatus.INTERRUPTED}
)
"""The statuses that may reach a model: a whitelist, so a new status is silent until listed."""

FailedAssistant = Literal["omit", "marked"]
"""Whether an answer that failed is left out of what the model hears, or told with a mark."""


def is_speakable(status: MessageStatus, failed_assistant: FailedAssistant = "omit") -> bool:
    """Whether a message of this status may reach a model: projection, budget and compaction all ask here."""
    return status in SPEAKABLE or (status is MessageStatus.FAILED and failed_assistant == "marked")


class TextPart(Record):
    """Text, of a user or of the model."""

    type: Literal["text"] = "text"
    text: Text


class ReasoningPart(Record):
    """What the model thought; `provider` is sent back with it, byte for byte."""

    type: Literal["reasoning"] = "reasoning"
    text: Text
    provider: ProviderEnvelope | None = None


class RefusalPart(Record):
    """What an answer said that its provider refused to give, or withdrew. No model is shown it again.

    `category` is the provider's own word for why.
    """

    type: Literal["refusal"] = "refusal"
    text: Text = ""
    category: Name | None = None


class FilePart(Record):
    """A file by reference. What of it reaches the model is the agent's to say (`HistoryOptions.resolve_file`); where it
    says nothing, a web address or a data URL does, and anything else only as a note of the name."""

    type: Literal["file"] = "file"
    media_type: Name
    reference: Annotated[str, Field(min_length=1, max_length=4096)]
    filename: Annotated[str, Field(min_length=1, max_length=512)] | None = None


class SourcePart(Record):
    """A source that the model quotes."""

    type: Literal["source"] = "source"
    source_id: RecordId
    url: Text | None = None
    title: Text | None = None


class ToolCallPart(Record):
    """A call the model asked for. `input` is the parsed object, or the raw text if it was not one."""

    type: Literal["tool-call"] = "tool-call"
    call_id: RecordId
    tool_name: Annotated[str, Field(min_length=1, max_length=256)]
    input: Json
    provider: ProviderEnvelope | None = None


class ToolOutcome(StrEnum):
    """How a tool call ended."""

    SUCCESS = "success"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class ToolResultPart(Record):
    """The result of a call; every call gets exactly one. `output` of an error is its safe envelope."""

    type: Literal["tool-result"] = "tool-result"
    call_id: RecordId
    tool_name: Annotated[str, Field(min_length=1, max_length=256)]
    outcome: ToolOutcome
    output: Json = None


class ToolApprovalRequestPart(Record):
    """A call waits for somebody's approval, or was decided by the agent's own rule (`is_automatic`)."""

    type: Literal["tool-approval-request"] = "tool-approval-request"
    approval_id: RecordId
    call_id: RecordId
    is_automatic: bool | None = None
    signature: str | None = None
    reason: Text | None = None
    expires_at: Timestamp | None = None


class ToolApprovalResponsePart(Record):
    """An answer to one approval request, named by its id."""

    type: Literal["tool-approval-response"] = "tool-approval-response"
    approval_id: RecordId
    approved: bool
    reason: Text | None = None


class ProviderPart(Record):
    """Provider output that must be kept and sent back, and has no meaning here."""

    type: Literal["provider"] = "provider"
    envelope: ProviderEnvelope


class ControlReason(StrEnum):
    """Why a message was cut short."""

    RUN_INTERRUPTED = "run-interrupted"
    STALE_RUN = "stale-run"


class ControlPart(Record):
    """A mark at the end of a message that was cut short. No model is shown it."""

    type: Literal["control"] = "control"
    reason: ControlReason


Part = Annotated[
    TextPart
    | ReasoningPart
    | FilePart
    | SourcePart
    | ToolCallPart
    | ToolResultPart
    | ToolApprovalRequestPart
    | ToolApprovalResponsePart
    | ProviderPart
    | ControlPart
    | RefusalPart,
    Field(discriminator="type"),
]

InputPart = Annotated[TextPart | FilePart | ToolApprovalResponsePart, Field(discriminator="type")]
"""What an input may be made of."""


class Message(Record):
    """One message of a conversation.

    `run_id` stands on assistant messages only: an input belongs to a run through the run's
    `input_message_ids`, because coalescing and absorption move it between runs.
    """

    schema_version: Literal[1] = 1
    id: RecordId
    conversation_id: RecordId
    run_id: RecordId | None = None
    role: Role
    status: MessageStatus
    parts: tuple[Part, ...]
    metadata: JsonObject | None = None
    created_at: Timestamp
    updated_at: Timestamp

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Message:
        if self.run_id is not None and self.role is not Role.ASSISTANT:
            raise ValueError("only an assistant message names its run")
        if self.role in (Role.USER, Role.TOOL, Role.SUMMARY) and self.status is not MessageStatus.COMMITTED:
            raise ValueError(f"a {self.role} message is always committed")
        return self

    @property
    def text(self) -> str:
        """The text parts, joined without a separator."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))
