"""Approvals: tool calls that wait for somebody's word, and the answers that they get."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from turnlane.records.base import Json, Name, Payload, Record, RecordId, Text, Timestamp, canonical_json, derived_id

MAX_REASON_CHARACTERS = 4096

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


class RespondRequest(Payload):
    """An answer to one approval. `responder` says who gives it, for the agent's authorization to judge."""

    approval_id: ApprovalId
    approved: bool
    reason: Reason | None = None
    responder: Name | None = None


class AskedApproval(Payload):
    """An approval that a lane knows to be pending: its id, and when it lapses."""

    approval_id: RecordId
    expires_at: Timestamp | None = None


def answer_key(approval_id: str) -> str:
    """The idempotency key of the answer to an approval: it has one, whoever gives it."""
    return f"tool-approval:{approval_id}"


def approval_id_of(conversation_id: str, run_id: str, *place: int) -> str:
    """The id of the approval of the call at a place (token, step, attempt and slot) of a run.

    A step that is stored again asks the same; another attempt, which may call with other arguments, does not.
    """
    return derived_id("apr", conversation_id, run_id, canonical_json(place))
