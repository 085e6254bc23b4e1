"""The run loop: steps of the live run, one after the other, until it ends or its lane moves on.

Before every step the durable state of the run is looked at again, so a cancellation that an activity
swallowed cannot start another call. Everything that ends a run passes through `LaneCore.settle`.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from turnlane.records.lane import LaneRun, RunProgress, Taken
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolOutcome
from turnlane.records.runs import Failure, FailureClass, RunState
from turnlane.records.steps import (
    CallOutcome,
    CallRef,
    CallRequest,
    Fence,
    SettleCalls,
    StepEnd,
    StepOutcome,
    StepRequest,
)
from turnlane.workflows.calls import PROVIDER_STEP, SETTLE_CALLS, store_call
from turnlane.workflows.core import LaneCore
from turnlane.workflows.ending import (
    MAX_STEPS,
    abort_end,
    failure_end,
    policy_end,
    retry_delay,
    runs_its_calls,
    step_end,
)
from turnlane.workflows.offers import TAKEN_INPUTS, take_offers

OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
TOOL_TIMEOUT = "TIMEOUT"
TOOL_FAILED = "INTERNAL_ERROR"
INTERRUPTED = "INTERRUPTED"
WORKER_SHUTDOWN = "WORKER_SHUTDOWN"

STEP_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    maximum_interval=timedelta(seconds=10),
    maximum_attempts=8,
)
"""For lost workers only: whatever a provider or an application does wrong comes back as data."""


class RunLoop:
    """Executes live runs."""

    def __init__(self, core: LaneCore) -> None:
        self._core = core

    async def execute(self) -> None:
        """Work on the live run until there is none, or until the lane has to move to a fresh history."""
        core = self._core
        while (run := self._live()) is not None and core.outbox.lost is None:
            if run.state is RunState.INTERRUPT_REQUESTED:
                core.settle(run, abort_end(run))
            elif core.continue_as_new_is_urgent:
                return
            else:
                await self._step(run)
            await self._durable()

    def _live(self) -> LaneRun | None:
        return self._core.head.live

    def _fresh(self, run: LaneRun) -> LaneRun | None:
        """The run as it is now, if it is still the one we work on."""
        live = self._live()
        return live if live is not None and live.id == run.id and live.token == run.token else None

    async def _durable(self) -> None:
        """Wait until everything decided is in the store."""
        core = self._core
        await workflow.wait_condition(lambda: core.outbox.is_empty or core.outbox.lost is not None)

    # --- one step -------------------------------------------------------------------------------

    async def _step(self, run: LaneRun) -> None:
        core = self._core
        progress = self._take_injected(run)
        await self._durable()
        fresh = self._fresh(run)
        if core.outbox.lost is not None or fresh is None or fresh.state is not RunState.RUNNING:
            return
        outcome = await self._provider_step(run, progress)
        current = self._fresh(run)
        if current is None or core.outbox.lost is not None:
            return
        self._count(outcome)
        if current.state is RunState.INTERRUPT_REQUESTED:
            core.settle(current, abort_end(current))
        elif outcome.end is StepEnd.FAILED:
            await self._retry_or_end(current, outcome)
        elif runs_its_calls(outcome):
            await self._tool_calls(current, outcome)
        else:
            core.settle(current, step_end(outcome))

    def _take_injected(self, run: LaneRun) -> RunProgress:
        core = self._core
        progress = core.progress
        if progress is None or progress.run_id != run.id:
            progress = RunProgress(run_id=run.id)
        core.head, offers = take_offers(core.head, run.id, TAKEN_INPUTS - len(progress.taken))
        taken = tuple(Taken(run_id=run_id, input_id=input_id, step=progress.step) for run_id, input_id in offers)
        core.progress = progress.model_copy(update={"taken": progress.taken + taken})
        return core.progress

    def _fence(self, run: LaneRun, progress: RunProgress, attempt: int) -> Fence:
        return Fence(
            conversation_id=self._core.conversation_id,
            epoch=self._core.epoch,
            run_id=run.id,
            token=run.token,
            step=progress.step,
            attempt=attempt,
        )

    async def _provider_step(self, run: LaneRun, progress: RunProgress) -> StepOutcome:
        core = self._core
        fence = self._fence(run, progress, progress.attempt)
        request = StepRequest(
            agent=core.head.agent or "",
            fence=fence,
            assistant_message_id=run.assistant_message_id,
            taken=progress.taken,
            facts_digest=core.facts.digest if core.facts else None,
        )
        handle = workflow.start_activity(
            PROVIDER_STEP,
            request,
            result_type=StepOutcome,
            start_to_close_timeout=timedelta(seconds=core.facts.step_seconds if core.facts else 3600),
            heartbeat_timeout=timedelta(seconds=core.settings.heartbeat_seconds),
            retry_policy=STEP_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=f"step {progress.step + 1}",
        )
        core.activities, core.activities_of = [handle], run.id
        core.tell()
        try:
            outcome: StepOutcome = await handle
            return outcome
        except ActivityError as error:
            return _step_error(error, progress)
        finally:
            core.activities = []

    def _count(self, outcome: StepOutcome) -> None:
        core = self._core
        core.facts = outcome.facts or core.facts
        if core.progress is not None:
            core.progress = core.progress.model_copy(
                update={
                    "attempt": outcome.attempt + 1,
                    "input_tokens": core.progress.input_tokens + (outcome.input_tokens or 0),
                    "output_tokens": core.progress.output_tokens + (outcome.output_tokens or 0),
                }
            )

    # --- a failed step --------------------------------------------------------------------------

    async def _retry_or_end(self, run: LaneRun, outcome: StepOutcome) -> None:
        core = self._core
        progress = core.progress
        failure = outcome.failure or Failure(failure_class=FailureClass.UNKNOWN)
        tries = progress.tries + 1 if progress else 1
        delay = retry_delay(core.facts.retry, failure, tries, workflow.random().random()) if core.facts else None
        if delay is None or progress is None:
            core.settle(run, failure_end(failure))
            return
        core.last_failure = failure.failure_class.value
        self._note_retry(LedgerKind.RETRY_SCHEDULED, run, outcome, {"delay_ms": round(delay * 1000)})
        await self._pause(run, delay)
        if self._fresh(run) is None or core.progress is None:
            return
        core.progress = core.progress.model_copy(update={"tries": tries})
        self._note_retry(LedgerKind.RETRY_STARTED, run, outcome, {})

    def _note_retry(self, kind: LedgerKind, run: LaneRun, outcome: StepOutcome, extra: dict[str, int]) -> None:
        failure = outcome.failure or Failure(failure_class=FailureClass.UNKNOWN)
        self._core.note(
            kind,
            {"run_id": run.id, "attempt": outcome.attempt + 1, "reason": failure.failure_class.value, **extra},
        )

    async def _pause(self, run: LaneRun, seconds: float) -> None:
        """Wait, unless the run is asked to stop: that acts at once."""

        def stopped() -> bool:
            fresh = self._fresh(run)
            return fresh is None or fresh.state is not RunState.RUNNING

        try:
            await workflow.wait_condition(stopped, timeout=seconds, timeout_summary="before the next try")
        except TimeoutError:
            return

    # --- tool calls -----------------------------------------------------------------------------

    async def _tool_calls(self, run: LaneRun, outcome: StepOutcome) -> None:
        core = self._core
        progress = core.progress
        if progress is None:
            return
        fence = self._fence(run, progress, outcome.attempt)
        calls = [call for call in outcome.calls if not call.refused]
        results = await self._run_calls(run, fence, calls)
        await self._close_lost_calls(run, fence, calls, results)
        current = self._fresh(run)
        if current is None or core.outbox.lost is not None:
            return
        if current.state is RunState.INTERRUPT_REQUESTED:
            core.settle(current, abort_end(current))
        elif any(result.stale for result in results):
            core.settle(current, step_end(StepOutcome(end=StepEnd.STALE, attempt=outcome.attempt)))
        else:
            self._next_step(current)

    def _next_step(self, run: LaneRun) -> None:
        core = self._core
        if core.progress is None:
            return
        step = core.progress.step + 1
        if core.facts is not None and step >= core.facts.max_steps:
            core.settle(run, policy_end(MAX_STEPS))
            return
        core.progress = core.progress.model_copy(update={"step": step, "attempt": 1, "tries": 0})

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


def _step_error(error: ActivityError, progress: RunProgress) -> StepOutcome:
    """A step whose activity failed for good: told to stop before it began, or lost with its workers too often."""
    cause = error.cause
    if isinstance(cause, CancelledError):
        return StepOutcome(end=StepEnd.ABORTED, attempt=progress.attempt)
    code = cause.type if isinstance(cause, ApplicationError) and cause.type else "WORKER_LOST"
    return StepOutcome(
        end=StepEnd.FAILED,
        attempt=progress.attempt,
        failure=Failure(failure_class=FailureClass.APPLICATION, code=code),
    )


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
