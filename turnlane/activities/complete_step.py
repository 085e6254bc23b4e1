"""A step that is complete already: its lane was lost behind the run's last answer, before the run could end.

The answer is in the store and was paid for, so nobody is called again: the step ends as it did then.
"""

from __future__ import annotations

from turnlane.activities.failing import persist
from turnlane.activities.finishing import failure_of
from turnlane.activities.judging import judge_end
from turnlane.agent.agent import Agent
from turnlane.records.errors import StaleFenceError
from turnlane.records.messages import ControlReason
from turnlane.records.runs import Operation, OperationKind, OperationPhase
from turnlane.records.steps import FinishReason, StepEnd, StepOutcome, StepRequest
from turnlane.store.protocol import Store


async def end_of_complete_step(store: Store, agent: Agent, request: StepRequest) -> StepOutcome | None:
    """The outcome of a step whose answer the store has, judged as every last answer is; None if it must be made.

    `request.fence` is that of the attempt. Raises StaleFenceError for a run that is gone, or another's.
    """
    complete, fence = request.complete, request.fence
    if complete is None:
        return None
    found = await persist(lambda: store.load_run_context(fence.conversation_id, fence.run_id))
    if found is None or found.run.fencing_token != fence.token:
        raise StaleFenceError("the run is gone", reason=ControlReason.STALE_RUN.value)
    if not _is_its_end(found.run.last_operation, fence.step):
        return None
    finish = FinishReason(complete.finish)
    outcome = StepOutcome(
        end=StepEnd.FINISHED,
        attempt=fence.attempt,
        finish=finish,
        failure=failure_of(finish, complete.code, complete.provider),
        facts=agent.facts if agent.facts.digest != request.facts_digest else None,
    )
    return await judge_end(store, agent, fence, outcome)


def _is_its_end(last: Operation | None, step: int) -> bool:
    """Whether the last thing that the run did was to hear a model's answer of this step to its end."""
    if last is None or last.kind is not OperationKind.MODEL_REQUEST:
        return False
    return (last.step, last.phase) == (step, OperationPhase.COMPLETED)
