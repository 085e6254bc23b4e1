"""What a person sees of a lane in the Temporal UI while it waits, sums up, or has handed over to another model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import shown_details
from tests.integration.stage import BOUND, until
from turnlane.agent import Agent, Compaction, ScriptedModel, SummaryContext, ToolContext, tool
from turnlane.agent.models import Action, Call, Fail, Pause, Say, ScriptedRequest
from turnlane.records.runs import Failure, FailureClass
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server

REFUSED_KEY = Failure(failure_class=FailureClass.AUTHENTICATION, status=401)


async def until_shown(bench: Bench, conversation: str, *lines: str) -> None:
    """Wait until the details show all these lines."""

    async def shown() -> bool:
        details = await shown_details(bench, conversation)
        return all(line in details for line in lines)

    await until(shown)


async def test_calls_that_wait_are_named_with_what_they_wait_for(bench: Bench, serve: Serve, conversation: str) -> None:
    @tool(durable=True)
    async def sleeper(ctx: ToolContext) -> None:
        """Sleep."""
        await ctx.sleep(3600)

    @tool(durable=True)
    async def listener(ctx: ToolContext) -> None:
        """Wait for what never comes."""
        await ctx.wait_for("secret-event", "secret-id")

    def script(request: ScriptedRequest) -> Sequence[Action]:
        return [Call("sleeper"), Call("listener")]

    await serve(Agent(name="actor", model=ScriptedModel(script=script), tools=[sleeper, listener]))
    client = bench.client()
    ticket = await client.submit(conversation, "secret question")
    await until_shown(
        bench,
        conversation,
        "**running**",
        "- a call waits: `sleeper` until 20",
        "- a call waits: `listener` for an event",
    )
    details = await shown_details(bench, conversation)
    await client.interrupt(conversation)
    await ticket.result(BOUND)
    await until_shown(bench, conversation, "**idle**")

    assert "secret" not in details
    assert "a call waits" not in await shown_details(bench, conversation)


async def test_a_compaction_under_way_is_shown(bench: Bench, serve: Serve, conversation: str) -> None:
    gate = Barrier("summary")

    async def summarize(context: SummaryContext) -> dict[str, str]:
        await gate.wait()
        return {"goal": "to talk"}

    model = ScriptedModel(script=lambda request: [Say("Yes.")])
    await serve(Agent(name="actor", model=model, compaction=Compaction(turns=2, summarize=summarize)))
    client = bench.client()
    for text in ("one", "two"):
        await (await client.submit(conversation, text)).result(BOUND)
    ticket = await client.submit(conversation, "three")
    await until_shown(bench, conversation, "- the older part is being summed up")
    gate.release()
    await ticket.result(BOUND)

    assert "summed up" not in await shown_details(bench, conversation)


async def test_the_fallback_that_has_taken_over_is_named(bench: Bench, serve: Serve, conversation: str) -> None:
    own = ScriptedModel(name="own", script=lambda request: [Fail(REFUSED_KEY)])
    second = ScriptedModel(name="second", script=lambda request: [Say("Well, "), Pause(60)])
    await serve(Agent(name="actor", model=own, fallbacks=[second]))
    client = bench.client()
    ticket = await client.submit(conversation, "hello")
    await until_shown(
        bench, conversation, "- fallback 1 of 1 has taken over: `second`", "- last failure: `authentication`"
    )
    await client.interrupt(conversation)

    assert "interrupted" == (await ticket.result(BOUND)).reason
