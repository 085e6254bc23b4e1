"""Lanes that are lost, cancelled, diverged or reset, each in mid-work: nothing is lost with them or runs twice."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError, WorkflowUpdateStage
from temporalio.exceptions import ApplicationError

from tests.conftest import Bench, Serve
from tests.integration.play import Play, are_duplicates, current, look, open_play, run_id
from tests.integration.stage import BOUND, HeldStore, until
from turnlane.agent import Answer, tool
from turnlane.client import Ticket
from turnlane.records.errors import LaneSupersededError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolOutcome, ToolResultPart
from turnlane.records.mutations import CommitBatch, CommitOutcome, CommitReply, MutationKind
from turnlane.records.runs import FailureClass, RunState, TerminalReason
from turnlane.records.steps import FinishReason
from turnlane.store.payloads import Committed
from turnlane.workflows.lane import MAX_REOPENS

pytestmark = pytest.mark.server


async def test_a_lost_lane_runs_nothing_twice_and_answers_what_waited(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    made: list[str] = []

    @tool
    def mark() -> str:
        """Make a mark."""
        made.append("mark")
        return "made"

    play = await open_play(bench, serve, conversation, tools=[mark])
    a = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "mark", "{}"))
    await play.stage.call(2)
    b = await play.submit("B")
    await play.lane.terminate("a test loses it")
    c = await play.submit("C")
    third = await play.stage.call(3)
    play.stage.play()

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert ["mark"] == made
    assert (run_id(a), 1) == (third.request.run_id, third.request.step)
    assert [("user", "A"), ("assistant", "c1"), ("tool", "c1")] == third.heard
    assert ["A", "B", "C"] == await play.answered()


async def test_a_lane_that_is_cancelled_while_it_takes_a_run_up_again_repeats_nothing_of_it(
    bench: Bench, conversation: str
) -> None:
    made: list[str] = []

    @tool
    def mark() -> str:
        """Make a mark."""
        made.append("mark")
        return "made"

    play = Play(bench, bench.client(), conversation, bench.store)
    agent = play.stage.agent(tools=[mark])
    async with bench.worker(agent, providers=play.stage.providers):
        a = await play.submit("A")
        (await play.stage.call(1)).use(("c1", "mark", "{}"))
        await play.stage.call(2)
        await play.lane.terminate("a test loses it")
    b = await play.submit("B", via="signal")
    await play.lane.cancel()
    async with bench.worker(agent, providers=play.stage.providers):
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(play.lane.result(), BOUND)
        waiting = await play.run(a)
        c = await play.submit("C")
        third = await play.stage.call(3)
        play.stage.play()
        reasons = await play.reasons(a, b, c)

    assert (RunState.QUEUED, ["success"] * 3) == (waiting.state, reasons)
    assert (run_id(a), 1) == (third.request.run_id, third.request.step)
    assert [("user", "A"), ("assistant", "c1"), ("tool", "c1")] == third.heard
    assert ["mark"] == made
    assert ["A", "B", "C"] == await play.answered()


async def test_a_call_that_was_under_way_in_a_lost_lane_is_not_made_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    begun, never = asyncio.Event(), asyncio.Event()
    made: list[str] = []

    @tool
    async def pay() -> str:
        """Pay."""
        made.append("payment")
        begun.set()
        await never.wait()
        return "paid"

    play = await open_play(bench, serve, conversation, tools=[pay])
    a = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "pay", "{}"))
    await asyncio.wait_for(begun.wait(), BOUND)
    await play.lane.terminate("a test loses it")
    b = await play.submit("B")
    play.stage.play()
    ended = await a.result(BOUND)

    assert ["success", "success"] == await play.reasons(a, b)
    assert ["payment"] == made
    assert ended.message is not None
    results = [part for part in ended.message.parts if isinstance(part, ToolResultPart)]
    assert [(ToolOutcome.ERROR, "OUTCOME_UNKNOWN")] == [(part.outcome, part.output["error"]) for part in results]  # type: ignore[index,call-overload]


async def test_a_lane_that_was_asked_to_stop_when_it_was_lost_stops(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step")
    assert play.held is not None
    a = await play.submit("A")
    await play.stage.call(1)
    await play.client.interrupt(conversation, run_id(a))
    await play.held.barrier.until_reached()
    await play.lane.terminate("a test loses it")
    play.held.barrier.release()
    b = await play.submit("B")
    play.stage.play()

    assert ["interrupted", "success"] == await play.reasons(a, b)
    assert ["A", "B"] == play.asked


async def test_a_cancelled_lane_ends_its_run_as_shut_down_and_keeps_its_queue(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation)
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    await play.lane.cancel()
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(play.lane.result(), BOUND)
    waiting = await play.run(b)
    c = await play.submit("C")
    play.stage.play()

    assert RunState.QUEUED is waiting.state
    assert ["shutdown", "success", "success"] == await play.reasons(a, b, c)
    assert ["A", "B", "C"] == play.asked


async def test_an_idle_lane_that_is_cancelled_loses_nothing(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    await play.lane.cancel()
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(play.lane.result(), BOUND)
    b = await play.submit("B")

    assert ["success"] == await play.reasons(b)
    assert await are_duplicates([await play.submit("A")])


async def test_an_answer_that_was_complete_when_its_lane_was_lost_is_given_once(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step", hold_answer=True)
    assert play.held is not None
    play.stage.play()
    a = await play.submit("A")
    await play.held.barrier.until_reached()
    await play.lane.terminate("a test loses it")
    play.held.barrier.release()
    b = await play.submit("B")

    assert ["success", "success"] == await play.reasons(a, b)
    assert ["A", "B"] == play.asked
    assert [("user", "A"), ("assistant", "answer to A"), ("user", "B"), ("assistant", "answer to B")] == (
        await play.said()
    )


async def lost_behind(play: Play, text: str, finish: FinishReason) -> Ticket:
    """Submit A, whose complete answer is in the store when its lane is lost."""
    assert play.held is not None
    a = await play.submit("A")
    (await play.stage.call(1)).answer(text, finish)
    await play.held.barrier.until_reached()
    await play.lane.terminate("a test loses it")
    play.held.barrier.release()
    return a


async def test_a_complete_answer_of_a_lost_lane_ends_its_run_as_it_would_have(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step", hold_answer=True)
    a = await lost_behind(play, "and so", FinishReason.LENGTH)
    play.stage.play()
    b = await play.submit("B")
    ended = await a.result(BOUND)

    assert (TerminalReason.PROVIDER_STOP, "and so") == (ended.reason, ended.text)
    assert ended.failure is not None and FailureClass.TRUNCATED is ended.failure.failure_class
    assert ended.failure == (await play.run(a)).failure
    assert (["success"], ["A", "B"]) == (await play.reasons(b), play.asked)


async def test_an_answer_cut_in_its_calls_whose_lane_was_lost_ends_its_run_and_no_step_follows(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step", hold_answer=True, tools=[look])
    assert play.held is not None
    a = await play.submit("A")
    call = await play.stage.call(1)
    call.ask("c-1", "look")
    call.answer(finish=FinishReason.LENGTH)
    await play.held.barrier.until_reached()
    await play.lane.terminate("a test loses it")
    play.held.barrier.release()
    play.stage.play()
    b = await play.submit("B")
    ended = await a.result(BOUND)

    assert ended.failure is not None and FailureClass.TRUNCATED is ended.failure.failure_class
    assert (TerminalReason.PROVIDER_STOP, ["success"], ["A", "B"]) == (
        ended.reason,
        await play.reasons(b),
        play.asked,
    )


async def test_a_complete_answer_of_a_lost_lane_is_judged(bench: Bench, serve: Serve, conversation: str) -> None:
    judged: list[str] = []

    def accept(answer: Answer) -> bool:
        judged.append(answer.text)
        return False

    play = await open_play(bench, serve, conversation, hold="finish_step", hold_answer=True, accept=accept)
    a = await lost_behind(play, "no", FinishReason.STOP)
    await play.client.submit(conversation, "B")

    assert ["output_rejected"] == await play.reasons(a)
    assert {"no"} == set(judged)
    assert "A" == play.asked[0] and "A" not in play.asked[1:]


async def test_an_input_that_joins_a_complete_answer_of_a_lost_lane_has_it_made_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step", hold_answer=True)
    assert play.held is not None
    a = await play.submit("A")
    (await play.stage.call(1)).answer("too early")
    await play.held.barrier.until_reached()
    b = await play.submit("B", "inject")
    await play.lane.terminate("a test loses it")
    play.held.barrier.release()
    play.stage.play()
    c = await play.submit("C")

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert ["A", "B", "C"] == play.asked
    assert ["user", "user", "assistant", "user", "assistant"] == [role for role, _ in await play.said()]


class DivergingStore:
    """A store that says once, of the first mutation of a kind, that another decision stands in its place."""

    def __init__(self, store: Any, kind: MutationKind = MutationKind.TERMINAL) -> None:
        self.diverged = 0
        self._kind = kind
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        ends = [mutation for mutation in batch.mutations if mutation.kind is self._kind]
        if ends and not self.diverged:
            self.diverged += 1
            return Committed(reply=CommitReply(outcome=CommitOutcome.DIVERGED))
        answer: Committed = await self._store.commit(batch, now)
        return answer


async def diverging_play(
    bench: Bench, serve: Serve, conversation: str, kind: MutationKind, **options: Any
) -> tuple[Play, DivergingStore]:
    """A play whose worker has a diverging store. The client has the real one."""
    kept, diverging = bench.store, DivergingStore(bench.store, kind)
    bench.store = diverging  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation, **options)
    bench.store = play.store = kept
    play.client = bench.client()
    return play, diverging


async def test_a_lane_whose_decisions_ran_twice_opens_again_by_itself(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, diverging = await diverging_play(bench, serve, conversation, MutationKind.TERMINAL)
    a = await play.submit("A")
    first = await current(play)
    await play.stage.call(1)
    b = await play.submit("B")
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)
    assert (1, True) == (diverging.diverged, first != await current(play))
    assert [("user", "A"), ("assistant", "answer to A"), ("user", "B"), ("assistant", "answer to B")] == (
        await play.said()
    )


@pytest.mark.parametrize("signal", ["interrupt", "the run in flight", "stop"])
async def test_a_signal_to_stop_that_was_not_stored_is_heard_by_the_next_history(
    bench: Bench, serve: Serve, conversation: str, signal: str
) -> None:
    play, diverging = await diverging_play(bench, serve, conversation, MutationKind.INTERRUPT)
    a = await play.submit("A")
    first = await current(play)
    await play.stage.call(1)
    b = await play.submit("B")
    revision = (await play.run(a)).revision
    asked = {"interrupt": {"run_id": run_id(a), "expected_revision": revision}, "the run in flight": {}}
    await (play.lane.signal("interrupt", asked[signal]) if signal in asked else play.lane.signal("stop"))
    ended = await a.result(BOUND)
    play.stage.play()

    assert (TerminalReason.INTERRUPTED, ["success"]) == (ended.reason, await play.reasons(b))
    assert (1, True) == (diverging.diverged, first != await current(play))
    assert ["A", "B"] == play.asked


async def test_signals_to_a_lane_that_is_lost_already_reach_the_next_history(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    bench.store = held = HeldStore(bench.store, "deliver")  # type: ignore[assignment]
    play, diverging = await diverging_play(bench, serve, conversation, MutationKind.RECOVER)
    play.store = held._store
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    first = await current(play)
    await play.lane.signal("deliver", {"event": "paid", "id": "1", "payload": 7})
    await held.barrier.until_reached()
    await play.lane.start_update(
        "abandon",
        {"run_id": run_id(b), "expected_revision": (await play.run(b)).revision, "stale_owner": True},
        wait_for_stage=WorkflowUpdateStage.ACCEPTED,
    )

    async def lost() -> bool:
        return diverging.diverged == 1

    await until(lost)
    await play.lane.signal("stop")
    await play.lane.signal("submit", {"key": "C", "text": "C"})
    held.barrier.release()
    ended = await a.result(BOUND)
    play.stage.play()
    again = await play.submit("C")

    assert (TerminalReason.INTERRUPTED, ["success", "success"]) == (ended.reason, await play.reasons(b, again))
    assert (True, True) == (await are_duplicates([again]), first != await current(play))
    delivered = [event.payload["id"] for event in await play.ledger() if event.kind == LedgerKind.DURABLE_EVENT]
    assert ["1"] == delivered


async def test_a_delivery_that_is_refused_leaves_its_lane_alone(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    await play.client.purge(conversation)
    await asyncio.wait_for(play.lane.result(), BOUND)
    lane = await bench.temporal.start_workflow(
        "ConversationLane",
        id=f"lane/{conversation}",
        task_queue=bench.task_queue,
        start_signal="deliver",
        start_signal_args=[{"event": "paid", "id": "1"}],
    )

    assert "purged" == (await asyncio.wait_for(lane.result(), BOUND))["outcome"]


async def test_a_lane_that_can_store_nothing_gives_up_after_so_many_histories(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    class Refusing(DivergingStore):
        async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
            if self.refuses:
                self.diverged += 1
                return Committed(reply=CommitReply(outcome=CommitOutcome.DIVERGED))
            answer: Committed = await self._store.commit(batch, now)
            return answer

        refuses = False

    kept, refusing = bench.store, Refusing(bench.store)
    bench.store = refusing  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation)
    bench.store = play.store = kept
    play.client = bench.client()
    a = await play.submit("A")
    await play.stage.call(1)
    refusing.refuses = True
    await play.lane.signal("submit", {"key": "B", "text": "B"})
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(play.lane.result(), BOUND)
    refusing.refuses = False
    play.stage.play()
    c = await play.submit("C")

    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (LaneSupersededError.code, MAX_REOPENS + 1) == (cause.type, refusing.diverged)
    assert ["success", "success"] == await play.reasons(a, c)


async def test_a_reset_to_the_first_task_admits_nothing_again(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    await (await play.submit("B", via="signal")).result(BOUND)
    before = await play.messages()
    first = await current(play)
    await _reset(play)
    c = await play.submit("C")
    await c.result(BOUND)
    after = await play.messages()

    assert first != await current(play)
    assert before == after[: len(before)]
    assert ["A", "B", "C"] == await play.answered()
    assert 3 == len(play.stage.calls)


async def _reset(play: Play) -> None:
    """Reset the lane to its first workflow task, as an operator would; what came in later is applied again."""
    lane = await play.lane.describe()
    tasks = [
        event.event_id
        async for event in play.lane.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    await play.bench.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=play.bench.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=lane.id, run_id=lane.run_id),
            reason="a test",
            workflow_task_finish_event_id=tasks[0],
            request_id=uuid.uuid4().hex,
        )
    )
