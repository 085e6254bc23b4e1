"""Admission: every way in, each accepted input once, in the order in which it arrived, whoever sends it again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import Play, open_play, run_id
from tests.integration.stage import BOUND, MANY_LANES, Stage
from turnlane.agent import PolicyContext
from turnlane.client.dev_server import DevServer
from turnlane.records.admissions import Policy, RecordIds
from turnlane.records.errors import IdempotencyConflictError
from turnlane.records.lane import LaneSettings
from turnlane.records.runs import RunState

pytestmark = pytest.mark.server


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation)
    yield opened
    opened.stage.play()


# --- the same input again -----------------------------------------------------------------------


async def test_a_resend_while_the_run_is_live_attaches_and_waits(play: Play) -> None:
    first = await play.submit("A")
    await play.stage.call(1)
    again = await play.submit("A")
    play.stage.play()

    assert again.admission is not None
    assert (True, run_id(first)) == (again.admission.duplicate, run_id(again))
    assert "answer to A" == (await again.result(BOUND)).text
    assert [("user", "A"), ("assistant", "answer to A")] == await play.said()


async def test_a_resend_after_the_run_ended_gets_the_answer_it_had(play: Play) -> None:
    play.stage.play()
    first = await (await play.submit("A")).result(BOUND)
    again = await play.submit("A")

    assert again.admission is not None
    assert (True, RunState.COMPLETED) == (again.admission.duplicate, again.admission.run_state)
    assert first.run_id == (await again.result(BOUND)).run_id
    assert 1 == len(play.stage.calls)


async def test_a_resend_from_another_client_is_the_same_input(play: Play) -> None:
    first = await play.submit("A")
    other = await play.bench.client(store=False, bus=False).submit(play.conversation, "A", key="A")
    play.stage.play()

    assert run_id(first) == run_id(other)
    assert (await first.result(BOUND)).run_id == (await other.result(BOUND)).run_id
    assert 1 == len(play.stage.calls)


async def test_a_resend_by_signal_finds_the_admission_it_had(play: Play) -> None:
    play.stage.play()
    first = await play.submit("A")
    again = await play.submit("A", via="signal")

    assert run_id(first) == (await again.admitted(BOUND)).run_id
    assert (await first.result(BOUND)).run_id == (await again.result(BOUND)).run_id
    assert 1 == len(play.stage.calls)


async def test_a_resend_after_the_lane_closed_gets_the_answer_it_had(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(idle_close_seconds=1))
    play.stage.play()
    first = await (await play.submit("A")).result(BOUND)
    await asyncio.wait_for(play.lane.result(), BOUND)
    again = await play.submit("A")

    assert again.admission is not None
    assert (True, first.run_id) == (again.admission.duplicate, run_id(again))
    assert first.text == (await again.result(BOUND)).text
    assert 1 == len(play.stage.calls)


async def test_a_resend_of_an_absorbed_input_gets_the_run_that_answered_it(play: Play) -> None:
    a = await play.submit("A")
    first = await play.stage.call(1)
    b = await play.submit("B", "inject")
    first.use(("c1", "look", "{}"))
    play.stage.play()
    await b.result(BOUND)
    again = await play.submit("B")

    assert run_id(a) == run_id(again)
    assert run_id(a) == (await again.result(BOUND)).run_id
    assert ["A", "B"] == await play.answered()


async def test_a_key_used_for_other_content_is_refused_and_leaves_nothing(play: Play) -> None:
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    before = await play.client.snapshot(play.conversation)
    with pytest.raises(IdempotencyConflictError):
        await play.client.submit(play.conversation, "something else", key="A")

    assert before == await play.client.snapshot(play.conversation)


async def test_a_key_used_for_other_content_by_signal_is_refused_to_its_sender(play: Play) -> None:
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    ticket = await play.client.submit(play.conversation, "something else", key="A", via="signal")
    with pytest.raises(IdempotencyConflictError):
        await ticket.admitted(BOUND)

    assert ["A"] == await play.answered()


async def test_the_same_text_under_two_keys_is_two_inputs(play: Play) -> None:
    play.stage.play()
    tickets = [await play.submit("A", key="one"), await play.submit("A", key="two"), await play.submit("A", key="one")]

    assert ["success"] * 3 == await play.reasons(*tickets)
    assert ["A", "A"] == await play.answered()


RESEND = """
import asyncio, sys
from turnlane.client import Turnlane
from turnlane.store.sql import open_store

async def main(target, path, queue, conversation):
    store = await open_store(path)
    client = await Turnlane.connect(target, store=store, task_queue=queue, answer_seconds=30)
    ticket = await client.submit(conversation, "A", key="A")
    result = await ticket.result(30)
    print(result.run_id, result.text)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_that_send_one_key_get_one_answer(
    bench: Bench, serve: Serve, conversation: str, server: DevServer
) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    arguments = (server.target, bench.place, bench.task_queue, conversation)
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", RESEND, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = await asyncio.gather(*(process.communicate() for process in processes))
    lines = {out.decode().strip() for out, _ in said}
    first = await (await play.submit("A")).result(BOUND)

    assert {f"{first.run_id} answer to A"} == lines, said
    assert [("user", "A"), ("assistant", "answer to A")] == await play.said()


# --- order and ids ------------------------------------------------------------------------------


async def test_rapid_inputs_are_answered_in_the_order_in_which_they_were_sent(play: Play) -> None:
    play.stage.play()
    names = [f"input {number:02}" for number in range(20)]
    tickets = [await play.submit(name) for name in names]

    assert ["success"] * 20 == await play.reasons(*tickets)
    assert names == await play.answered()


async def test_inputs_sent_at_once_are_each_answered_once_in_order_of_admission(play: Play) -> None:
    play.stage.play()
    names = [f"input {number:02}" for number in range(20)]
    tickets = await asyncio.gather(*(play.submit(name) for name in names))
    results = await asyncio.gather(*(ticket.result(BOUND) for ticket in tickets))
    order = {name: result.run.admission_order for name, result in zip(names, results, strict=True) if result.run}

    assert list(range(1, 21)) == sorted(order.values())
    assert sorted(names, key=order.__getitem__) == await play.answered()


async def test_a_burst_of_inputs_costs_no_model_call_twice(play: Play) -> None:
    play.stage.play()
    await play.submit("first")
    before = (await play.lane.describe()).run_id
    tickets = await asyncio.gather(*(play.submit(f"input {number:02}") for number in range(40)))
    reasons = await play.reasons(*tickets)

    assert ["success"] * 40 == reasons
    assert 41 == len(play.stage.calls)
    assert before == (await play.lane.describe()).run_id


async def test_records_carry_the_ids_that_the_caller_gave_away(play: Play) -> None:
    play.stage.play()
    ids = RecordIds(input_message_id="in-1", run_id="run-1", assistant_message_id="out-1")
    ticket = await play.submit("A", record_ids=ids)
    ended = await ticket.result(BOUND)

    assert ticket.admission is not None
    assert ("in-1", "run-1", "out-1") == (
        ticket.admission.input_message_id,
        ticket.admission.run_id,
        ticket.admission.assistant_message_id,
    )
    assert ["in-1", "out-1"] == [message.id for message in await play.messages()]
    assert "run-1" == ended.run_id


async def test_a_policy_function_sees_the_input_and_whether_a_run_is_in_flight(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    seen: list[tuple[str, bool]] = []

    def choose(context: PolicyContext) -> Policy:
        seen.append((context.input.key, context.has_live_run))
        return Policy.INTERRUPT if context.input.key == "C" else Policy.QUEUE

    play = await open_play(bench, serve, conversation, policy=choose)
    a = await play.submit("A")
    await play.stage.call(1)
    b, c = await play.submit("B"), await play.submit("C")
    play.stage.play()

    assert ["interrupted", "success", "success"] == await play.reasons(a, b, c)
    assert [("A", False), ("B", True), ("C", True)] == seen


async def test_the_callers_policy_outranks_the_agents(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, policy=Policy.SUPERSEDE)
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B", "queue")
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)


# --- ways in ------------------------------------------------------------------------------------


async def test_an_input_sent_while_no_worker_is_up_is_answered_once_when_one_is(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    stage, client = Stage(), bench.client(answer_seconds=0.5)
    ticket = await client.submit(conversation, "A", key="A")
    waiting = ticket.admission
    await serve(stage.agent(), providers=stage.providers)
    stage.play()
    ended = await ticket.result(BOUND)

    assert waiting is None
    assert "answer to A" == ended.text
    assert 1 == len(stage.calls)


async def test_twenty_lanes_started_by_signal_are_each_answered_once(bench: Bench, serve: Serve) -> None:
    stage, client = Stage(), bench.client()
    stage.play()
    names = [f"{bench.task_queue}-{number}" for number in range(20)]
    tickets = [await client.submit(name, name, key="A", via="signal") for name in names]
    await serve(stage.agent(), providers=stage.providers, max_cached_workflows=MANY_LANES)
    ended = [await ticket.result(BOUND) for ticket in tickets]

    assert [f"answer to {name}" for name in names] == [result.text for result in ended]
    assert sorted(names) == sorted(call.asked for call in stage.calls)
