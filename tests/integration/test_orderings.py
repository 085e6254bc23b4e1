"""Who runs next: every corner ordering of inputs, policies and ends, on a real lane.

A, B, C and D name inputs, in the order in which they are admitted. Order is the admission counter's: a clock
that steps back, or ids that sort the other way, change nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import Play, open_play, run_id
from tests.integration.stage import BOUND, Stage
from turnlane.records.admissions import RecordIds
from turnlane.records.errors import RunConflictError
from turnlane.records.messages import ControlPart, ControlReason
from turnlane.records.runs import RunState, TerminalReason

pytestmark = pytest.mark.server


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation)
    yield opened
    opened.stage.play()


@pytest.fixture
async def late(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """The same, and the end of a model call is not stored before the test says so."""
    opened = await open_play(bench, serve, conversation, hold="finish_step")
    yield opened
    release(opened)


def release(play: Play) -> None:
    """Let go of everything that is held."""
    assert play.held is not None
    play.held.barrier.release()
    play.stage.play()


async def until_held(play: Play) -> None:
    """Wait until the end of a model call is about to be stored."""
    assert play.held is not None
    await play.held.barrier.until_reached()


async def test_o1_queued_inputs_run_in_their_order(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b, c = await play.submit("B"), await play.submit("C")
    play.stage.play()

    assert ["success"] * 3 == await play.reasons(a, b, c)
    assert ["A", "B", "C"] == play.asked


async def test_o2_an_interrupt_ends_the_run_and_waits_its_turn(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b, c = await play.submit("B"), await play.submit("C", "interrupt")
    play.stage.play()

    assert ["interrupted", "success", "success"] == await play.reasons(a, b, c)
    assert ["A", "B", "C"] == play.asked


async def test_o3_an_urgent_interrupt_overtakes_the_queue(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    c = await play.submit("C", "interrupt-next")
    await play.stage.call(2)
    play.stage.play()

    assert ["interrupted", "success", "success"] == await play.reasons(a, b, c)
    assert ["A", "C", "B"] == play.asked
    assert ["A", "C", "B"] == await play.answered()


async def test_o4_urgent_interrupts_keep_their_own_order(late: Play) -> None:
    a = await late.submit("A")
    await late.stage.call(1)
    b = await late.submit("B")
    c, d = await late.submit("C", "interrupt-next"), await late.submit("D", "interrupt-next")
    release(late)

    assert ["interrupted", "success", "success", "success"] == await late.reasons(a, b, c, d)
    assert ["A", "C", "D", "B"] == late.asked


async def test_o5_an_urgent_interrupt_ends_an_urgent_run_that_started(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b, c = await play.submit("B"), await play.submit("C", "interrupt-next")
    await play.stage.call(2)
    d = await play.submit("D", "interrupt-next")
    await play.stage.call(3)
    play.stage.play()

    assert ["interrupted", "success", "interrupted", "success"] == await play.reasons(a, b, c, d)
    assert ["A", "C", "D", "B"] == play.asked


async def test_o6_the_first_reason_to_stop_stands(late: Play) -> None:
    a = await late.submit("A")
    await late.stage.call(1)
    b = await late.submit("B", "supersede")
    await until_held(late)
    c = await late.submit("C", "interrupt")
    release(late)

    assert ["superseded", "success", "success"] == await late.reasons(a, b, c)


async def test_o7_an_interrupted_run_gives_back_what_it_took(play: Play) -> None:
    a = await play.submit("A")
    first = await play.stage.call(1)
    b = await play.submit("B", "inject")
    first.use(("c1", "look", "{}"))
    second = await play.stage.call(2)
    await play.client.interrupt(play.conversation, run_id(a))
    play.stage.play()

    assert ["interrupted", "success"] == await play.reasons(a, b)
    assert "B" == second.asked
    assert ["A"] == await play.inputs(await a.result(BOUND))
    assert ["B"] == await play.inputs(await b.result(BOUND))


async def test_o8_an_urgent_run_may_answer_an_injected_input_that_nobody_took(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B", "inject")
    c = await play.submit("C", "interrupt-next")
    await play.stage.call(2)
    play.stage.play()

    assert ["interrupted", "success", "success"] == await play.reasons(a, b, c)
    assert [("user", "A"), ("user", "C"), ("user", "B")] == play.stage.calls[1].heard
    assert ["C", "B"] == await play.inputs(await b.result(BOUND))
    assert run_id(c) == (await b.result(BOUND)).run_id


async def test_o9_an_interrupt_before_the_end_is_stored_ends_the_run(late: Play) -> None:
    a = await late.submit("A")
    (await late.stage.call(1)).answer("all of it")
    await until_held(late)
    b = await late.submit("B", "inject")
    await late.client.interrupt(late.conversation, run_id(a))
    release(late)
    ended = await a.result(BOUND)

    assert (TerminalReason.INTERRUPTED, None) == (ended.reason, ended.policy_name)
    assert "all of it" == ended.text
    assert ["A"] == await late.inputs(ended)
    assert ["success"] == await late.reasons(b)


async def test_o10_a_superseded_run_stays_superseded(late: Play) -> None:
    a = await late.submit("A")
    await late.stage.call(1)
    await late.submit("B", "supersede")
    await until_held(late)
    with pytest.raises(RunConflictError):
        await late.client.interrupt(late.conversation, run_id(a))
    release(late)
    ended = await a.result(BOUND)

    assert TerminalReason.SUPERSEDED is ended.reason
    assert ended.message is not None
    assert [ControlReason.RUN_INTERRUPTED] == [
        part.reason for part in ended.message.parts if isinstance(part, ControlPart)
    ]


async def test_o11_an_interrupt_after_the_end_conflicts(play: Play) -> None:
    a = await play.submit("A")
    play.stage.play()
    await a.result(BOUND)
    with pytest.raises(RunConflictError):
        await play.client.interrupt(play.conversation, run_id(a))

    assert TerminalReason.SUCCESS is (await a.result(BOUND)).reason


async def test_o12_a_queued_run_cannot_be_interrupted(play: Play) -> None:
    await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    with pytest.raises(RunConflictError):
        await play.client.interrupt(play.conversation, run_id(b))
    play.stage.play()

    assert ["success"] == await play.reasons(b)


async def test_o13_a_run_that_had_started_comes_back_before_an_urgent_one(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    await play.lane.terminate()
    c = await play.submit("C", "interrupt-next")
    play.stage.play()

    assert ["interrupted", "success", "success"] == await play.reasons(a, b, c)
    assert ["A", "C", "B"] == await play.answered()


async def test_o14_after_an_abandoned_run_the_urgent_one_is_next(late: Play) -> None:
    a = await late.submit("A")
    await late.stage.call(1)
    b, c = await late.submit("B"), await late.submit("C", "interrupt-next")
    asked = await late.until_state(a, RunState.INTERRUPT_REQUESTED)
    await late.client.abandon(late.conversation, run_id(a), expected_revision=asked.revision, stale_owner=True)
    release(late)

    assert ["abandoned", "success", "success"] == await late.reasons(a, b, c)
    assert ["A", "C", "B"] == late.asked


async def test_o15_inputs_of_one_moment_run_in_order_of_admission_whatever_their_ids(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    client, stage = bench.client(), Stage()
    names = ["A", "B", "C", "D", "E"]
    tickets = []
    for place, name in enumerate(names):
        ids = RecordIds(run_id=f"run-{9 - place}", input_message_id=f"in-{9 - place}")
        tickets.append(await client.submit(conversation, name, agent="actor", key=name, record_ids=ids, via="signal"))
    await serve(stage.agent(), providers=stage.providers)
    stage.play()
    runs = [(await ticket.result(BOUND)).run for ticket in tickets]

    assert names == [call.asked for call in stage.calls]
    assert [1, 2, 3, 4, 5] == [run.admission_order for run in runs if run is not None]


async def test_o17_an_injected_input_of_an_idle_lane_is_a_run_like_any_other(play: Play) -> None:
    a = await play.submit("A", "inject")
    first = await play.stage.call(1)
    b = await play.submit("B", "queue")
    first.use(("c1", "look", "{}"))
    second = await play.stage.call(2)
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)
    assert [("user", "A"), ("assistant", "c1"), ("tool", "c1")] == second.heard


async def test_o18_an_injected_input_after_the_last_boundary_runs_next(play: Play) -> None:
    a = await play.submit("A")
    first = await play.stage.call(1)
    first.say("Half")
    b = await play.submit("B", "inject")
    first.answer(" and whole.")
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)
    assert run_id(a) != (await b.result(BOUND)).run_id
    assert ["A", "B"] == play.asked


async def test_o19_a_coalesced_successor_of_injected_inputs_is_absorbed_whole(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, coalesce_pending=True)
    a = await play.submit("A")
    first = await play.stage.call(1)
    others = [await play.submit(name, "inject") for name in ("B", "C", "D")]
    first.use(("c1", "look", "{}"))
    await play.stage.call(2)
    play.stage.play()
    ended = [await ticket.result(BOUND) for ticket in (a, *others)]

    assert {run_id(a)} == {result.run_id for result in ended}
    assert ["A", "B", "C", "D"] == await play.inputs(ended[0])
    assert 2 == len(play.stage.calls)
