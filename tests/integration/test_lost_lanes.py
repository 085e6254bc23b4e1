"""Lanes that are lost or cancelled, each in mid-work: nothing is lost with them or runs twice."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import WorkflowFailureError

from tests.conftest import Bench, Serve
from tests.integration.play import Play, anything, are_duplicates, look, open_play, run_id
from tests.integration.stage import BOUND
from turnlane.agent import Answer, tool
from turnlane.client import Ticket
from turnlane.records.messages import ToolOutcome, ToolResultPart
from turnlane.records.runs import FailureClass, RunState, TerminalReason
from turnlane.records.steps import FinishReason

pytestmark = pytest.mark.server


class Marks:
    """A tool whose calls are counted."""

    def __init__(self) -> None:
        self.made: list[str] = []

        @tool
        def mark() -> str:
            """Make a mark."""
            self.made.append("mark")
            return "made"

        self.mark = mark


async def test_a_lost_lane_runs_nothing_twice_and_answers_what_waited(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    marks = Marks()
    play = await open_play(bench, serve, conversation, tools=[marks.mark])
    a = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "mark", "{}"))
    await play.stage.call(2)
    b = await play.submit("B")
    await play.lane.terminate("a test loses it")
    c = await play.submit("C")
    third = await play.stage.call(3)
    play.stage.play()

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert ["mark"] == marks.made
    assert (run_id(a), 1) == (third.request.run_id, third.request.step)
    assert [("user", "A"), ("assistant", "c1"), ("tool", "c1")] == third.heard
    assert ["A", "B", "C"] == await play.answered()


async def test_a_lane_that_is_cancelled_while_it_takes_a_run_up_again_repeats_nothing_of_it(
    bench: Bench, conversation: str
) -> None:
    marks = Marks()
    play = Play(bench, bench.client(), conversation, bench.store)
    agent = play.stage.agent(tools=[marks.mark])
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
    assert ["mark"] == marks.made
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


async def lost_behind(play: Play, text: str, finish: FinishReason, *tools: str) -> Ticket:
    """Submit A, whose complete answer, which asks for these tools, is in the store when its lane is lost."""
    assert play.held is not None
    a = await play.submit("A")
    call = await play.stage.call(1)
    for name in tools:
        call.ask(f"c-{name}", name)
    call.answer(text, finish)
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
    a = await lost_behind(play, "", FinishReason.LENGTH, "look")
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
    play = await open_play(bench, serve, conversation, hold="finish_step", hold_answer=True, accept=anything)
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
