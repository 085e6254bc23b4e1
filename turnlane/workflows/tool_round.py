"""The tool round: the calls that a step asked for, one activity each, in parallel.

Each call ends with exactly one result: its own, or a coded one written for it when its activity left none.
A call whose body waits has no activity: the lane holds its timer, or waits for its event, and then runs it
again. While nothing but waiting calls is left of a round, its lane may move to a fresh history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from turnlane.records.calls import CallRef
from turnlane.records.durable import ANY_EVENT, SuspendedCall, Suspension
from turnlane.records.lane import LaneRun, RunProgress
from turnlane.records.messages import ToolOutcome
from turnlane.records.steps import CallOutcome, CallRequest, Fence, SettleCalls
from turnlane.workflows.calls import SETTLE_CALLS, store_call
from turnlane.workflows.core import LaneCore
from turnlane.workflows.heeding import has_stopped
from turnlane.workflows.until import until

OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
TOOL_TIMEOUT = "TIMEOUT"
TOOL_FAILED = "INTERNAL_ERROR"
INTERRUPTED = "INTERRUPTED"
WORKER_SHUTDOWN = "WORKER_SHUTDOWN"

Handle = workflow.ActivityHandle[CallOutcome]


@dataclass
class _Round:
    """The calls of one round: under which fence, and how many of them are with a worker just now."""

    run: LaneRun
    fence: Fence
    working: int = 0


class ToolRound:
    """Executes tool calls of live runs."""

    def __init__(self, core: LaneCore) -> None:
        self._core = core
        self._round: _Round | None = None
        self._delivered: list[str] = []

    def heard(self, key: str) -> None:
        """Wake the calls that wait for this event; one whose body is just going to wait is woken when it does."""
        self._delivered.append(key)

    def carried(self) -> RunProgress | None:
        """The progress of the live run for a fresh history: calls whose event has come are to be run at once."""
        progress = self._core.progress
        if progress is None or not progress.suspended:
            return progress
        suspended = tuple(
            call.model_copy(update={"suspension": Suspension(tried=call.suspension.tried)})
            if call.suspension is not None and self._is_delivered(call.suspension)
            else call
            for call in progress.suspended
        )
        return progress.model_copy(update={"suspended": suspended})

    async def execute(self, run: LaneRun, fence: Fence, calls: Sequence[CallRef]) -> list[CallOutcome]:
        """Run the calls and answer what came of each, in the order given.

        Afterwards each has its result stored, unless its fence was stale, the run was interrupted, or it is
        still suspended because its lane has to move to a fresh history.
        """
        self._delivered.clear()
        return await self._execute(run, fence, calls, [None] * len(calls))

    async def resume(self, run: LaneRun, fence: Fence, suspended: Sequence[SuspendedCall]) -> list[CallOutcome]:
        """Go on with calls that an earlier history of the lane, or an earlier lane, left suspended."""
        return await self._execute(run, fence, suspended, [call.suspension or Suspension() for call in suspended])

    async def _execute(
        self, run: LaneRun, fence: Fence, calls: Sequence[CallRef], waits: Sequence[Suspension | None]
    ) -> list[CallOutcome]:
        self._core.activities_of = run.id
        self._core.activities = []
        self._round = _Round(run, fence)
        count = sum(wait is None for wait in waits)
        try:
            handles = [
                self._start_call(call, siblings=count if count > 1 else None) if wait is None else None
                for call, wait in zip(calls, waits, strict=True)
            ]
            drives = [self._drive(*work) for work in zip(calls, handles, waits, strict=True)]
            results = await asyncio.gather(*drives)
        finally:
            self._core.activities = []
            self._round = None
        await self._close_lost_calls(run, fence, calls, results)
        return results

    # --- one call -------------------------------------------------------------------------------

    async def _drive(self, call: CallRef, handle: Handle | None, wait: Suspension | None) -> CallOutcome:
        """Run a call, and again whenever what its body waits for has come; what came of it in the end."""
        since = 0
        while True:
            if handle is not None:
                outcome = await self._call_result(handle, call)
                if outcome.suspended is None:
                    return outcome
                wait = outcome.suspended
            if wait is None or not await self._comes(call, wait, since):
                return _unfinished(call, wait)
            # What was delivered by now the body finds by itself: only later news is a reason to run it once more.
            since = len(self._delivered)
            handle = self._start_call(call, wait.tried)

    def _start_call(self, call: CallRef, tried: int = 0, siblings: int | None = None) -> Handle:
        current = self._current
        request = CallRequest(
            agent=self._core.head.agent or "",
            fence=current.fence,
            assistant_message_id=current.run.assistant_message_id,
            call_id=call.call_id,
            tool_name=call.tool_name,
            slot=call.slot,
            tried=tried,
            origin=call.origin,
            siblings=siblings,
        )
        handle: Handle = workflow.start_activity(
            call.tool_name,
            request,
            result_type=CallOutcome,
            start_to_close_timeout=timedelta(seconds=call.seconds),
            heartbeat_timeout=timedelta(seconds=self._core.settings.heartbeat_seconds),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_attempts=call.max_attempts),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=f"step {current.fence.step + 1}",
        )
        current.working += 1
        self._core.activities.append(handle)
        return handle

    async def _call_result(self, handle: Handle, call: CallRef) -> CallOutcome:
        try:
            outcome = await handle
        except ActivityError as error:
            code = _call_error(error)
            outcome = CallOutcome(call_id=call.call_id, outcome=ToolOutcome.ERROR, code=code, stored=False)
        # Not in a `finally`: a workflow that leaves a worker's cache is torn down when there is no round any more.
        self._current.working -= 1
        self._core.activities.remove(handle)
        return outcome

    @property
    def _current(self) -> _Round:
        if self._round is None:
            raise AssertionError("no tool round is under way")
        return self._round

    # --- waiting without a worker ---------------------------------------------------------------

    async def _comes(self, call: CallRef, wait: Suspension, since: int) -> bool:
        """Wait for what a body waits for, and show meanwhile that it does."""
        core = self._core
        core.waits[call.call_id] = (call.tool_name, wait)
        core.tell()
        has_come = await self._has_come(wait, since)
        del core.waits[call.call_id]
        core.tell()
        return has_come

    async def _has_come(self, wait: Suspension, since: int) -> bool:
        """Wait for what a body waits for. False when the run was asked to stop, or the lane has to move, first.

        `since` is how many events had been delivered when the body was last run.
        """
        seconds = self._seconds_left(wait)
        if seconds is not None and seconds <= 0:
            return not self._has_stopped()
        try:
            await until(
                lambda: self._is_delivered(wait, since) or self._has_stopped() or self._must_move(),
                timeout=seconds,
                timeout_summary="a tool sleeps",
            )
        except TimeoutError:
            return not self._has_stopped()
        return self._is_delivered(wait, since) and not self._has_stopped()

    def _seconds_left(self, wait: Suspension) -> float | None:
        """Until its time has come; None for a body that waits for events alone, however long they take."""
        if wait.resume_at is not None:
            return (wait.resume_at - workflow.now()).total_seconds()
        return None if wait.waits_for else 0.0

    def _is_delivered(self, wait: Suspension, since: int = 0) -> bool:
        news = self._delivered[since:]
        return any(key in news or (key == ANY_EVENT and bool(news)) for key in wait.waits_for)

    def _has_stopped(self) -> bool:
        return has_stopped(self._core, self._current.run)

    def _must_move(self) -> bool:
        return self._current.working == 0 and self._core.continue_as_new_is_urgent

    # --- closing --------------------------------------------------------------------------------

    async def _close_lost_calls(
        self, run: LaneRun, fence: Fence, calls: Sequence[CallRef], results: Sequence[CallOutcome]
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


def suspended_calls(calls: Sequence[CallRef], results: Sequence[CallOutcome]) -> tuple[SuspendedCall, ...]:
    """The calls of a round that still wait, as their lane carries them."""
    return tuple(
        SuspendedCall(**{**dict(call), "suspension": result.suspended})
        for call, result in zip(calls, results, strict=True)
        if result.suspended is not None
    )


def _unfinished(call: CallRef, wait: Suspension | None) -> CallOutcome:
    return CallOutcome(call_id=call.call_id, outcome=ToolOutcome.INTERRUPTED, stored=False, suspended=wait)


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
