"""Durable bodies that outlive what they ran in: their worker, their lane, its history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.calling import calling, told
from tests.integration.durable_stage import APPROVE, Counted, approve_tool, begin, outputs, until_suspended
from tests.integration.play import Play, current, open_play, until_moved
from tests.integration.stage import BOUND
from turnlane.agent import tool
from turnlane.agent.models import Call
from turnlane.agent.tools import ToolContext
from turnlane.records.admissions import RecordIds
from turnlane.records.lane import LaneSettings
from turnlane.records.messages import ToolResultPart
from turnlane.records.runs import TerminalReason
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server


# --- workers and lanes that are lost --------------------------------------------------------------


async def test_a_waiting_body_outlives_its_worker(bench: Bench, serve: Serve, conversation: str) -> None:
    counted = Counted()
    agent = calling(APPROVE, approve_tool(counted))
    async with bench.worker(agent):
        _, ticket = await begin(bench, conversation)
        await until_suspended(bench, conversation)
    impatient = bench.client(answer_seconds=0.5)

    sent = await impatient.deliver(conversation, "approved", "order-1", "late")
    await serve(agent)
    result = await ticket.result(BOUND)

    assert sent is None
    assert [{"order": 1, "word": "late"}] == outputs(result)
    assert 1 == counted.counts["order"]


async def test_a_lost_lane_takes_up_a_waiting_body(bench: Bench, serve: Serve, conversation: str) -> None:
    counted = Counted()
    await serve(calling(APPROVE, approve_tool(counted)))
    client, ticket = await begin(bench, conversation)
    await until_suspended(bench, conversation)

    await bench.temporal.get_workflow_handle(f"lane/{conversation}").terminate("the test loses the lane")
    await client.deliver(conversation, "approved", "order-1", "still")
    result = await ticket.result(BOUND)

    assert [{"order": 1, "word": "still"}] == outputs(result)
    assert 1 == counted.counts["order"]


@pytest.mark.parametrize("is_lost", [False, True], ids=["in one lane", "with its lane lost"])
async def test_an_approved_call_may_wait_like_any_other(
    bench: Bench, serve: Serve, conversation: str, is_lost: bool
) -> None:
    counted = Counted()

    @tool(durable=True, approval="user-approval")
    async def pay(ctx: ToolContext) -> dict[str, Any]:
        """Pay, once the bank has said so."""
        charged = await ctx.step("charge", lambda: counted.add("charge"))
        return {"charged": charged, "bank": await ctx.wait_for("bank", "1")}

    play = await open_play(bench, serve, conversation, tools=[pay])
    first = await play.submit("go")
    (await play.stage.call(1)).use(("p1", "pay", "{}"))
    await first.result(BOUND)
    (waiting,) = await play.client.pending_approvals(conversation)
    ticket = await play.client.respond(conversation, waiting.approval_id, True)
    await until_suspended(bench, conversation)

    if is_lost:
        await play.lane.terminate("the test loses the lane")
    await play.client.deliver(conversation, "bank", "1", "yes")
    (await play.stage.call(2)).answer("Paid.")
    result = await ticket.result(BOUND)

    told = [part for message in await play.messages() for part in message.parts if isinstance(part, ToolResultPart)]
    assert TerminalReason.SUCCESS is result.reason
    assert [{"charged": 1, "bank": "yes"}] == [part.output for part in told]
    assert {"charge": 1} == counted.counts


async def test_a_step_is_not_run_again_when_its_worker_leaves(bench: Bench, serve: Serve, conversation: str) -> None:
    counted = Counted()
    hold = Barrier("hold", BOUND)

    @tool(durable=True)
    async def work(ctx: ToolContext) -> list[int]:
        """Do two things."""
        first = await ctx.step("first", lambda: counted.add("first"))
        if ctx.attempt == 1:
            await hold.wait()
        return [first, await ctx.step("second", lambda: counted.add("second"))]

    agent = calling([Call("work")], work)
    async with bench.worker(agent, graceful_seconds=0.1):
        _, ticket = await begin(bench, conversation)
        await hold.until_reached()
    await serve(agent)

    result = await ticket.result(BOUND)

    assert [[1, 1]] == outputs(result)
    assert {"first": 1, "second": 1} == counted.counts


@pytest.mark.parametrize(
    ("found", "told"),
    [("ch_1", "accepted"), (None, "uncertain"), (RuntimeError(), "EFFECT_UNRESOLVED")],
    ids=["found", "not found", "nobody can say"],
)
async def test_an_effect_whose_worker_left_is_looked_for_and_not_made_again(
    bench: Bench, serve: Serve, conversation: str, found: Any, told: str
) -> None:
    hold = Barrier("hold", BOUND)
    counted = Counted()

    async def charge() -> str:
        counted.add("charge")
        await hold.wait()
        return "never said"

    def look() -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    @tool(durable=True)
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        return (await ctx.effect("charge", run=charge, reconcile=look)).status

    agent = calling([Call("pay")], pay)
    async with bench.worker(agent, graceful_seconds=0.1):
        _, ticket = await begin(bench, conversation)
        await hold.until_reached()
    await serve(agent)

    (output,) = outputs(await ticket.result(BOUND))

    assert told == (output["error"] if isinstance(output, dict) else output)
    assert {"charge": 1} == counted.counts


# --- fresh histories ------------------------------------------------------------------------------


async def test_a_lane_moves_to_a_fresh_history_with_a_waiting_body(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    counted = Counted()
    settings = LaneSettings(events_between_runs=40, events_between_steps=40)
    await serve(calling(APPROVE, approve_tool(counted)), settings=settings)
    client, ticket = await begin(bench, conversation)
    await until_suspended(bench, conversation)
    handle = bench.temporal.get_workflow_handle(f"lane/{conversation}")
    first = (await handle.describe()).run_id
    queued = [await client.submit(conversation, f"later {number}") for number in range(12)]
    await until_moved(handle, first)
    await client.deliver(conversation, "approved", "order-1", "moved")
    result = await ticket.result(BOUND)

    assert [{"order": 1, "word": "moved"}] == outputs(result)
    assert 1 == counted.counts["order"]
    assert [TerminalReason.SUCCESS] * 12 == [(await later.result(BOUND)).reason for later in queued]


@pytest.mark.parametrize("head_bytes", [64 * 1024, 0], ids=["carried", "loaded"])
async def test_a_full_round_of_waiting_bodies_with_long_ids_moves_to_a_fresh_history(
    bench: Bench, serve: Serve, conversation: str, head_bytes: int
) -> None:
    @tool(durable=True)
    async def hear(ctx: ToolContext) -> Any:
        """Wait for word of everything."""
        return await ctx.wait_for("word", "all")

    calls = [Call("hear", call_id=f"call_{number}_" + "x" * 1000) for number in range(128)]
    settings = LaneSettings(events_between_runs=200, events_between_steps=200, carried_head_bytes=head_bytes)
    await serve(calling(calls, hear), settings=settings)
    client, ticket = await begin(bench, conversation)
    handle = bench.temporal.get_workflow_handle(f"lane/{conversation}")
    first = (await handle.describe()).run_id
    await until_moved(handle, first)
    start = (await handle.fetch_history()).events[0]
    await client.deliver(conversation, "word", "all", "come")
    result = await ticket.result(BOUND)

    assert start.ByteSize() < 128 * 1024
    assert ["come"] * 128 == outputs(result)
    assert 128 == len({part.call_id for part in told(result)})


async def test_a_body_that_wakes_in_a_fresh_history_goes_on_counting_its_tries(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    tries: list[int] = []

    @tool(durable=True)
    async def hear(ctx: ToolContext) -> Any:
        """Wait."""
        tries.append(ctx.attempt)
        return [await ctx.wait_for("word", "1"), await ctx.wait_for("word", "2")]

    settings = LaneSettings(events_between_runs=40, events_between_steps=40, local_seconds=1)
    play = await open_play(bench, serve, conversation, hold="find_collisions", settings=settings, tools=[hear])
    ticket = await play.submit("go")
    (await play.stage.call(1)).use(("c1", "hear", "{}"))
    await until_suspended(bench, conversation)
    await play.client.deliver(conversation, "word", "1", "said")
    await until_suspended(bench, conversation, 2)
    first = await current(play)
    # What is being checked keeps the lane where it is, though it has nothing else to do there.
    await play.submit("later", via="signal", record_ids=RecordIds(run_id="run-of-later"))
    await play.barrier.until_reached()
    await _deliver_others(play, until_events=45)
    await play.client.deliver(conversation, "word", "2", "done")
    still = await current(play)
    play.barrier.release()
    (await play.stage.call(2)).answer("done")
    result = await ticket.result(BOUND)

    assert (first, True) == (still, first != await current(play))
    assert [["said", "done"]] == outputs(result)
    assert [1, 2, 3] == tries


async def _deliver_others(play: Play, until_events: int) -> None:
    """Deliver what nobody waits for until the lane's history is that long, and the lane has seen that."""
    number, is_long = 0, False
    while not is_long:
        is_long = len((await play.lane.fetch_history()).events) >= until_events
        number += 1
        await play.client.deliver(play.conversation, "other", str(number))
