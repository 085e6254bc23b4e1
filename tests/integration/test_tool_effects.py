"""Effects of tool calls that meet an interrupt, or lose their worker: none is made twice, none goes untold."""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import Bench, Serve
from tests.integration.calling import calling, code, results, told
from tests.integration.play import look, open_play, until_answered
from tests.integration.stage import BOUND
from turnlane.agent import tool
from turnlane.agent.models import Call
from turnlane.agent.tools import ToolContext
from turnlane.records.messages import ToolOutcome, ToolResultPart
from turnlane.records.runs import TerminalReason
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server


# --- workers that leave ---------------------------------------------------------------------------


async def test_a_retried_call_keeps_its_idempotency_key(bench: Bench, serve: Serve, conversation: str) -> None:
    seen: list[tuple[int, str]] = []
    begun = asyncio.Event()

    @tool(read_only=True)
    async def fetch(ctx: ToolContext) -> str:
        """Fetch; the first try takes for ever."""
        seen.append((ctx.attempt, ctx.idempotency_key))
        if ctx.attempt == 1:
            begun.set()
            await asyncio.Event().wait()
        return "fetched"

    agent = calling([Call("fetch")], fetch)
    async with bench.worker(agent, graceful_seconds=0.1):
        ticket = await bench.client().submit(conversation, "hi")
        async with asyncio.timeout(BOUND):
            await begun.wait()
    await serve(agent)

    answered = results(await ticket.result(BOUND))

    assert ["fetched"] == [part.output for part in answered]
    assert [1, 2] == [attempt for attempt, _ in seen]
    assert 1 == len({key for _, key in seen})


async def test_a_worker_that_leaves_does_not_repeat_a_call_that_may_have_had_its_effect(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    begun = asyncio.Event()
    charged: list[int] = []

    @tool
    async def charge(ctx: ToolContext) -> None:
        """Charge, and take for ever to say so."""
        charged.append(ctx.attempt)
        begun.set()
        await asyncio.Event().wait()

    agent = calling([Call("charge")], charge)
    async with bench.worker(agent, graceful_seconds=0.1):
        ticket = await bench.client().submit(conversation, "hi")
        async with asyncio.timeout(BOUND):
            await begun.wait()
    await serve(agent)

    answered = results(await ticket.result(BOUND))

    assert ["OUTCOME_UNKNOWN"] == [code(part.output) for part in answered]
    assert [1] == charged


# --- interrupts -----------------------------------------------------------------------------------


async def test_a_finished_call_keeps_its_result_when_the_run_is_interrupted(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    hold = Barrier("hold", BOUND)

    @tool
    async def wait() -> str:
        """Wait until somebody says so."""
        await hold.wait()
        return "waited"

    await serve(calling([Call("look"), Call("wait")], look, wait))
    client = bench.client()
    ticket = await client.submit(conversation, "hi")
    await hold.until_reached()
    await until_answered(client, conversation, "seen")

    await client.interrupt(conversation)
    result = await ticket.result(BOUND)

    assert TerminalReason.INTERRUPTED is result.reason
    answered = told(result)
    assert [("look", ToolOutcome.SUCCESS), ("wait", ToolOutcome.INTERRUPTED)] == [
        (part.tool_name, part.outcome) for part in answered
    ]


async def test_a_tool_whose_run_was_taken_away_before_is_not_run(bench: Bench, serve: Serve, conversation: str) -> None:
    effects: list[str] = []

    @tool
    def charge() -> None:
        """Charge."""
        effects.append("charged")

    play = await open_play(bench, serve, conversation, hold="begin_call", hold_answer=False, tools=[charge])
    ticket = await play.submit("A")
    (await play.stage.call(1)).use(("call_1", "charge", "{}"))
    await play.barrier.until_reached()

    await play.client.interrupt(conversation)
    play.barrier.release()
    result = await ticket.result(BOUND)

    outcomes = [code(part.output) for part in told(result)]
    assert ([], ["INTERRUPTED"]) == (effects, outcomes)


async def test_a_result_whose_run_was_taken_away_meanwhile_is_discarded(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    hold = Barrier("hold", BOUND)
    effects: list[str] = []

    @tool
    async def charge() -> str:
        """Charge, and take a while to say so."""
        effects.append("charged")
        try:
            await hold.wait()
        except asyncio.CancelledError:
            return "charged all the same"
        return "charged"

    await serve(calling([Call("charge")], charge))
    client = bench.client()
    ticket = await client.submit(conversation, "hi")
    await hold.until_reached()
    await client.interrupt(conversation)
    result = await ticket.result(BOUND)

    answered = told(result)
    assert (["charged"], [ToolOutcome.INTERRUPTED]) == (effects, [part.outcome for part in answered])
    assert ["INTERRUPTED"] == [code(part.output) for part in answered]


async def test_an_effect_of_an_interrupted_run_is_told_to_the_next_one_and_not_made_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    charged: list[str] = []
    stuck = asyncio.Event()

    @tool
    def charge() -> str:
        """Charge."""
        charged.append("once")
        return "charged"

    @tool
    async def hang() -> None:
        """Take for ever."""
        stuck.set()
        await asyncio.Event().wait()

    play = await open_play(bench, serve, conversation, tools=[charge, hang])
    first = await play.submit("A")
    (await play.stage.call(1)).use(("t1", "charge", "{}"), ("t2", "hang", "{}"))
    await asyncio.gather(until_answered(play.client, conversation, "charged"), stuck.wait())
    await play.client.interrupt(conversation)
    await first.result(BOUND)

    second = await play.submit("B")
    call = await play.stage.call(2)
    heard_parts = [part for message in call.request.prompt.messages for part in message.parts]
    call.answer("Yes.")
    await second.result(BOUND)

    told = {part.call_id: part for part in heard_parts if isinstance(part, ToolResultPart)}
    assert ["t1", "t2"] == list(told)
    assert ("charged", "INTERRUPTED") == (told["t1"].output, code(told["t2"].output))
    assert ["once"] == charged
