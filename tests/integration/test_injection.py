"""Injection: an input that joins the run in flight at its next step, and is answered by it or by its own run.

Never by nobody: what a run took and did not live to answer is answered by the input's own run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import Play, look, open_play, run_id
from tests.integration.stage import BOUND, until
from turnlane.agent import ToolContext, tool
from turnlane.client import Ticket
from turnlane.records.events import RunStateEvent, TerminalEvent
from turnlane.records.lane import RetryFacts
from turnlane.records.runs import Failure, FailureClass, RunState, TerminalReason

pytestmark = pytest.mark.server

LOOK = ("c1", "look", "{}")


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation, retry=RetryFacts(initial_seconds=0.01))
    yield opened
    opened.stage.play()


async def took(play: Play) -> tuple[Ticket, Ticket]:
    """A run in its second step, which took an injected input."""
    a = await play.submit("A")
    first = await play.stage.call(1)
    b = await play.submit("B", "inject")
    first.use(LOOK)
    await play.stage.call(2)
    return a, b


# --- where it joins -----------------------------------------------------------------------------


async def test_an_injected_input_is_in_every_prompt_from_its_step_on(play: Play) -> None:
    a = await play.submit("A")
    (await play.stage.call(1)).use(LOOK)
    second = await play.stage.call(2)
    b = await play.submit("B", "inject")
    second.use(("c2", "look", "{}"))
    third = await play.stage.call(3)
    third.use(("c3", "look", "{}"))
    await play.stage.call(4)
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)
    assert [0, 0, 1, 1] == [call.heard.count(("user", "B")) for call in play.stage.calls]
    assert [
        ("user", "A"),
        ("assistant", "c1"),
        ("tool", "c1"),
        ("assistant", "c2"),
        ("tool", "c2"),
        ("user", "B"),
        ("assistant", "c3"),
        ("tool", "c3"),
    ] == play.stage.calls[3].heard


async def test_an_input_that_comes_before_the_first_prompt_is_taken_by_it(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation)
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    c = await play.submit("C", "inject")
    play.stage.play()

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert [("user", "B"), ("user", "C")] == play.stage.calls[1].heard[-2:]
    assert run_id(b) == (await c.result(BOUND)).run_id
    assert 2 == len(play.stage.calls)


async def test_it_stands_behind_the_results_of_all_parallel_calls(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def slow(context: ToolContext) -> str:
        """Wait."""
        begun.set()
        await go.wait()
        return "done"

    play = await open_play(bench, serve, conversation, tools=[look, slow])
    a = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "slow", "{}"), ("c2", "look", "{}"), ("c3", "look", "{}"))
    await asyncio.wait_for(begun.wait(), BOUND)
    b = await play.submit("B", "inject")
    go.set()
    second = await play.stage.call(2)
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)
    assert [("user", "A"), ("assistant", "c1 c2 c3"), ("tool", "c1 c2 c3"), ("user", "B")] == second.heard


async def test_the_task_goes_on_after_an_injected_input(play: Play) -> None:
    await took(play)
    (await play.stage.call(2)).use(("c2", "look", "{}"))
    (await play.stage.call(3)).use(("c3", "look", "{}"))
    (await play.stage.call(4)).answer("All done, and B too.")
    messages = await until(lambda: _answers(play))

    assert ["All done, and B too."] == messages
    assert ["A", "B"] == await play.answered()


async def test_only_what_was_injected_joins(play: Play) -> None:
    a = await play.submit("A")
    first = await play.stage.call(1)
    b, c = await play.submit("B"), await play.submit("C", "inject")
    first.use(LOOK)
    second = await play.stage.call(2)
    play.stage.play()

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert [("user", "A"), ("assistant", "c1"), ("tool", "c1"), ("user", "C")] == second.heard
    assert ["A", "C", "B"] == await play.answered()


async def test_nothing_joins_where_every_policy_is_queue(play: Play) -> None:
    a = await play.submit("A")
    first = await play.stage.call(1)
    b = await play.submit("B")
    first.use(LOOK)
    second = await play.stage.call(2)
    play.stage.play()

    assert ["success"] * 2 == await play.reasons(a, b)
    assert "A" == second.asked


# --- who answers it -----------------------------------------------------------------------------


async def test_the_run_that_took_it_answers_it(play: Play) -> None:
    a, b = await took(play)
    play.stage.play()
    mine, other = await a.result(BOUND), await b.result(BOUND)
    absorbed = await play.run(b)

    assert run_id(a) == other.run_id
    assert mine.text == other.text == "answer to B"
    assert ["A", "B"] == await play.inputs(mine)
    assert (RunState.SUPERSEDED, TerminalReason.ABSORBED) == (absorbed.state, absorbed.terminal_reason)
    assert run_id(a) == absorbed.absorbed_into_run_id
    assert [("user", "A"), ("user", "B"), ("assistant", "answer to B")] == await play.said()


async def test_an_absorbed_run_leaves_the_snapshot_and_can_still_be_loaded(play: Play) -> None:
    _, b = await took(play)
    play.stage.play()
    await b.result(BOUND)
    snapshot = await play.client.snapshot(play.conversation)

    assert run_id(b) not in [run.id for run in snapshot.runs]
    assert run_id(b) == (await play.run(b)).id


async def test_watchers_are_told_of_the_absorbed_run_and_then_of_the_end(play: Play) -> None:
    a, b = await took(play)
    play.stage.play()
    await b.result(BOUND)
    told = []
    async for event in play.client.events(play.conversation, from_seq=0):
        if isinstance(event, RunStateEvent) and event.run_id == run_id(b):
            told.append(("B", event.state.value))
        if isinstance(event, TerminalEvent):
            told.append(("A" if event.run_id == run_id(a) else "B", event.reason.value))
            break

    assert [("B", "queued"), ("B", "superseded"), ("A", "success")] == told


async def test_a_ticket_of_an_absorbed_input_watches_the_run_that_answers_it(play: Play) -> None:
    a, b = await took(play)
    play.stage.play()
    ends = [event async for event in b.events() if isinstance(event, TerminalEvent)]

    assert [run_id(a)] == [event.run_id for event in ends]


async def test_a_receipt_leads_to_the_run_that_answered(play: Play) -> None:
    a, b = await took(play)
    play.stage.play()
    await b.result(BOUND)
    again = await play.submit("B")
    assert again.admission is not None
    answered = await play.run(a)

    assert (True, run_id(a), answered.assistant_message_id) == (
        again.admission.duplicate,
        again.admission.run_id,
        again.admission.assistant_message_id,
    )


async def test_later_prompts_hold_it_once_and_in_its_place(play: Play) -> None:
    a, b = await took(play)
    play.stage.play()
    await play.reasons(a, b)
    c = await play.submit("C")
    await c.result(BOUND)
    heard = play.stage.calls[-1].heard

    assert 1 == heard.count(("user", "B"))
    assert ("user", "C") == heard[-1]


async def test_a_coalesced_successor_is_taken_whole_or_not_at_all(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, coalesce_pending=True)
    a = await play.submit("A")
    first = await play.stage.call(1)
    b = await play.submit("B", "inject")
    first.use(LOOK)
    second = await play.stage.call(2)
    c = await play.submit("C", "inject")
    second.answer("A and B.")
    play.stage.play()

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert ["A"] == await play.inputs(await a.result(BOUND))
    assert ["B", "C"] == await play.inputs(await b.result(BOUND))
    assert run_id(b) == (await c.result(BOUND)).run_id


async def test_a_successor_that_also_holds_a_queued_input_answers_itself(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, coalesce_pending=True)
    a = await play.submit("A")
    first = await play.stage.call(1)
    b, c = await play.submit("B", "inject"), await play.submit("C")
    first.use(LOOK)
    second = await play.stage.call(2)
    play.stage.play()

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert "B" == second.asked
    assert ["A"] == await play.inputs(await a.result(BOUND))
    assert ["B", "C"] == await play.inputs(await c.result(BOUND))


# --- when the run does not live to answer it ----------------------------------------------------


async def test_a_retried_call_still_has_it(play: Play) -> None:
    a, b = await took(play)
    (await play.stage.call(2)).fail(Failure(failure_class=FailureClass.OVERLOADED, retryable=True))
    third = await play.stage.call(3)
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)
    assert (1, "B", 1) == (third.request.step, third.asked, third.heard.count(("user", "B")))
    assert ["A", "B"] == await play.inputs(await a.result(BOUND))


async def test_an_interrupted_run_answers_nothing_that_it_took(play: Play) -> None:
    a, b = await took(play)
    await play.client.interrupt(play.conversation, run_id(a))
    play.stage.play()

    assert ["interrupted", "success"] == await play.reasons(a, b)
    assert ["A"] == await play.inputs(await a.result(BOUND))
    assert run_id(b) == (await b.result(BOUND)).run_id


async def test_a_failed_run_answers_nothing_that_it_took(play: Play) -> None:
    a, b = await took(play)
    (await play.stage.call(2)).fail(Failure(failure_class=FailureClass.INVALID_REQUEST))
    play.stage.play()

    assert ["provider_failure", "success"] == await play.reasons(a, b)
    assert ["A"] == await play.inputs(await a.result(BOUND))
    assert ["B"] == await play.inputs(await b.result(BOUND))


async def test_a_lost_lane_answers_what_its_run_had_taken(play: Play) -> None:
    a, b = await took(play)
    await play.lane.terminate()
    c = await play.submit("C")
    play.stage.play()

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert sorted(await play.answered()) == ["A", "B", "C"]
    assert 1 == play.stage.calls[-1].heard.count(("user", "B"))


async def test_a_cancelled_lane_leaves_what_its_run_had_taken_to_the_next(play: Play) -> None:
    a, b = await took(play)
    await play.lane.cancel()
    await play.until_state(a, RunState.CANCELLED)
    waiting = await play.run(b)
    c = await play.submit("C")
    play.stage.play()

    assert (RunState.QUEUED, None) == (waiting.state, waiting.terminal_reason)
    assert ["shutdown", "success", "success"] == await play.reasons(a, b, c)


async def test_an_input_that_was_taken_and_then_cancelled_is_not_absorbed(play: Play) -> None:
    a, b = await took(play)
    await play.client.cancel(play.conversation, run_id(b))
    play.stage.play()

    assert ["success", "cancelled"] == await play.reasons(a, b)
    assert ["A"] == await play.inputs(await a.result(BOUND))


async def _answers(play: Play) -> list[str]:
    return [message.text for message in await play.messages() if message.status == "completed"]
