"""Approvals: tool calls that wait for somebody's word, and the answers that they get."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from turnlane.records.base import (
    Json,
    JsonObject,
    Name,
    Payload,
    Record,
    RecordId,
    Text,
    Timestamp,
    canonical_json,
    derived_id,
)
from turnlane.records.messages import ToolApprovalResponsePart, ToolOutcome, ToolResultPart

MAX_REASON_CHARACTERS = 4096
MAX_ANSWERS = 128
"""How many approvals one input answers: as many as a step may ask for."""

Reason = Annotated[Text, StringConstraints(max_length=MAX_REASON_CHARACTERS)]
ApprovalId = Annotated[RecordId, StringConstraints(max_length=200)]
"""Short enough for the key of its answer."""


class ApprovalState(StrEnum):
    """How the approval of a call stands. `withdrawn`: its run ended in a way that closed the call."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"


class PendingApproval(Record):
    """A call that waits for approval: what is asked, by whom, and until when it can be answered."""

    conversation_id: RecordId
    run_id: RecordId
    message_id: RecordId
    approval_id: RecordId
    call_id: RecordId
    tool_name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    input: Json
    signature: str | None = None
    reason: Text | None = None
    expires_at: Timestamp | None = None


class StoredApproval(Payload):
    """The approval of a call, however it stands.

    `is_open`: its run has ended, so that it can be answered. `is_finished`: the call has its result.
    `request` is None when the message does not hold both the call and the question.
    """

    run_id: RecordId
    message_id: RecordId
    step: int
    slot: int
    call_id: RecordId
    state: ApprovalState
    expires_at: Timestamp | None = None
    is_finished: bool = False
    is_open: bool = True
    request: PendingApproval | None = None


class AnsweredCall(Payload):
    """An answer, and the approval that it names, if there is one."""

    answer: ToolApprovalResponsePart
    approval: StoredApproval | None = None


class RunAnswers(Payload):
    """The answers among a run's inputs. `waits`: it holds nothing else, and other calls of their steps are open."""

    calls: tuple[AnsweredCall, ...] = ()
    waits: bool = False


class RespondRequest(Payload):
    """An answer to one approval. `responder` says who gives it, for the agent's authorization to judge.

    With a `tenant` it is refused where the conversation is another one's.
    """

    approval_id: ApprovalId
    approved: bool
    reason: Reason | None = None
    responder: Name | None = None
    tenant: Name | None = None


class CallOrigin(Payload):
    """Where a call stands that an earlier run asked for: its run, the message of its answer, and the step."""

    run_id: RecordId
    message_id: RecordId
    step: int


class AskedApproval(Payload):
    """An approval that a lane knows to be pending: its id, and when it lapses."""

    approval_id: RecordId
    expires_at: Timestamp | None = None


def denied_result(call_id: str, tool_name: str, reason: str | None) -> ToolResultPart:
    """The result of a call that was not let run, as the model is told it."""
    details: JsonObject = {"message": "the call was denied and not made"}
    if reason is not None:
        details["reason"] = reason
    output: JsonObject = {"error": "DENIED", "retryable": False, "details": details}
    return ToolResultPart(call_id=call_id, tool_name=tool_name, outcome=ToolOutcome.ERROR, output=output)


def answer_key(approval_id: str) -> str:
    """The idempotency key of the answer to an approval: it has one, whoever gives it."""
    return f"tool-approval:{approval_id}"


def approval_id_of(conversation_id: str, run_id: str, *place: int) -> str:
    """The id of the approval of the call at a place (token, step, attempt and slot) of a run.

    A step that is stored again asks the same; another attempt, which may call with other arguments, does not.
    """
    return derived_id("apr", conversation_id, run_id, canonical_json(place))
