"""The life of a lane: it starts, moves to fresh histories and rests, and nothing is lost with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.conftest import Bench, Serve
from tests.integration.play import Play, are_duplicates, current, open_play, run_id
from tests.integration.stage import BOUND, until
from turnlane.agent import tool
from turnlane.records.lane import LaneSettings, LaneStart, RunRequest

pytestmark = pytest.mark.server


# --- fresh histories ----------------------------------------------------------------------------


async def test_a_worker_that_took_a_task_and_is_gone_holds_no_history_up_for_long(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(events_between_runs=20))
    play.stage.play()
    patience: set[float] = set()
    histories: set[str | None] = set()
    for name in ("by update", "again", "once more"):
        await (await play.submit(name)).result(BOUND)
        patience.add(await _task_timeout(play))
        histories.add(await current(play))
    other = Play(bench, bench.client(), f"{conversation}-signalled", bench.store)
    await (await other.submit("by signal", via="signal")).result(BOUND)
    patience.add(await _task_timeout(other))

    assert {5.0} == patience
    assert 1 < len(histories)


async def _task_timeout(play: Play) -> float:
    description = await play.lane.describe()
    return description.raw_description.execution_config.default_workflow_task_timeout.ToTimedelta().total_seconds()


async def test_inputs_in_a_hurry_outlive_fresh_histories(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(events_between_runs=60))
    play.stage.play()
    names = [f"input {number:02}" for number in range(20)]
    await play.submit("first")
    first = await current(play)
    tickets = await asyncio.gather(*(play.submit(name) for name in names))
    results = await asyncio.gather(*(ticket.result(BOUND) for ticket in tickets))
    order = {name: result.run.admission_order for name, result in zip(names, results, strict=True) if result.run}
    again = [await play.submit(name) for name in names]

    assert first != await current(play)
    assert list(range(2, 22)) == sorted(order.values())
    assert ["first", *sorted(names, key=order.__getitem__)] == await play.answered()
    assert [f"answer to {name}" for name in names] == [result.text for result in results]
    assert await are_duplicates(again)
    assert ["answer to first", *(f"answer to {name}" for name in sorted(names, key=order.__getitem__))] == [
        text for role, text in await play.said() if role == "assistant"
    ]


async def test_a_long_run_goes_on_in_a_fresh_history_between_its_steps(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    made: list[str] = []

    @tool
    def mark(name: str) -> str:
        """Make a mark."""
        made.append(name)
        return name

    play = await open_play(bench, serve, conversation, tools=[mark], settings=LaneSettings(events_between_steps=40))
    a = await play.submit("A")
    first = await current(play)
    names = [f"m{number}" for number in range(12)]
    for number, name in enumerate(names):
        (await play.stage.call(number + 1)).use((name, "mark", f'{{"name": "{name}"}}'))
        if number == 2:
            b = await play.submit("B", "inject")
    play.stage.play()
    run = (await a.result(BOUND)).run

    assert first != await current(play)
    assert names == made
    assert 1 == len({call.request.run_id for call in play.stage.calls})
    assert list(range(13)) == [call.request.step for call in play.stage.calls]
    assert [1] * 10 == [call.heard.count(("user", "B")) for call in play.stage.calls[3:]]
    assert run is not None
    assert 1 == run.fencing_token
    assert run_id(a) == (await b.result(BOUND)).run_id
    assert await are_duplicates([await play.submit("A"), await play.submit("B")])


async def test_constant_signals_do_not_keep_a_lane_in_its_history(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(events_between_runs=100))
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    first = await current(play)

    async with asyncio.timeout(BOUND):
        while await current(play) == first:
            await play.lane.signal("interrupt", RunRequest(run_id="nobody"))
    b = await play.submit("B")

    assert ["success"] == await play.reasons(b)
    assert ["A", "B"] == await play.answered()


async def test_a_long_queue_keeps_its_order_over_fresh_histories(bench: Bench, serve: Serve, conversation: str) -> None:
    settings = LaneSettings(events_between_runs=30, carried_head_bytes=1000)
    play = await open_play(bench, serve, conversation, settings=settings)
    await play.submit("first")
    await play.stage.call(1)
    before = await current(play)
    names = [f"input {number:03}" for number in range(300)]
    tickets = [await play.submit(name, via="signal") for name in names]
    await tickets[-1].admitted(BOUND)
    urgent = await play.submit("urgent", "interrupt-next")
    for number in range(2, 7):
        (await play.stage.call(number)).answer("Yes.")
    await play.stage.call(7)
    waiting = [line.run_id for line in await play.client.lane_runs(conversation)]
    expected = [(await ticket.admitted(BOUND)).run_id for ticket in tickets[4:]]

    assert before != await current(play)
    assert ["first", "urgent", *names[:5]] == play.asked
    assert ["success"] == await play.reasons(urgent)
    assert expected == waiting


# --- rest ---------------------------------------------------------------------------------------


async def test_a_lane_that_rested_goes_on_where_it_was(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(idle_close_seconds=1))
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    report = await asyncio.wait_for(play.lane.result(), BOUND)
    b = await play.submit("B")
    await b.result(BOUND)

    assert "idle" == report["outcome"]
    assert [("user", "A"), ("assistant", "answer to A"), ("user", "B")] == play.stage.calls[1].heard
    assert await are_duplicates([await play.submit("A"), await play.submit("B")])
    assert 2 == len(play.stage.calls)


async def test_a_lane_does_not_rest_while_it_works(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(idle_close_seconds=0.2))
    a = await play.submit("A")
    first = await current(play)
    call = await play.stage.call(1)
    timers = await until(lambda: _fired_timers(play))
    call.answer("Late.")

    assert timers
    assert "Late." == (await a.result(BOUND)).text
    assert first == (await asyncio.wait_for(_last_run(play), BOUND))


async def _fired_timers(play: Play) -> list[int]:
    fired = EventType.EVENT_TYPE_TIMER_FIRED
    return [event.event_id async for event in play.lane.fetch_history_events() if event.event_type == fired]


async def _last_run(play: Play) -> str | None:
    await play.lane.result()
    return await current(play)


# --- starting -----------------------------------------------------------------------------------


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation)
    yield opened
    opened.stage.play()


async def test_a_lane_under_another_name_than_its_conversations_does_not_run(play: Play) -> None:
    start = LaneStart(conversation_id=play.conversation)
    wrong = await play.bench.temporal.start_workflow(
        "ConversationLane", start, id=f"other/{play.conversation}", task_queue=play.bench.task_queue
    )
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(wrong.result(), BOUND)

    assert isinstance(caught.value.cause, ApplicationError)
    assert "INVALID_INPUT" == caught.value.cause.type
