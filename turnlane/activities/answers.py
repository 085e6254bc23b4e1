"""Answers: what a run does about the approvals that its inputs answer, before its first step.

Everything is checked before anything is done: that the question is one of ours, that the call is still the
one that was asked about, and that the agent's rules do not forbid it by now. One doubt fails the run, and
no call is made. A denied call gets its result here; an approved one goes back to the lane, to be made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from temporalio import activity

from turnlane.activities.approving import Approving
from turnlane.activities.clock import utc_now
from turnlane.activities.draft import call_ref
from turnlane.activities.failing import ApplicationFailedError, as_failures
from turnlane.activities.publishing import tell
from turnlane.agent.agent import Agent
from turnlane.agent.approval_keys import ApprovalKeys
from turnlane.agent.approvals import ApprovalStatus
from turnlane.agent.tools import Tool
from turnlane.records.approvals import (
    AnsweredCall,
    ApprovalState,
    CallOrigin,
    PendingApproval,
    StoredApproval,
    denied_result,
)
from turnlane.records.calls import CallRef
from turnlane.records.errors import StaleFenceError
from turnlane.records.messages import ToolApprovalResponsePart, ToolCallPart
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import AnswersOpened, OpenAnswers
from turnlane.store.bus import EventBus
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)

UNKNOWN = "APPROVAL_UNKNOWN"
CALL_MISSING = "APPROVAL_CALL_MISSING"
BAD_SIGNATURE = "APPROVAL_SIGNATURE"
BAD_ARGUMENTS = "APPROVAL_ARGUMENTS"
UNKNOWN_TOOL = "UNKNOWN_TOOL"


class Denial(NamedTuple):
    """That a call is not made, and why, if that was said."""

    reason: str | None


class Answers:
    """The `open_answers` activity. One instance serves all lanes of the process."""

    def __init__(self, store: Store, agents: Mapping[str, Agent], bus: EventBus, keys: ApprovalKeys | None) -> None:
        self._store = store
        self._agents = agents
        self._bus = bus
        self._keys = keys

    @activity.defn(name="open_answers")
    @as_failures
    async def open_answers(self, request: OpenAnswers) -> AnswersOpened:
        """Act on the approval answers among a run's inputs; see the module. Repeated, it does what is left to do."""
        agent = self._agents.get(request.agent)
        if agent is None:
            return _failed("UNKNOWN_AGENT")
        try:
            return await _Opening(self._store, self._bus, agent, self._keys, request).open()
        except ApplicationFailedError as error:
            logger.error("run %s: its approval answers do not hold: %s", request.fence.run_id, error.code)
            return AnswersOpened(failure=error.failure)
        except StaleFenceError:
            return AnswersOpened(stale=True)


def _failed(code: str) -> AnswersOpened:
    return AnswersOpened(failure=Failure(failure_class=FailureClass.APPLICATION, code=code))


@dataclass(frozen=True)
class _Answered:
    """An answer to a question that is genuine."""

    answer: ToolApprovalResponsePart
    approval: StoredApproval
    request: PendingApproval

    @property
    def is_to_do(self) -> bool:
        """Whether the call waits for this very answer: it has no result, and was decided as the answer says."""
        decided = ApprovalState.APPROVED if self.answer.approved else ApprovalState.DENIED
        return not self.approval.is_finished and self.approval.state is decided

    @property
    def origin(self) -> CallOrigin:
        """Where the call was asked for."""
        approval = self.approval
        return CallOrigin(run_id=approval.run_id, message_id=approval.message_id, step=approval.step)


class _Opening:
    """The answers of one run."""

    def __init__(
        self, store: Store, bus: EventBus, agent: Agent, keys: ApprovalKeys | None, request: OpenAnswers
    ) -> None:
        self._store = store
        self._bus = bus
        self._agent = agent
        self._keys = keys
        self._request = request
        self._approving = Approving(store, agent, keys)

    async def open(self) -> AnswersOpened:
        """Check every answer, then act on each that is not acted on yet."""
        fence = self._request.fence
        answers = await self._store.load_answers(fence.conversation_id, fence.run_id)
        genuine = [self._genuine(given) for given in answers.calls]
        to_do = [answered for answered in genuine if answered.is_to_do]
        denials = [await self._denial(answered) for answered in to_do]
        calls: list[CallRef] = []
        for answered, denial in zip(to_do, denials, strict=True):
            if denial is None:
                tool = self._tool(answered.request)
                calls.append(call_ref(tool, answered.request.call_id, answered.approval.slot, answered.origin))
            else:
                await self._deny(answered, denial)
        return AnswersOpened(calls=tuple(calls), waits=answers.waits)

    def _genuine(self, given: AnsweredCall) -> _Answered:
        """The answer with its question. Raises `ApplicationFailedError` for one that is not one of ours."""
        if given.approval is None:
            raise ApplicationFailedError(UNKNOWN)
        if given.approval.request is None:
            raise ApplicationFailedError(CALL_MISSING)
        if not self._is_signed(given.approval.request):
            raise ApplicationFailedError(BAD_SIGNATURE)
        return _Answered(given.answer, given.approval, given.approval.request)

    def _is_signed(self, request: PendingApproval) -> bool:
        """Whether the signature holds. A worker without keys cannot tell, and trusts only what was never signed."""
        if self._keys is None:
            return request.signature is None
        return self._keys.verify(
            request.signature, request.approval_id, request.call_id, request.tool_name, request.input
        )

    async def _denial(self, answered: _Answered) -> Denial | None:
        """Why the call is not made: the user's word, or that of the agent's rules as they are now; None if it is."""
        if not answered.answer.approved:
            return Denial(answered.answer.reason)
        request = answered.request
        if not self._tool(request).accepts(request.input):
            raise ApplicationFailedError(BAD_ARGUMENTS)
        run = await self._approving.load_run(request.conversation_id, request.run_id)
        call = ToolCallPart(call_id=request.call_id, tool_name=request.tool_name, input=request.input)
        ruling = await self._approving.ruling(self._agent.approval_rules, run, call)
        return Denial(ruling.reason) if ruling.status is ApprovalStatus.DENIED else None

    def _tool(self, request: PendingApproval) -> Tool:
        tool = self._agent.tool(request.tool_name)
        if tool is None:
            raise ApplicationFailedError(UNKNOWN_TOOL)
        return tool

    async def _deny(self, answered: _Answered, denial: Denial) -> None:
        request = answered.request
        written = await self._store.finish_call(
            self._request.fence,
            self._request.assistant_message_id,
            answered.approval.slot,
            denied_result(request.call_id, request.tool_name, denial.reason),
            utc_now(),
            origin=answered.origin,
        )
        tell(self._bus, written.events)
