"""Durable tools on a real lane: a body that waits holds no worker, and goes on where its records end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from tests.conftest import Bench, Serve
from tests.integration.calling import calling, told
from tests.integration.durable_stage import APPROVE, Counted, approve_tool, begin, outputs, until_suspended
from tests.integration.play import NAP_SECONDS
from tests.integration.stage import BOUND
from turnlane.agent import tool
from turnlane.agent.models import Call
from turnlane.agent.tools import ToolContext
from turnlane.records.durable import WAITS_AT_ONCE
from turnlane.records.messages import ToolOutcome

pytestmark = pytest.mark.server


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
    assert [ToolOutcome.INTERRUPTED] == [part.outcome for part in told(result)]


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
