"""The run loop: steps of the live run, one after the other, until it ends or its lane moves on.

Before every step the durable state of the run is looked at again, so a cancellation that an activity
swallowed cannot start another call. Everything that ends a run passes through `LaneCore.settle`.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnlane.records.calls import CallRef
from turnlane.records.lane import LaneRun, RunProgress, Taken
from turnlane.records.runs import RunState
from turnlane.records.steps import CallOutcome, Fence, StepEnd, StepOutcome
from turnlane.workflows import answering
from turnlane.workflows.compaction import Compactor
from turnlane.workflows.core import LaneCore
from turnlane.workflows.ending import (
    AWAITING,
    MAX_STEPS,
    STALE,
    abort_end,
    failure_end,
    judged_end,
    policy_end,
    step_end,
)
from turnlane.workflows.heeding import has_stopped
from turnlane.workflows.judging import judge
from turnlane.workflows.model_step import ModelSteps
from turnlane.workflows.offers import take_offers, without_last_taken
from turnlane.workflows.tool_round import ToolRound, suspended_calls


class RunLoop:
    """Executes live runs."""

    def __init__(self, core: LaneCore, compactor: Compactor) -> None:
        self._core = core
        self._compactor = compactor
        self._steps = ModelSteps(core)
        self.round = ToolRound(core)

    async def execute(self) -> None:
        """Work on the live run until there is none, or until the lane has to move to a fresh history."""
        core = self._core
        while (run := core.head.live) is not None and core.outbox.lost is None:
            progress = core.progress_of(run)
            if run.state is RunState.INTERRUPT_REQUESTED:
                core.settle(run, abort_end(run))
            elif core.continue_as_new_is_urgent:
                return
            elif progress is not None and progress.suspended:
                await self._resume_calls(run, progress)
            elif progress is not None and progress.asked:
                core.settle(run, AWAITING)
            elif answering.is_due(run, progress):
                await self._act_on_answers(run)
            elif self._compactor.is_due(run):
                await self._compactor.before_first_step(run)
            elif self._is_unjudged(run):
                await self._judge_again(run)
            else:
                await self._step(run)
            await core.stored()

    def _standing(self, run: LaneRun) -> LaneRun | None:
        """The run as it is now, if the lane still works on it; one that was asked to stop is ended here."""
        core = self._core
        current = core.fresh(run)
        if current is None or core.outbox.lost is not None:
            return None
        if current.state is RunState.INTERRUPT_REQUESTED:
            core.settle(current, abort_end(current))
            return None
        return current

    # --- before the first step ------------------------------------------------------------------

    async def _act_on_answers(self, run: LaneRun) -> None:
        """Make the calls that the run's inputs approve, and end the run if it must wait for other answers."""
        core = self._core
        await core.stored()
        if self._standing(run) is None:
            return
        fence = answering.begin(core, run)
        opened = await answering.open_answers(core, run, fence)
        current = self._standing(run)
        if current is None or core.progress is None or opened is None:
            return
        if opened.failure is not None:
            core.settle(current, failure_end(opened.failure))
        elif opened.stale:
            core.settle(current, STALE)
        else:
            core.progress = core.progress.model_copy(update={"waits": opened.waits})
            results = await self.round.execute(current, fence, opened.calls)
            await self._go_on(current, fence, opened.calls, results)

    def _answers_are_done(self, run: LaneRun, progress: RunProgress) -> None:
        if progress.waits:
            self._core.settle(run, AWAITING)
        else:
            self._core.progress = progress.model_copy(update={"step": 0, "attempt": 1, "tries": 0, "answered": True})

    # --- one step -------------------------------------------------------------------------------

    async def _step(self, run: LaneRun) -> None:
        core = self._core
        progress = self._take_injected(run)
        await core.stored()
        if has_stopped(core, run):
            return
        outcome = await self._steps.make(run, progress)
        if outcome.settled is not None and core.outbox.lost is None:
            core.take_end(run, outcome.settled)
            return
        current = self._standing(run)
        if current is None:
            return
        if outcome.end in (StepEnd.FAILED, StepEnd.TIMED_OUT):
            await self._steps.retry_or_end(current, outcome)
        elif outcome.runs_its_calls:
            await self._tool_calls(current, outcome)
        elif outcome.is_paused:
            await self._next_step(current, core.fence(run, progress, outcome.attempt))
        else:
            if outcome.end is StepEnd.STOPPED:
                # Nobody heard what joined at this boundary: it is answered by runs of its own.
                core.progress = without_last_taken(progress)
            core.settle(current, step_end(outcome))

    def _take_injected(self, run: LaneRun) -> RunProgress:
        core = self._core
        progress = core.progress_of(run) or RunProgress(run_id=run.id)
        core.head, offers = take_offers(core.head, run.id, progress.taken)
        taken = tuple(Taken(run_id=run_id, input_id=input_id, step=progress.step) for run_id, input_id in offers)
        # What joins here the complete answer of this step did not hear: the step is made again, with it.
        complete = None if taken else progress.complete
        core.progress = progress.model_copy(update={"taken": progress.taken + taken, "complete": complete})
        return core.progress

    # --- the boundary behind a step -------------------------------------------------------------

    async def _tool_calls(self, run: LaneRun, outcome: StepOutcome) -> None:
        core = self._core
        progress = core.progress
        if progress is None:
            return
        fence = core.fence(run, progress, outcome.attempt)
        core.progress = progress.model_copy(update={"asked": outcome.asked})
        calls = [call for call in outcome.calls if not (call.refused or call.awaiting)]
        results = await self.round.execute(run, fence, calls)
        await self._go_on(run, fence, calls, results)

    async def _resume_calls(self, run: LaneRun, progress: RunProgress) -> None:
        """Take up a tool round of which only calls that wait are left."""
        core = self._core
        await core.stored()
        if self._standing(run) is None:
            return
        core.progress = progress.model_copy(update={"suspended": ()})
        fence = core.fence(run, progress, progress.attempt - 1)
        results = await self.round.resume(run, fence, progress.suspended)
        await self._go_on(run, fence, progress.suspended, results)

    async def _go_on(
        self, run: LaneRun, fence: Fence, calls: Sequence[CallRef], results: Sequence[CallOutcome]
    ) -> None:
        """Go on to the next step, unless the run has ended or some of its calls still wait."""
        core = self._core
        current = self._standing(run)
        if current is None or core.progress is None:
            return
        suspended = suspended_calls(calls, results)
        if any(result.stale for result in results):
            core.settle(current, STALE)
        elif suspended:
            core.progress = core.progress.model_copy(update={"suspended": suspended})
        elif core.progress.asked:
            core.settle(current, AWAITING)
        elif fence.step < 0:
            self._answers_are_done(current, core.progress)
        else:
            await self._next_step(current, fence)

    async def _next_step(self, run: LaneRun, fence: Fence) -> None:
        """Move on to the next step, unless a policy stops the run behind this one."""
        core = self._core
        step = fence.step + 1
        if await self._goes_on(run, fence) and core.progress is not None:
            new = {"step": step, "attempt": 1, "tries": 0, "judged": step}
            core.progress = core.progress.model_copy(update=new)

    async def _goes_on(self, run: LaneRun, fence: Fence) -> bool:
        """Whether the run goes on behind the step of `fence`; one that does not is ended here."""
        core, facts = self._core, self._core.facts
        end = policy_end(MAX_STEPS) if facts is not None and fence.step + 1 >= facts.max_steps else None
        current: LaneRun | None = run
        if facts is not None and facts.judges:
            judgement = await judge(core, run, fence, end.policy_name if end else None)
            end = None if judgement is None else judged_end(judgement)
            current = self._standing(run)
        if current is not None and end is not None:
            core.settle(current, end)
        return current is not None and end is None

    def _is_unjudged(self, run: LaneRun) -> bool:
        """Whether a lane was lost between a tool round and the judgement about it."""
        progress, facts = self._core.progress_of(run), self._core.facts
        if progress is None or facts is None or progress.step <= progress.judged or progress.complete is not None:
            return False
        return facts.judges or progress.step >= facts.max_steps

    async def _judge_again(self, run: LaneRun) -> None:
        core = self._core
        progress = core.progress
        await core.stored()
        if progress is None or self._standing(run) is None:
            return
        behind = progress.model_copy(update={"step": progress.step - 1})
        if await self._goes_on(run, core.fence(run, behind, 1)) and core.progress is not None:
            core.progress = core.progress.model_copy(update={"judged": progress.step})
