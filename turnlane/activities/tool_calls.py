"""Tool calls: one activity each, of the type of the tool's name, with its result in the store.

The fence is checked before the effect and again when the result is accepted. A call whose worker died
is not made again unless its tool says that this is safe: nobody knows whether the effect happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from temporalio import activity
from temporalio.common import RawValue

from turnlane.activities.failing import as_failures, persist
from turnlane.activities.lane_work import LOST_CALL_MESSAGES, coded, utc_now
from turnlane.activities.publishing import Publisher
from turnlane.activities.pulse import Cut, heartbeats, moved_at_shutdown, why_cut
from turnlane.agent.agent import Agent
from turnlane.agent.tools import Tool, ToolContext, ToolReply, bounded_output
from turnlane.records.errors import StaleFenceError
from turnlane.records.events import ToolStatus
from turnlane.records.messages import ControlReason, ToolOutcome, ToolResultPart
from turnlane.records.steps import CallOutcome, CallRequest, Fence
from turnlane.store.bus import EventBus
from turnlane.store.protocol import CallStart, RunContext, Store

logger = logging.getLogger(__name__)

_STATUS = {
    ToolOutcome.SUCCESS: ToolStatus.COMPLETED,
    ToolOutcome.ERROR: ToolStatus.FAILED,
    ToolOutcome.INTERRUPTED: ToolStatus.INTERRUPTED,
}


class ToolCalls:
    """The dynamic activity behind every tool. One instance serves all lanes of the process."""

    def __init__(self, store: Store, agents: Mapping[str, Agent], bus: EventBus) -> None:
        self._store = store
        self._agents = agents
        self._bus = bus

    @activity.defn(dynamic=True)
    async def tool_call(self, args: Sequence[RawValue]) -> CallOutcome:
        """Run one tool call; see the module."""
        request = activity.payload_converter().from_payload(args[0].payload, CallRequest)
        return await self._handle(request)

    @as_failures
    async def _handle(self, request: CallRequest) -> CallOutcome:
        async with heartbeats():
            try:
                with moved_at_shutdown():
                    return await self._make(request)
            except StaleFenceError as error:
                stale = error.details.get("reason") != ControlReason.RUN_INTERRUPTED
                return CallOutcome(call_id=request.call_id, outcome=ToolOutcome.INTERRUPTED, stale=stale, stored=False)

    async def _make(self, request: CallRequest) -> CallOutcome:
        fence = request.fence
        start = await persist(
            lambda: self._store.begin_call(fence, request.assistant_message_id, request.slot, utc_now())
        )
        if start.result is not None:
            return _outcome(start.result)
        attempt = activity.info().attempt
        publisher = Publisher(self._bus, fence, request.call_id, attempt, utc_now)
        publisher.tool(ToolStatus.STARTED, request.call_id, request.tool_name, given=start.input)
        result = await self._result(request, start, attempt)
        written = await persist(
            lambda: self._store.finish_call(fence, request.assistant_message_id, request.slot, result, utc_now())
        )
        for event in written.events:
            self._bus.publish(event)
        publisher.tool(_STATUS[result.outcome], request.call_id, request.tool_name, output=result.output)
        return _outcome(result)

    async def _result(self, request: CallRequest, start: CallStart, attempt: int) -> ToolResultPart:
        agent = self._agents.get(request.agent)
        tool = agent.tool(request.tool_name) if agent else None
        fence = request.fence
        run = await persist(lambda: self._store.load_run_context(fence.conversation_id, fence.run_id))
        if agent is None or tool is None or run is None:
            return _error(request, "UNKNOWN_TOOL", "there is no tool of this name here")
        if start.started_before and tool.max_attempts == 1:
            return _error(request, "OUTCOME_UNKNOWN", LOST_CALL_MESSAGES["OUTCOME_UNKNOWN"])
        reply = await self._invoke(tool, _context(request, run, attempt), start, fence)
        return ToolResultPart(
            call_id=request.call_id,
            tool_name=request.tool_name,
            outcome=reply.outcome,
            output=bounded_output(reply.output, agent.limits.tool_output_bytes),
        )

    async def _invoke(self, tool: Tool, context: ToolContext, start: CallStart, fence: Fence) -> ToolReply:
        try:
            async with asyncio.timeout(tool.timeout):
                return await tool.invoke(context, start.input)
        except TimeoutError:
            return ToolReply(ToolOutcome.ERROR, coded("TIMEOUT", LOST_CALL_MESSAGES["TIMEOUT"]), "TIMEOUT")
        except asyncio.CancelledError:
            return await self._cut_short(tool, fence)

    async def _cut_short(self, tool: Tool, fence: Fence) -> ToolReply:
        """The call was cancelled while the tool ran."""
        cut = await why_cut(self._store, fence)
        if cut is Cut.LOST or (cut is Cut.SHUTDOWN and tool.max_attempts > 1):
            raise asyncio.CancelledError
        code = "INTERRUPTED" if cut is Cut.ABORT else "OUTCOME_UNKNOWN"
        message = LOST_CALL_MESSAGES["OUTCOME_UNKNOWN"] if cut is Cut.SHUTDOWN else INTERRUPTED_MESSAGE
        outcome = ToolOutcome.INTERRUPTED if cut is Cut.ABORT else ToolOutcome.ERROR
        return ToolReply(outcome, coded(code, message), code)


INTERRUPTED_MESSAGE = "The call was interrupted; its effects are unknown."


def _context(request: CallRequest, run: RunContext, attempt: int) -> ToolContext:
    return ToolContext(
        conversation_id=request.fence.conversation_id,
        run_id=request.fence.run_id,
        step_number=request.fence.step,
        call_id=request.call_id,
        agent=request.agent,
        tenant=run.tenant,
        context=run.context,
        metadata=run.metadata,
        attempt=attempt,
    )


def _error(request: CallRequest, code: str, message: str) -> ToolResultPart:
    return ToolResultPart(
        call_id=request.call_id,
        tool_name=request.tool_name,
        outcome=ToolOutcome.ERROR,
        output=coded(code, message),
    )


def _outcome(result: ToolResultPart) -> CallOutcome:
    code = result.output.get("error") if isinstance(result.output, dict) else None
    named = code if result.outcome is not ToolOutcome.SUCCESS and isinstance(code, str) else None
    return CallOutcome(call_id=result.call_id, outcome=result.outcome, code=named)
