"""The model step: one provider activity of a run, and whether a step that failed is tried again.

The decision to try again, on the same model or the next one, is the lane's, made here and visible in the
ledger; the wait is a timer that an interrupt ends at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from turnlane.records.base import JsonObject
from turnlane.records.lane import LaneRun, RetryFacts, RunProgress
from turnlane.records.ledger import LedgerKind
from turnlane.records.steps import StepEnd, StepOutcome, StepRequest
from turnlane.workflows.calls import PROVIDER_STEP, failure_behind
from turnlane.workflows.core import LaneCore
from turnlane.workflows.ending import next_model, refuses_files, retry_delay, step_end
from turnlane.workflows.heeding import has_stopped
from turnlane.workflows.until import until

STEP_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    maximum_interval=timedelta(seconds=10),
    maximum_attempts=8,
)
"""For lost workers only: whatever a provider or an application does wrong comes back as data."""


class ModelSteps:
    """Makes provider steps of live runs."""

    def __init__(self, core: LaneCore) -> None:
        self._core = core

    async def make(self, run: LaneRun, progress: RunProgress) -> StepOutcome:
        """Make one attempt of the step that `progress` stands at, and count it."""
        core = self._core
        fence = core.fence(run, progress, progress.attempt)
        core.may_be_settled = self._may_settle(run, progress)
        request = StepRequest(
            agent=core.head.agent or "",
            fence=fence,
            assistant_message_id=run.assistant_message_id,
            taken=progress.taken,
            facts_digest=core.facts.digest if core.facts else None,
            model=progress.model,
            used_tokens=progress.last_input_tokens,
            without_files=progress.without_files,
            complete=progress.complete,
            may_settle=core.may_be_settled,
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
        except ActivityError as error:
            outcome = _step_error(error, progress)
        finally:
            core.activities, core.may_be_settled = [], False
        self._count(run, outcome)
        return outcome

    def _may_settle(self, run: LaneRun, progress: RunProgress) -> bool:
        """Whether the end of the run is plain enough to be written with its last step, if that ends it well.

        Only the lane can end a run that others join, that leaves questions, acts on answers, or has a receipt.
        """
        is_joined = bool(progress.taken or progress.asked or run.answers)
        return not is_joined and progress.complete is None and not self._core.settings.invocations

    def _count(self, run: LaneRun, outcome: StepOutcome) -> None:
        core = self._core
        if core.fresh(run) is None or core.outbox.lost is not None:
            return
        core.facts = outcome.facts or core.facts
        if core.progress is not None:
            core.progress = core.progress.model_copy(
                update={
                    "attempt": outcome.attempt + 1,
                    "complete": None,
                    "input_tokens": core.progress.input_tokens + (outcome.input_tokens or 0),
                    "output_tokens": core.progress.output_tokens + (outcome.output_tokens or 0),
                    "operation_id": outcome.operation_id or core.progress.operation_id,
                    "last_input_tokens": outcome.input_tokens
                    if outcome.end is StepEnd.FINISHED
                    else core.progress.last_input_tokens,
                }
            )

    async def retry_or_end(self, run: LaneRun, outcome: StepOutcome) -> None:
        """Wait for the next try of a step that failed or fell silent, hand it to the next model, or end its run."""
        core = self._core
        progress, facts = core.progress, core.facts
        if progress is None or facts is None:
            core.settle(run, step_end(outcome))
            return
        tries = progress.tries + 1
        delay = self._delay(outcome, facts.retry, tries)
        if delay is not None:
            await self._again(run, outcome, delay, tries, progress.model)
        elif refuses_files(outcome) and not progress.without_files:
            core.progress = progress.model_copy(update={"without_files": True})
            await self._again(run, outcome, 0.0, progress.tries, progress.model, {"files": "as notes"})
        elif (model := next_model(facts, outcome, progress.model)) is not None:
            await self._again(run, outcome, 0.0, 0, model, {"model": facts.fallbacks[model - 1]})
        else:
            core.settle(run, step_end(outcome))

    def _delay(self, outcome: StepOutcome, retry: RetryFacts, tries: int) -> float | None:
        if outcome.end is not StepEnd.FAILED:
            return None
        return retry_delay(retry, outcome.failure, tries, workflow.random().random())

    async def _again(
        self,
        run: LaneRun,
        outcome: StepOutcome,
        delay: float,
        tries: int,
        model: int,
        told: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        core = self._core
        core.last_failure = outcome.fault.failure_class.value
        self._note_retry(LedgerKind.RETRY_SCHEDULED, run, outcome, {"delay_ms": round(delay * 1000), **told})
        if delay > 0:
            await self._pause(run, delay)
        if has_stopped(core, run) or core.progress is None:
            return
        core.progress = core.progress.model_copy(update={"tries": tries, "model": model})
        self._note_retry(LedgerKind.RETRY_STARTED, run, outcome, dict(told))

    def _note_retry(self, kind: LedgerKind, run: LaneRun, outcome: StepOutcome, extra: JsonObject) -> None:
        reason = outcome.fault.failure_class.value
        self._core.note(kind, {"run_id": run.id, "attempt": outcome.attempt + 1, "reason": reason, **extra})

    async def _pause(self, run: LaneRun, seconds: float) -> None:
        """Wait, unless the run is asked to stop: that acts at once."""
        try:
            await until(lambda: has_stopped(self._core, run), timeout=seconds, timeout_summary="before the next try")
        except TimeoutError:
            return


def _step_error(error: ActivityError, progress: RunProgress) -> StepOutcome:
    failure = failure_behind(error)
    end = StepEnd.ABORTED if failure is None else StepEnd.FAILED
    return StepOutcome(end=end, attempt=progress.attempt, failure=failure)
