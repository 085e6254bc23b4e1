"""Judging: what an agent's own rules say of a run, at a boundary and at its end.

At a boundary every judge is heard, in order, whatever the others say; the first that names a policy stops the
run. A judge that raises fails the run as the application's mistake: nobody can tell what it would have said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from temporalio import activity

from turnlane.activities.asking import asked
from turnlane.activities.budgets import budget_stop
from turnlane.activities.failing import ApplicationFailedError, as_failures, failing_as, persist
from turnlane.activities.patience import PATIENCE_SECONDS
from turnlane.agent.acceptance import Answer, waits_for_approval
from turnlane.agent.agent import Agent
from turnlane.agent.stopping import StepResult, StopContext, StopPolicy
from turnlane.records.errors import StaleFenceError
from turnlane.records.messages import ControlReason, Part
from turnlane.records.runs import Failure, FailureClass, TerminalReason
from turnlane.records.steps import Fence, FinishReason, JudgeBoundary, Judgement, StepOutcome
from turnlane.records.usage import stated
from turnlane.store.payloads import HistoryMessage, RunContext
from turnlane.store.protocol import Store


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A run behind a round of tool calls, as a judge sees it."""

    agent: Agent
    run: RunContext
    steps: tuple[StepResult, ...]

    @property
    def context(self) -> StopContext:
        """The same, as the application sees it."""
        return StopContext(
            conversation_id=self.run.run.conversation_id,
            run_id=self.run.run.id,
            steps=self.steps,
            usage=stated(self.run.run.usage),
            context=self.run.context,
            metadata=self.run.metadata,
            tenant=self.run.tenant,
        )


Judge = Callable[[Boundary], Awaitable[str | None]]
"""Returns the name of the policy that stops the run at this boundary, or None."""


def judges_of(agent: Agent, store: Store) -> Iterable[Judge]:
    """The judges of an agent, in the order in which their word counts; its budget comes last."""
    yield from (_stop_judge(policy) for policy in agent.stop_policies)
    if agent.spend_limits is not None:
        yield _budget_judge(store)


def _budget_judge(store: Store) -> Judge:
    async def judge(boundary: Boundary) -> str | None:
        run = boundary.run.run
        return await budget_stop(store, boundary.agent, run.conversation_id, run.id)

    return judge


def _stop_judge(policy: StopPolicy) -> Judge:
    async def judge(boundary: Boundary) -> str | None:
        with failing_as("STOP_POLICY_FAILED", "a stop policy of agent %s", boundary.agent.name):
            stops = await asked(lambda: policy.condition(boundary.context))
        return policy.name if stops else None

    return judge


class Judging:
    """The `judge_boundary` activity. One instance serves all lanes of the process."""

    def __init__(self, store: Store, agents: Mapping[str, Agent]) -> None:
        self._store = store
        self._agents = agents

    @activity.defn(name="judge_boundary")
    @as_failures
    async def judge_boundary(self, request: JudgeBoundary) -> Judgement:
        """Hear every judge of a run's agent; then, if the run stops, whether its answer is accepted."""
        agent = self._agents.get(request.agent)
        if agent is None:
            return _failed("UNKNOWN_AGENT")
        run, answer = await _answered(self._store, request.fence)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self._judged(agent, run, answer, request.stop)
        except TimeoutError:
            return _failed("JUDGING_TIMED_OUT")
        except ApplicationFailedError as error:
            return Judgement(failure=error.failure)

    async def _judged(self, agent: Agent, run: RunContext, answer: HistoryMessage, stop: str | None) -> Judgement:
        boundary = Boundary(agent=agent, run=run, steps=steps_of(answer))
        named = [stop, *[await judge(boundary) for judge in judges_of(agent, self._store)]]
        first = next((name for name in named if name is not None), None)
        if first is None:
            return Judgement()
        is_accepted = await accepts(agent, run, parts_of(answer), TerminalReason.POLICY_STOP)
        return Judgement(stop=first, rejected=not is_accepted)


async def judge_end(store: Store, agent: Agent, fence: Fence, outcome: StepOutcome) -> StepOutcome:
    """The outcome of a finished step with what its agent says of the answer, if this step is the run's last."""
    if agent.accept is None or outcome.runs_its_calls or outcome.is_paused:
        return outcome
    reason = TerminalReason.SUCCESS if outcome.finish is FinishReason.STOP else TerminalReason.PROVIDER_STOP
    run, answer = await persist(lambda: _answered(store, fence))
    try:
        is_accepted = await accepts(agent, run, parts_of(answer), reason)
    except ApplicationFailedError as error:
        return outcome.model_copy(update={"failure": error.failure})
    return outcome.model_copy(update={"rejected": not is_accepted})


async def _answered(store: Store, fence: Fence) -> tuple[RunContext, HistoryMessage]:
    """A run and what it answered so far."""
    run = await store.load_run_context(fence.conversation_id, fence.run_id)
    answer = await store.load_answer(fence.conversation_id, fence.run_id)
    if run is None or answer is None:
        raise StaleFenceError("the run is gone", reason=ControlReason.STALE_RUN.value)
    return run, answer


def steps_of(answer: HistoryMessage) -> tuple[StepResult, ...]:
    """The steps of an answer, as the application sees them."""
    return tuple(StepResult(step.step, step.parts, step.results) for step in answer.steps)


def parts_of(answer: HistoryMessage) -> tuple[Part, ...]:
    """Everything in an answer, step by step, results behind their calls."""
    return tuple(part for step in answer.steps for part in (*step.parts, *step.results))


async def accepts(agent: Agent, run: RunContext, parts: Sequence[Part], reason: TerminalReason) -> bool:
    """Whether the agent accepts an answer. One that waits for an approval is not judged.

    Raises ApplicationFailedError where the rule itself fails.
    """
    accept = agent.accept
    if accept is None or waits_for_approval(parts):
        return True
    answer = Answer(
        conversation_id=run.run.conversation_id,
        run_id=run.run.id,
        reason=reason,
        parts=tuple(parts),
        context=run.context,
        metadata=run.metadata,
    )
    with failing_as("ACCEPTANCE_FAILED", "the acceptance of agent %s", agent.name):
        return bool(await asked(lambda: accept(answer)))


def _failed(code: str) -> Judgement:
    return Judgement(failure=Failure(failure_class=FailureClass.APPLICATION, code=code))
