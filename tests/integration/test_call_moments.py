"""Moments of tool calls: an interrupt between a step and its calls, waits that count against nothing, deliveries."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from tests.conftest import Bench, Serve
from tests.integration.calling import told
from tests.integration.play import NAP_SECONDS, open_play, run_id
from tests.integration.stage import BOUND, until
from turnlane.agent import ToolContext, tool
from turnlane.records.durable import Delivery
from turnlane.records.errors import ConversationPurgedError
from turnlane.records.lane import LaneSettings
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolOutcome
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server


@pytest.mark.parametrize("moment", ["the end of the step is stored", "the first call begins"])
async def test_an_interrupt_between_a_step_and_its_calls_lets_none_of_them_begin(
    bench: Bench, serve: Serve, conversation: str, moment: str
) -> None:
    made: list[str] = []

    @tool
    def wipe() -> str:
        """Wipe."""
        made.append("wipe")
        return "wiped"

    method, after = ("finish_step", True) if moment == "the end of the step is stored" else ("begin_call", False)
    play = await open_play(bench, serve, conversation, tools=[wipe], hold=method, hold_answer=after)
    ticket = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "wipe", "{}"), ("c2", "wipe", "{}"))
    await play.barrier.until_reached()
    await play.client.interrupt(conversation, run_id(ticket))
    play.barrier.release()
    result = await ticket.result(BOUND)

    assert TerminalReason.INTERRUPTED is result.reason
    assert [] == made
    assert [ToolOutcome.INTERRUPTED] * 2 == [part.outcome for part in told(result)]


async def test_the_time_that_a_call_waits_is_not_time_that_it_takes(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    @tool(durable=True, timeout=1.0)
    async def nap(ctx: ToolContext) -> str:
        """Sleep longer than a try may take."""
        await ctx.sleep(NAP_SECONDS)
        return "rested"

    play = await open_play(bench, serve, conversation, tools=[nap])
    ticket = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "nap", "{}"))
    (await play.stage.call(2)).answer("so")
    result = await ticket.result(BOUND)

    assert ["rested"] == [part.output for part in told(result)]


async def test_a_lane_whose_call_waits_does_not_close_and_one_event_wakes_every_call_that_waits_for_it(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    @tool(durable=True)
    async def hear(ctx: ToolContext) -> Any:
        """Wait for word."""
        return await ctx.wait_for("word", "same")

    settings = LaneSettings(idle_close_seconds=0.2)
    play = await open_play(bench, serve, conversation, tools=[hear], settings=settings)
    ticket = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "hear", "{}"), ("c2", "hear", "{}"))

    async def both_wait_and_the_idle_timer_fired() -> bool:
        events = (await play.lane.fetch_history()).events
        timers = [each for each in events if each.HasField("timer_fired_event_attributes")]
        parked = [event for event in await play.ledger() if event.kind == LedgerKind.DURABLE_PARK]
        return len(timers) >= 3 and len(parked) == 2

    await until(both_wait_and_the_idle_timer_fired)
    before = (await play.lane.describe()).status
    await play.client.deliver(conversation, "word", "same", "come")
    (await play.stage.call(2)).answer("so")
    result = await ticket.result(BOUND)

    assert WorkflowExecutionStatus.RUNNING is before
    assert ["come", "come"] == [part.output for part in told(result)]


async def test_a_delivery_to_a_conversation_that_nobody_began_is_kept_for_it(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    @tool(durable=True)
    async def hear(ctx: ToolContext) -> Any:
        """Wait for word."""
        return await ctx.wait_for("word", "early")

    settings = LaneSettings(idle_close_seconds=0.2)
    play = await open_play(bench, serve, conversation, tools=[hear], settings=settings)
    await play.client.deliver(conversation, "word", "early", "bird")

    async def closed() -> bool:
        return (await play.lane.describe()).status is WorkflowExecutionStatus.COMPLETED

    await until(closed)
    ticket = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "hear", "{}"))
    (await play.stage.call(2)).answer("so")

    assert ["bird"] == [part.output for part in told(await ticket.result(BOUND))]


@pytest.mark.parametrize("by", ["update", "signal"])
async def test_a_delivery_to_a_purged_conversation_is_refused_and_breaks_nothing(
    bench: Bench, serve: Serve, conversation: str, by: str
) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    await play.client.purge(conversation)
    await asyncio.wait_for(play.lane.result(), BOUND)

    if by == "update":
        with pytest.raises(ConversationPurgedError):
            await play.client.deliver(conversation, "word", "late", "x")
        return
    await bench.temporal.start_workflow(
        "ConversationLane",
        id=f"lane/{conversation}",
        task_queue=bench.task_queue,
        start_signal="deliver",
        start_signal_args=[Delivery(event="word", id="late", payload="x")],
        execution_timeout=timedelta(seconds=BOUND),
    )
    report = await asyncio.wait_for(play.lane.result(), BOUND)

    assert "purged" == report["outcome"]
