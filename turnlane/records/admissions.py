"""Inputs and their admission: what a caller sends, and what the conversation durably promises back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from turnlane.records.base import JsonObject, Name, Payload, Record, RecordId, Text, digest
from turnlane.records.messages import InputPart, Role, TextPart, ToolApprovalResponsePart
from turnlane.records.runs import Failure, RunState, TerminalReason, Version
from turnlane.records.usage import Usage

IdempotencyKey = RecordId


class Policy(StrEnum):
    """What an input does to the run in flight."""

    QUEUE = "queue"
    INJECT = "inject"
    INTERRUPT = "interrupt"
    INTERRUPT_NEXT = "interrupt-next"
    SUPERSEDE = "supersede"


class RecordIds(Record):
    """Ids the caller has already given away, for records that admission would name otherwise."""

    input_message_id: RecordId | None = None
    run_id: RecordId | None = None
    assistant_message_id: RecordId | None = None


class BlobRef(Record):
    """A reference to content kept in the store: id within the conversation, digest and size in bytes."""

    id: RecordId
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    size: Annotated[int, Field(ge=0)]


class Input(Record):
    """What a caller submits. The same key again is the same input: answered once, and answered alike.

    `parts` or `text` or `blob` carries the content, exactly one of them: `text` is the short form for
    one text part, `blob` names parts that a client with the store put there because they are large.
    A missing `policy` means the agent's own; a missing `agent` the conversation's. `responder` says who
    gives an approval answer.
    """

    schema_version: Literal[1] = 1
    key: IdempotencyKey
    parts: tuple[InputPart, ...] = ()
    text: Text | None = None
    blob: BlobRef | None = None
    role: Literal[Role.USER, Role.TOOL] = Role.USER
    agent: Name | None = None
    tenant: Name | None = None
    policy: Policy | None = None
    context: JsonObject | None = None
    metadata: JsonObject | None = None
    record_ids: RecordIds | None = None
    stay: bool = False
    responder: Name | None = None

    @model_validator(mode="after")
    def _carries_content_once(self) -> Input:
        if sum((bool(self.parts), self.text is not None, self.blob is not None)) != 1:
            raise ValueError("an input carries exactly one of parts, text and blob")
        if self.blob is not None:
            return self
        answers = [part for part in self.content if isinstance(part, ToolApprovalResponsePart)]
        if self.role is Role.TOOL and len(answers) != len(self.content):
            raise ValueError("a tool-role input holds approval answers only")
        if self.role is Role.USER and answers:
            raise ValueError("an approval answer is a tool-role input")
        if self.role is Role.USER and not any(
            not isinstance(part, TextPart) or part.text.strip() for part in self.content
        ):
            raise ValueError("an input may not be empty or blank")
        return self

    @property
    def content(self) -> tuple[InputPart, ...]:
        """The parts, whichever form the caller used. Empty for an input kept as a blob."""
        return (TextPart(text=self.text),) if self.text is not None else self.parts

    @property
    def content_digest(self) -> str:
        """Identifies role and content, so that a key reused for other content is told from a resend."""
        if self.blob is not None:
            return self.blob.digest
        return parts_digest(self.role, self.content)


def parts_digest(role: Role, parts: tuple[InputPart, ...]) -> str:
    """Return the digest of an input's role and content. One that travels as a blob has the blob's own digest:
    which way content travels follows from its size, so a resend goes the same way."""
    return digest([role.value, [part.model_dump(mode="json") for part in parts]])


class Receipt(Record):
    """The durable proof of one admission. It keeps naming the run it was first assigned to."""

    schema_version: Literal[1] = 1
    conversation_id: RecordId
    idempotency_key: IdempotencyKey
    content_digest: str
    input_message_id: RecordId
    run_id: RecordId
    assistant_message_id: RecordId
    policy: Policy


class Admission(Payload):
    """The answer to a submit: durable when it is given. Ids may differ from the caller's proposal.

    `duplicate` says that the input had been admitted before. Of an input that went as a signal nobody can tell.
    """

    conversation_id: RecordId
    idempotency_key: IdempotencyKey
    input_message_id: RecordId
    run_id: RecordId
    assistant_message_id: RecordId
    run_state: RunState
    policy: Policy
    snapshot_version: Version
    duplicate: bool = False
    coalesced: bool = False


class Terminal(Payload):
    """How a run ended: the control facts. The message itself is read from the store."""

    conversation_id: RecordId
    run_id: RecordId
    assistant_message_id: RecordId
    state: RunState
    reason: TerminalReason
    snapshot_version: Version
    policy_name: Name | None = None
    failure: Failure | None = None
    usage: Usage | None = None
    absorbed_into_run_id: RecordId | None = None


class SubmitReply(Payload):
    """What the submit update answers: the admission, and the terminal if the caller stayed for it."""

    admission: Admission
    terminal: Terminal | None = None
