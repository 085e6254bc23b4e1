"""Tool calls: one activity each, of the type of the tool's name, with its result in the store.

The fence is checked before the effect and again when the result is accepted. A call whose worker died
is not made again unless its tool says that this is safe: nobody knows whether the effect happened. A durable
tool says so: it is answered from what it recorded. One that waits ends its activity without a result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from temporalio import activity
from temporalio.common import RawValue

from turnlane.activities.call_notes import keep_notes
from turnlane.activities.clock import utc_now
from turnlane.activities.coded import LOST_CALL_MESSAGES, coded
from turnlane.activities.draft import TOOL_SLACK_SECONDS
from turnlane.activities.durable import Journal, is_left
from turnlane.activities.entry_log import StoreLog
from turnlane.activities.failing import as_failures, persist
from turnlane.activities.publishing import Publisher, tell
from turnlane.activities.pulse import Cut, at_work, why_cut
from turnlane.activities.sibling_calls import SiblingCalls, together
from turnlane.agent.agent import Agent
from turnlane.agent.durable import LeavesBody
from turnlane.agent.tool_output import Shown, shown_output
from turnlane.agent.tools import Tool, ToolContext, ToolReply
from turnlane.records.durable import SuspendedCall
from turnlane.records.errors import StaleFenceError
from turnlane.records.events import ToolStatus
from turnlane.records.limits import Limits
from turnlane.records.messages import ControlReason, ToolOutcome, ToolResultPart
from turnlane.records.steps import CallOutcome, CallRequest, Fence
from turnlane.store.bus import EventBus
from turnlane.store.payloads import CallStart, RunContext, Spill
from turnlane.store.protocol import Store

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
        self._siblings = SiblingCalls()

    @activity.defn(dynamic=True)
    async def tool_call(self, args: Sequence[RawValue]) -> CallOutcome:
        """Run one tool call; see the module."""
        request = activity.payload_converter().from_payload(args[0].payload, CallRequest)
        return await self._handle(request)

    @as_failures
    async def _handle(self, request: CallRequest) -> CallOutcome:
        try:
            with self._siblings.joined(request) as siblings:
                async with at_work():
                    outcome = await self._make(request)
            if outcome.stored:
                await together(siblings)
            return outcome
        except StaleFenceError as error:
            stale = error.details.get("reason") != ControlReason.RUN_INTERRUPTED
            return CallOutcome(call_id=request.call_id, outcome=ToolOutcome.INTERRUPTED, stale=stale, stored=False)

    async def _make(self, request: CallRequest) -> CallOutcome:
        agent = self._agents.get(request.agent)
        tool = agent.tool(request.tool_name) if agent else None
        start = await self._begin(request, tool)
        if start.result is not None:
            return _outcome(start.result)
        attempt = request.tried + activity.info().attempt
        publisher = Publisher(self._bus, request.fence, request.call_id, attempt, utc_now)
        publisher.tool(ToolStatus.STARTED, request.call_id, request.tool_name, given=start.input)
        reply = await self._reply(request, agent, tool, start, attempt)
        if isinstance(reply, SuspendedCall):
            return await self._suspend(request, reply, publisher)
        limit = (agent.limits if agent else Limits()).tool_output_bytes
        return await self._finish(request, reply.outcome, shown_output(reply.output, limit), publisher)

    async def _begin(self, request: CallRequest, tool: Tool | None) -> CallStart:
        durable = _durable_call(request, tool) if tool is not None and tool.durable else None
        return await persist(
            lambda: self._store.begin_call(
                request.fence,
                request.assistant_message_id,
                request.slot,
                utc_now(),
                durable=durable,
                origin=request.origin,
            )
        )

    async def _finish(
        self, request: CallRequest, outcome: ToolOutcome, shown: Shown, publisher: Publisher
    ) -> CallOutcome:
        """Have the result accepted, and tell it. What the model is not shown of it is kept with it."""
        result = ToolResultPart(
            call_id=request.call_id, tool_name=request.tool_name, outcome=outcome, output=shown.output
        )
        spill = None if shown.spilled is None else Spill(data=shown.spilled, media_type=shown.media_type)
        written = await persist(
            lambda: self._store.finish_call(
                request.fence,
                request.assistant_message_id,
                request.slot,
                result,
                utc_now(),
                spill=spill,
                origin=request.origin,
            )
        )
        tell(self._bus, written.events)
        publisher.tool(_STATUS[outcome], request.call_id, request.tool_name, output=result.output)
        return _outcome(result)

    async def _suspend(self, request: CallRequest, call: SuspendedCall, publisher: Publisher) -> CallOutcome:
        """Note for whoever opens the lane next that the call waits, tell it, and hand the wait to the lane."""
        await persist(lambda: self._store.suspend_call(request.fence, request.assistant_message_id, call, utc_now()))
        until = call.suspension.resume_at if call.suspension is not None else None
        publisher.tool(ToolStatus.WAITING, request.call_id, request.tool_name, until=until)
        return CallOutcome(
            call_id=request.call_id, outcome=ToolOutcome.INTERRUPTED, stored=False, suspended=call.suspension
        )

    async def _reply(
        self, request: CallRequest, agent: Agent | None, tool: Tool | None, start: CallStart, attempt: int
    ) -> ToolReply | SuspendedCall:
        fence = request.fence
        run = await persist(lambda: self._store.load_run_context(fence.conversation_id, request.asking_run_id))
        if agent is None or tool is None or run is None:
            return _coded("UNKNOWN_TOOL", "there is no tool of this name here")
        if start.started_before and tool.max_attempts == 1:
            return _coded("OUTCOME_UNKNOWN", LOST_CALL_MESSAGES["OUTCOME_UNKNOWN"])
        context = _context(request, run, attempt)
        if not tool.durable:
            reply = await self._invoke(agent, tool, context, start, fence)
            await keep_notes(self._store, context)
            return reply
        return await self._invoke_durable(agent, tool, context, start, request)

    async def _invoke_durable(
        self, agent: Agent, tool: Tool, context: ToolContext, start: CallStart, request: CallRequest
    ) -> ToolReply | SuspendedCall:
        """Run a body that records what it does. It may be left for a wait, or because its call may not go on."""
        journal = Journal(StoreLog(self._store, request), context, utc_now)
        try:
            return await self._invoke(agent, tool, replace(context, durable=journal), start, request.fence)
        except (LeavesBody, BaseExceptionGroup) as error:
            if not is_left(error):
                raise
        finally:
            await journal.close()
        if journal.ended is not None:
            raise journal.ended
        if journal.suspension is None:
            raise AssertionError("a body was left for nothing")
        return _durable_call(request, tool).model_copy(update={"suspension": journal.suspension})

    async def _invoke(
        self, agent: Agent, tool: Tool, context: ToolContext, start: CallStart, fence: Fence
    ) -> ToolReply:
        try:
            async with asyncio.timeout(tool.timeout):
                return await tool.invoke(context, start.input, hooks=agent.call_hooks)
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
        run_id=request.asking_run_id,
        step_number=request.asking_step,
        call_id=request.call_id,
        agent=request.agent,
        tenant=run.tenant,
        context=run.context,
        metadata=run.metadata,
        attempt=attempt,
        surface=run.prepared.surface if run.prepared is not None else None,
    )


def _durable_call(request: CallRequest, tool: Tool) -> SuspendedCall:
    """A call as its lane, or the next one, takes it up again."""
    return SuspendedCall(
        call_id=request.call_id,
        tool_name=request.tool_name,
        slot=request.slot,
        max_attempts=tool.max_attempts,
        seconds=tool.timeout + TOOL_SLACK_SECONDS,
        origin=request.origin,
    )


def _coded(code: str, message: str) -> ToolReply:
    return ToolReply(ToolOutcome.ERROR, coded(code, message), code)


def _outcome(result: ToolResultPart) -> CallOutcome:
    code = result.output.get("error") if isinstance(result.output, dict) else None
    named = code if result.outcome is not ToolOutcome.SUCCESS and isinstance(code, str) else None
    return CallOutcome(call_id=result.call_id, outcome=result.outcome, code=named)
