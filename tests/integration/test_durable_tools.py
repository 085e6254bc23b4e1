"""Durable tools on a real lane: a body that waits holds no worker, and goes on where its records end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from tests.conftest import Bench, Serve
from tests.integration.play import NAP_SECONDS, Play, current, open_play
from tests.integration.stage import BOUND, until
from turnlane.agent import Agent, Tool, tool
from turnlane.agent.models import Action, Call, Say, ScriptedModel, ScriptedRequest
from turnlane.agent.tools import ToolContext
from turnlane.client import Result, Ticket, Turnlane
from turnlane.records.admissions import RecordIds
from turnlane.records.durable import WAITS_AT_ONCE
from turnlane.records.lane import LaneSettings
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolOutcome, ToolResultPart
from turnlane.records.runs import TerminalReason
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server


def calling(calls: Sequence[Call], *tools: Tool, **options: Any) -> Agent:
    """An agent whose model makes these calls when a run begins, and then is done."""

    def script(request: ScriptedRequest) -> Sequence[Action]:
        return calls if request.step == 0 else [Say("done")]

    return Agent(name="caller", model=ScriptedModel(script=script), tools=tools, **options)


def outputs(result: Result) -> list[Any]:
    """What the calls were answered."""
    return [part.output for part in results(result)]


def results(result: Result) -> list[ToolResultPart]:
    assert result.message is not None
    return [part for part in result.message.parts if isinstance(part, ToolResultPart)]


async def until_parked(bench: Bench, conversation: str, count: int = 1) -> None:
    """Wait until that many waits of tool bodies are in the ledger."""

    async def parked() -> bool:
        events = (await bench.store.read_events(conversation)).items
        return sum(event.kind == LedgerKind.DURABLE_PARK for event in events) >= count

    await until(parked)


async def until_suspended(bench: Bench, conversation: str, count: int = 1) -> None:
    """Wait until that many tries of tools ended, so that no worker has them any more."""

    async def suspended() -> bool:
        return await ended_calls(bench, conversation) >= count

    await until(suspended)


async def ended_calls(bench: Bench, conversation: str) -> int:
    """How many activities of the lane's present history have ended, those of the model left out."""
    history = await bench.temporal.get_workflow_handle(f"lane/{conversation}").fetch_history()
    names = {
        event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    }
    done = [
        event.activity_task_completed_event_attributes.scheduled_event_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    ]
    return sum(names[number] != "provider_step" for number in done)


async def begin(bench: Bench, conversation: str) -> tuple[Turnlane, Ticket]:
    """Submit an input."""
    client = bench.client()
    return client, await client.submit(conversation, "go")


class Counted:
    """How often each part of a tool body was run."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, name: str) -> int:
        self.counts[name] = self.counts.get(name, 0) + 1
        return self.counts[name]


def approve_tool(counted: Counted) -> Tool:
    """A tool that orders, waits for a word from outside, and confirms."""

    @tool(durable=True)
    async def approve(ctx: ToolContext) -> dict[str, Any]:
        """Order, wait, confirm."""
        counted.add("body")
        order = await ctx.step("order", lambda: counted.add("order"))
        word = await ctx.wait_for("approved", "order-1")
        await ctx.step("confirm", lambda: counted.add("confirm"))
        return {"order": order, "word": word}

    return approve


APPROVE = [Call("approve", call_id="call_1")]


async def test_a_body_that_waits_goes_on_with_what_is_delivered(bench: Bench, serve: Serve, conversation: str) -> None:
    counted = Counted()
    await serve(calling(APPROVE, approve_tool(counted)))
    client, ticket = await begin(bench, conversation)
    await until_suspended(bench, conversation)

    accepted = await client.deliver(conversation, "approved", "order-1", {"by": "ann"})
    result = await ticket.result(BOUND)

    assert accepted is True
    assert [{"order": 1, "word": {"by": "ann"}}] == outputs(result)
    assert {"body": 2, "order": 1, "confirm": 1} == counted.counts


async def test_what_is_delivered_before_anybody_waits_is_kept(bench: Bench, serve: Serve, conversation: str) -> None:
    counted = Counted()
    await serve(calling(APPROVE, approve_tool(counted)))
    client = bench.client()
    await client.deliver(conversation, "approved", "order-1")

    ticket = await client.submit(conversation, "go")
    result = await ticket.result(BOUND)

    assert [{"order": 1, "word": None}] == outputs(result)
    assert {"body": 1, "order": 1, "confirm": 1} == counted.counts


async def test_the_first_delivery_stands(bench: Bench, serve: Serve, conversation: str) -> None:
    await serve(calling(APPROVE, approve_tool(Counted())))
    client, ticket = await begin(bench, conversation)

    told = [await client.deliver(conversation, "approved", "order-1", word) for word in ("yes", "no", "yes")]
    result = await ticket.result(BOUND)

    assert [True, False, True] == told
    assert ["yes"] == [output["word"] for output in outputs(result)]


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

    async def moved() -> bool:
        return (await handle.describe()).run_id != first

    await until(moved)
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

    async def moved() -> bool:
        return (await handle.describe()).run_id != first

    await until(moved)
    start = (await handle.fetch_history()).events[0]
    await client.deliver(conversation, "word", "all", "come")
    result = await ticket.result(BOUND)

    assert start.ByteSize() < 128 * 1024
    assert ["come"] * 128 == outputs(result)
    assert 128 == len({part.call_id for part in results(result)})


async def test_two_bodies_wait_side_by_side_and_a_third_goes_on(bench: Bench, serve: Serve, conversation: str) -> None:
    looked = asyncio.Event()

    @tool(durable=True)
    async def hear(ctx: ToolContext, of: str) -> Any:
        """Wait for word of something."""
        return await ctx.wait_for("word", of)

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        looked.set()
        return "seen"

    calls = [Call("hear", {"of": "a"}), Call("hear", {"of": "b"}), Call("look")]
    await serve(calling(calls, hear, look))
    client, ticket = await begin(bench, conversation)
    await until_suspended(bench, conversation, 3)

    await client.deliver(conversation, "word", "b", 2)
    await until_suspended(bench, conversation, 4)
    await client.deliver(conversation, "word", "a", 1)
    result = await ticket.result(BOUND)

    assert looked.is_set()
    assert [1, 2, "seen"] == outputs(result)


async def test_one_body_waits_for_two_events_at_once(bench: Bench, serve: Serve, conversation: str) -> None:
    @tool(durable=True)
    async def both(ctx: ToolContext) -> Any:
        """Wait for two."""
        return await asyncio.gather(ctx.wait_for("word", "a"), ctx.wait_for("word", "b"))

    await serve(calling([Call("both")], both))
    client, ticket = await begin(bench, conversation)
    await until_suspended(bench, conversation)

    for name, value in (("b", 2), ("a", 1)):
        await client.deliver(conversation, "word", name, value)
    result = await ticket.result(BOUND)

    assert [[1, 2]] == outputs(result)


async def test_a_long_sleep_is_the_lanes_timer(bench: Bench, serve: Serve, conversation: str) -> None:
    counted = Counted()

    @tool(durable=True)
    async def nap(ctx: ToolContext) -> int:
        """Sleep."""
        await ctx.sleep(NAP_SECONDS)
        return counted.add("after")

    await serve(calling([Call("nap")], nap))
    _, ticket = await begin(bench, conversation)

    result = await ticket.result(BOUND)

    history = await bench.temporal.get_workflow_handle(f"lane/{conversation}").fetch_history()
    timers = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED]
    assert [1] == outputs(result)
    assert 1 == len(timers)


@pytest.mark.parametrize(("policy", "reason"), [(None, "interrupted"), ("supersede", "superseded")])
async def test_a_waiting_call_ends_at_once_when_its_run_is_asked_to_stop(
    bench: Bench, serve: Serve, conversation: str, policy: str | None, reason: str
) -> None:
    @tool(durable=True)
    async def wait(ctx: ToolContext) -> Any:
        """Wait for what never comes."""
        return await ctx.wait_for("never", "1")

    await serve(calling([Call("wait")], wait))
    client, ticket = await begin(bench, conversation)
    await until_suspended(bench, conversation)

    if policy is None:
        await client.interrupt(conversation)
    else:
        await client.submit(conversation, "instead", policy=policy)
    result = await ticket.result(BOUND)

    assert reason == result.reason.value
    assert [ToolOutcome.INTERRUPTED] == [part.outcome for part in results(result)]


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


async def test_no_content_of_a_durable_call_is_in_the_history(bench: Bench, serve: Serve, conversation: str) -> None:
    @tool(durable=True)
    async def secretive(ctx: ToolContext, given: str) -> str:
        """Record and wait."""
        kept = await ctx.step("keep", lambda: given + " kept")
        await ctx.wait_for("go", "1")
        return f"{kept} {'x' * 100_000}"

    await serve(calling([Call("secretive", {"given": "hush"})], secretive))
    client, ticket = await begin(bench, conversation)
    await until_suspended(bench, conversation)
    await client.deliver(conversation, "go", "1")
    await ticket.result(BOUND)

    history = await bench.temporal.get_workflow_handle(f"lane/{conversation}").fetch_history()
    assert "hush" not in history.to_json()
    assert max(event.ByteSize() for event in history.events) < 16 * 1024


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


async def test_a_body_that_waits_for_many_events_is_run_once_for_each_that_comes(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    counted = Counted()
    names = [str(number) for number in range(WAITS_AT_ONCE + 2)]

    @tool(durable=True)
    async def hear_all(ctx: ToolContext) -> Any:
        """Wait for many."""
        counted.add("body")
        return await asyncio.gather(*(ctx.wait_for("word", name) for name in names))

    await serve(calling([Call("hear_all")], hear_all))
    client, ticket = await begin(bench, conversation)

    for number, name in enumerate(names, start=1):
        await until_suspended(bench, conversation, number)
        await client.deliver(conversation, "word", name, name)
    result = await ticket.result(BOUND)

    assert [names] == outputs(result)
    assert len(names) + 1 == counted.counts["body"]


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
