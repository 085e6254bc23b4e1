"""Approving from an application's side: an answer to an approval is an input like any other."""

from __future__ import annotations

from turnlane.client.requests import request
from turnlane.records.admissions import Input, Policy
from turnlane.records.approvals import RespondRequest, answer_key
from turnlane.records.messages import Role, ToolApprovalResponsePart


def answer_of(
    approval_id: str, approved: bool, *, reason: str | None, responder: str | None, tenant: str | None
) -> Input:
    """The input that answers an approval. Its key is the approval's, so that one is answered once."""
    answer = request(
        RespondRequest,
        approval_id=approval_id,
        approved=approved,
        reason=reason,
        responder=responder,
        tenant=tenant,
    )
    part = ToolApprovalResponsePart(approval_id=answer.approval_id, approved=answer.approved, reason=answer.reason)
    return Input(
        key=answer_key(answer.approval_id),
        parts=(part,),
        role=Role.TOOL,
        policy=Policy.QUEUE,
        responder=answer.responder,
        tenant=answer.tenant,
    )
