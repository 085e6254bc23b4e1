"""The tool round: the calls that a step asked for, one activity each, in parallel.

Each call ends with exactly one result: its own, or a coded one written for it when its activity left none.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from turnlane.records.lane import LaneRun
from turnlane.records.messages import ToolOutcome
from turnlane.records.steps import CallOutcome, CallRef, CallRequest, Fence, SettleCalls
from turnlane.workflows.calls import SETTLE_CALLS, store_call
from turnlane.workflows.core import LaneCore

OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
TOOL_TIMEOUT = "TIMEOUT"
TOOL_FAILED = "INTERNAL_ERROR"
INTERRUPTED = "INTERRUPTED"
WORKER_SHUTDOWN = "WORKER_SHUTDOWN"


class ToolRound:
    """Executes tool calls of live runs."""

    def __init__(self, core: LaneCore) -> None:
        self._core = core

    async def execute(self, run: LaneRun, fence: Fence, calls: list[CallRef]) -> list[CallOutcome]:
        """Run the calls and answer what came of each, in the order given. Afterwards each has its result stored,
        unless its fence was stale or the run was interrupted."""
        results = await self._run_calls(run, fence, calls)
        await self._close_lost_calls(run, fence, calls, results)
        return results

    async def _run_calls(self, run: LaneRun, fence: Fence, calls: list[CallRef]) -> list[CallOutcome]:
        core = self._core
        core.activities = [self._start_call(run, fence, call) for call in calls]
        core.activities_of = run.id
        try:
            return [await self._call_result(handle, call) for handle, call in zip(core.activities, calls, strict=True)]
        finally:
            core.activities = []

    def _start_call(self, run: LaneRun, fence: Fence, call: CallRef) -> workflow.ActivityHandle[CallOutcome]:
        request = CallRequest(
            agent=self._core.head.agent or "",
            fence=fence,
            assistant_message_id=run.assistant_message_id,
            call_id=call.call_id,
            tool_name=call.tool_name,
            slot=call.slot,
        )
        handle: workflow.ActivityHandle[CallOutcome] = workflow.start_activity(
            call.tool_name,
            request,
            result_type=CallOutcome,
            start_to_close_timeout=timedelta(seconds=call.seconds),
            heartbeat_timeout=timedelta(seconds=self._core.settings.heartbeat_seconds),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=call.max_attempts),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=f"step {fence.step + 1}",
        )
        return handle

    async def _call_result(self, handle: workflow.ActivityHandle[CallOutcome], call: CallRef) -> CallOutcome:
        try:
            return await handle
        except ActivityError as error:
            return CallOutcome(call_id=call.call_id, outcome=ToolOutcome.ERROR, code=_call_error(error), stored=False)

    async def _close_lost_calls(
        self, run: LaneRun, fence: Fence, calls: list[CallRef], results: list[CallOutcome]
    ) -> None:
        """Give every call that ended without a result of its own a coded one, so that each has exactly one."""
        core = self._core
        for code in (OUTCOME_UNKNOWN, TOOL_TIMEOUT, TOOL_FAILED):
            lost = tuple(
                call for call, result in zip(calls, results, strict=True) if result.code == code and not result.stored
            )
            if lost:
                request = SettleCalls(fence=fence, assistant_message_id=run.assistant_message_id, calls=lost, code=code)
                await store_call(SETTLE_CALLS, request, bool, core.settings, core.outage)


def _call_error(error: ActivityError) -> str:
    """The code for a call that left no result: nobody knows whether its effect happened."""
    cause = error.cause
    if isinstance(cause, CancelledError):
        return INTERRUPTED
    if isinstance(cause, ActivityTimeoutError):
        return TOOL_TIMEOUT if cause.type is TimeoutType.START_TO_CLOSE else OUTCOME_UNKNOWN
    if isinstance(cause, ApplicationError) and cause.type == WORKER_SHUTDOWN:
        return OUTCOME_UNKNOWN
    return TOOL_FAILED
