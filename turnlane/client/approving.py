"""Approvals from an application's side: what waits for somebody's word, and the word itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from turnlane.client.lane_calls import LaneCalls, NoLane
from turnlane.client.requests import checked_id, request
from turnlane.records.admissions import Input, Policy
from turnlane.records.approvals import AskedApproval, PendingApproval, RespondRequest, answer_key
from turnlane.records.messages import Role, ToolApprovalResponsePart

if TYPE_CHECKING:
    from turnlane.client.ticket import Ticket
    from turnlane.store.protocol import Store


class Approving:
    """The part of a client that is about approvals."""

    _lanes: LaneCalls

    @property
    def _reads(self) -> Store:
        raise NotImplementedError

    async def _send(self, conversation_id: str, given: Input, via: Literal["update", "signal"]) -> Ticket:
        raise NotImplementedError

    async def pending_approvals(
        self, conversation_id: str | None = None, *, limit: int = 100, tenant: str | None = None
    ) -> tuple[PendingApproval, ...]:
        """The calls that wait for approval and can be answered, oldest first: of a conversation, or of all."""
        if conversation_id is not None:
            checked_id("conversation_id", conversation_id)
        return await self._reads.pending_approvals(conversation_id, limit=limit, tenant=tenant)

    async def lane_approvals(self, conversation_id: str) -> list[AskedApproval]:
        """The latest approvals that wait, as the lane itself sees them; needs no store. Empty when no lane runs."""
        try:
            return await self._lanes.query_approvals(conversation_id)
        except NoLane:
            return []

    async def respond(
        self,
        conversation_id: str,
        approval_id: str,
        approved: bool,
        *,
        reason: str | None = None,
        responder: str | None = None,
        tenant: str | None = None,
        via: Literal["update", "signal"] = "update",
    ) -> Ticket:
        """Answer an approval; when this returns, the answer cannot get lost. The ticket is of the run that acts on it.

        An approval is answered once: the same answer again is the same input, another one raises
        `ApprovalDecidedError`. Raises `ApprovalNotPendingError` for one that is missing or stale,
        `ApprovalExpiredError` after its time, `ApprovalRefusedError` when the agent does not let `responder`
        answer, and `AgentMismatchError` where the conversation is not the `tenant`'s.
        """
        checked_id("conversation_id", conversation_id)
        answer = request(
            RespondRequest,
            approval_id=approval_id,
            approved=approved,
            reason=reason,
            responder=responder,
            tenant=tenant,
        )
        part = ToolApprovalResponsePart(approval_id=answer.approval_id, approved=answer.approved, reason=answer.reason)
        given = Input(
            key=answer_key(answer.approval_id),
            parts=(part,),
            role=Role.TOOL,
            policy=Policy.QUEUE,
            responder=answer.responder,
            tenant=answer.tenant,
        )
        return await self._send(conversation_id, given, via)
