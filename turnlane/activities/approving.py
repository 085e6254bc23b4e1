"""Approving: what the agent's rules make of the calls of a finished step, before any of them runs.

A call that nobody needs to approve leaves no trace. One that the rules decide gets its question and its
answer, and a denied one its result. One that a person is to decide gets a question and stays open.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from turnlane.activities.clock import utc_now
from turnlane.activities.draft import Draft
from turnlane.activities.failing import ApplicationFailedError, failing_as, persist
from turnlane.activities.patience import Patience, PatienceLostError
from turnlane.agent.agent import Agent
from turnlane.agent.approval_keys import ApprovalKeys
from turnlane.agent.approvals import NOT_APPLICABLE, ApprovalQuestion, Approvals, ApprovalStatus, Ruling
from turnlane.records.approvals import AskedApproval, approval_id_of, denied_result
from turnlane.records.base import Json
from turnlane.records.errors import StaleFenceError
from turnlane.records.messages import (
    ControlReason,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
)
from turnlane.records.steps import Fence
from turnlane.store.payloads import NewCall, RunContext
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)

POLICY_FAILED = "APPROVAL_POLICY_FAILED"
POLICY_TIMED_OUT = "APPROVAL_POLICY_TIMED_OUT"


class Approving:
    """Applies an agent's rules of approval, in one activity."""

    def __init__(self, store: Store, agent: Agent, keys: ApprovalKeys | None) -> None:
        self._store = store
        self._agent = agent
        self._keys = keys
        self._patience = Patience()

    async def judge_step(self, draft: Draft, fence: Fence) -> tuple[AskedApproval, ...]:
        """Write the rulings on a step's calls into its draft, and return what a person is asked.

        Nothing is written when the policy fails: that is an `ApplicationFailedError`.
        """
        rules = self._agent.approval_rules
        calls = [call for call in draft.calls if call.result is None]
        if rules is None or not calls:
            return ()
        run = await self.load_run(fence.conversation_id, fence.run_id)
        said = {part.call_id: part for part in draft.parts() if isinstance(part, ToolCallPart)}
        rulings = [await self.ruling(rules, run, said[call.call_id]) for call in calls]
        asked = [
            self._write(draft, fence, call, said[call.call_id].input, ruling, rules.expires_after)
            for call, ruling in zip(calls, rulings, strict=True)
            if ruling.status is not ApprovalStatus.NOT_APPLICABLE
        ]
        return tuple(approval for approval in asked if approval is not None)

    async def load_run(self, conversation_id: str, run_id: str) -> RunContext:
        """The run that asks for calls, as its policy is told of it."""
        run = await persist(lambda: self._store.load_run_context(conversation_id, run_id))
        if run is None:
            raise StaleFenceError("the run is gone", reason=ControlReason.STALE_RUN.value)
        return run

    async def ruling(self, rules: Approvals | None, run: RunContext, call: ToolCallPart) -> Ruling:
        """What the rules say of a call.

        Raises `ApplicationFailedError` when the policy fails, answers nonsense, or does not answer for a long time.
        """
        if rules is None:
            return NOT_APPLICABLE
        tool = self._agent.tool(call.tool_name)
        question = ApprovalQuestion(
            tool=call.tool_name,
            call_id=call.call_id,
            input=call.input,
            conversation_id=run.run.conversation_id,
            run_id=run.run.id,
            tenant=run.tenant,
            context=run.context,
            metadata=run.metadata,
        )
        policy, agent = "the approval policy of agent %s", self._agent.name
        try:
            with failing_as(POLICY_FAILED, policy, agent, passing=(PatienceLostError,)):
                return await self._patience.wait(rules.judge(question, tool.approval if tool is not None else None))
        except PatienceLostError:
            logger.error(policy + " took too long", agent)
            raise ApplicationFailedError(POLICY_TIMED_OUT) from None

    def _write(
        self, draft: Draft, fence: Fence, call: NewCall, given: Json, ruling: Ruling, expires_after: float | None
    ) -> AskedApproval | None:
        """Write question and answer of one call; what is asked of a person, if it is."""
        is_asked = ruling.status is ApprovalStatus.USER_APPROVAL
        expires_at = utc_now() + timedelta(seconds=expires_after) if is_asked and expires_after is not None else None
        approval_id = approval_id_of(
            fence.conversation_id, fence.run_id, fence.token, fence.step, fence.attempt, call.slot
        )
        request = ToolApprovalRequestPart(
            approval_id=approval_id,
            call_id=call.call_id,
            is_automatic=None if is_asked else True,
            signature=self._signature(approval_id, call, given),
            reason=ruling.reason if is_asked else None,
            expires_at=expires_at,
        )
        if is_asked:
            draft.ask(call, request)
            return AskedApproval(approval_id=approval_id, expires_at=expires_at)
        is_approved = ruling.status is ApprovalStatus.APPROVED
        response = ToolApprovalResponsePart(approval_id=approval_id, approved=is_approved, reason=ruling.reason)
        result = None if is_approved else denied_result(call.call_id, call.tool_name, ruling.reason)
        draft.decide(call, request, response, result)
        return None

    def _signature(self, approval_id: str, call: NewCall, given: Json) -> str | None:
        if self._keys is None:
            return None
        return self._keys.sign(approval_id, call.call_id, call.tool_name, given)
