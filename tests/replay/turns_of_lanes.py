"""What lanes go through: rests, fresh histories, waits, losses, compactions and approvals."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tests.integration.stage import BOUND
from tests.replay.recipes import ADD, add, ended, slow, turn
from tests.replay.studio import Studio, agent, by_step
from turnlane.agent import Agent, Compaction, SummaryContext, ToolContext, tool
from turnlane.agent.models import Action, Call, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.records.admissions import Policy
from turnlane.records.compaction import CompactionResult
from turnlane.records.errors import ApprovalDecidedError
from turnlane.records.prompt import Speaker
from turnlane.records.runs import TerminalReason


@turn
async def labelled(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")])), search_attributes=True) as client:
        await ended(await client.submit(studio.name, "one"))


@turn
async def idle_close(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")])), idle_close_seconds=1.0) as client:
        await ended(await client.submit(studio.name, "one"))
        await studio.remember()
        await studio.lane.result()
        await ended(await client.submit(studio.name, "two"))
        await studio.remember()
        await studio.lane.result()


@turn
async def continue_between_runs(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")])), events_between_runs=30) as client:
        tickets = [await client.submit(studio.name, str(number), key=str(number)) for number in range(6)]
        for ticket in tickets:
            await ended(ticket)
        await ended(await client.submit(studio.name, "0", key="0"))
        await studio.client(store=False).await_result(studio.name, (await tickets[0].admitted()).run_id)


@turn
async def continue_between_steps(studio: Studio) -> None:
    script = by_step(*[[ADD]] * 6, [Say("21.")])
    async with studio.serving(agent(script, tools=[add]), events_between_runs=40, events_between_steps=40) as client:
        await ended(await client.submit(studio.name, "go"))
        await ended(await client.submit(studio.name, "again"))


@tool(durable=True)
async def nap(ctx: ToolContext) -> str:
    """Sleep longer than a worker would wait, and say so."""
    await ctx.sleep(2.2)
    return "slept"


@tool(durable=True)
async def hear(ctx: ToolContext, of: str) -> str:
    """Wait for word of something."""
    return f"heard {await ctx.wait_for('word', of)}"


@turn
async def sleeping_tool(studio: Studio) -> None:
    script = by_step([Call("nap"), ADD], [Say("Slept.")])
    async with studio.serving(agent(script, tools=[nap, add])) as client:
        await ended(await client.submit(studio.name, "one"))


@turn
async def waiting_tools(studio: Studio) -> None:
    """Two calls wait side by side; one word comes by update, one by signal, and one that nobody waits for."""
    calls = [Call("hear", {"of": "a"}), ADD, Call("hear", {"of": "b"})]
    async with studio.serving(agent(by_step(calls, [Say("Heard.")]), tools=[hear, add])) as client:
        ticket = await client.submit(studio.name, "one")
        await studio.until_ended("hear", 2)
        await client.deliver(studio.name, "word", "b", 2)
        await studio.until_ended("hear", 3)
        await client.deliver(studio.name, "word", "c")
        await studio.lane.signal("deliver", {"event": "word", "id": "a", "payload": 1})
        await ended(ticket)


@turn
async def waiting_tool_moves(studio: Studio) -> None:
    """The lane moves to a fresh history while a tool waits; later the run is interrupted while another one does."""
    settings = {"events_between_runs": 40, "events_between_steps": 40}
    script = by_step([Call("hear", {"of": "a"})], [Call("hear", {"of": "never"})])
    async with studio.serving(agent(script, tools=[hear]), **settings) as client:
        ticket = await client.submit(studio.name, "one")
        await studio.until_ended("hear", 1)
        for number in range(12):
            await client.submit(studio.name, f"later {number}", policy=Policy.INJECT)
        await studio.until_moved()
        await client.deliver(studio.name, "word", "a", 1)
        await studio.until_ended("hear", 2)
        await client.interrupt(studio.name)
        await ended(ticket, TerminalReason.INTERRUPTED)


@turn
async def store_outage(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one"))
        studio.store.is_broken = True
        ticket = await client.submit(studio.name, "two", via="signal")
        await studio.store.until_refused(5)
        studio.store.is_broken = False
        await ended(ticket)


@turn
async def lost_lane(studio: Studio) -> None:
    """The workflow is terminated in mid-run; the next input opens the lane again, and the run goes on."""
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await studio.until_speaking()
        await studio.remember()
        await studio.lane.terminate("the recording needs a lost lane")
        second = await client.submit(studio.name, "two")
        await ended(first)
        await ended(second)


@turn
async def superseded_lane(studio: Studio) -> None:
    """Another incarnation took the conversation; what only this one heard of is carried into the next."""
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one"))
        await studio.whole_store.open_lane(studio.name, "another incarnation", None)
        await ended(await client.submit(studio.name, "two", via="signal"))


@turn
async def superseded_lane_with_a_page(studio: Studio) -> None:
    """The same, with more signals than travel: they go by way of the store."""
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one"))
        studio.store.is_broken = True
        tickets = [await client.submit(studio.name, word * 11_000, via="signal") for word in ("two", "six")]
        await studio.store.until_refused(1)
        await studio.whole_store.open_lane(studio.name, "another incarnation", None)
        studio.store.is_broken = False
        for ticket in tickets:
            await ended(ticket)


def summing_up(**options: Any) -> Compaction:
    """A compaction whose summary says how many messages it replaces."""

    async def summarize(context: SummaryContext) -> dict[str, str]:
        return {"goal": f"{len(context.messages)} messages"}

    return Compaction(summarize=summarize, **options)


@turn
async def compacted(studio: Studio) -> None:
    """A conversation that is summed up before its third run, and once more because somebody asks."""
    actor = agent(by_step([Say("Yes.")]), compaction=summing_up(turns=2))
    async with studio.serving(actor) as client:
        for number in range(3):
            await ended(await client.submit(studio.name, f"Question {number}."))
        reply = await client.compact(studio.name, force=True)
        if reply.outcome is not CompactionResult.APPLIED:
            raise AssertionError(f"the compaction ended {reply.outcome}")


def gated(**options: Any) -> Agent:
    """An agent that asks for two calls that wait for approval and one that does not, and then is done."""

    def script(request: ScriptedRequest) -> Sequence[Action]:
        if request.prompt.messages[-1].speaker is Speaker.TOOL:
            return [Say("Done.")]
        return [ADD, Call("pay", {"sum": 5}, call_id="p1"), Call("pay", {"sum": 6}, call_id="p2")]

    @tool(approval="user-approval")
    def pay(sum: int) -> str:
        """Pay."""
        return f"paid {sum}"

    return agent(script, tools=[add, pay], **options)


async def approval_ids(client: Turnlane, name: str) -> list[str]:
    """What waits for approval."""
    return [each.approval_id for each in await client.pending_approvals(name)]


@turn
async def approved(studio: Studio) -> None:
    """A question about two calls, answered by update and by signal; a third answer comes too late."""
    async with studio.serving(gated()) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.PROVIDER_STOP)
        first, second = await approval_ids(client, studio.name)
        await ended(await client.respond(studio.name, first, True, responder="ann"), TerminalReason.PROVIDER_STOP)
        await ended(await client.respond(studio.name, second, True, via="signal"))
        with suppress(ApprovalDecidedError):
            await client.respond(studio.name, first, False)


@turn
async def denied(studio: Studio) -> None:
    """A question that waits through an unrelated turn and a rest of its lane, and is denied then."""
    async with studio.serving(gated(), idle_close_seconds=0.1) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.PROVIDER_STOP)
        first, second = await approval_ids(client, studio.name)
        await studio.lane.result()
        await studio.remember()
        await ended(await client.respond(studio.name, first, False, reason="no"), TerminalReason.PROVIDER_STOP)
        await ended(await client.respond(studio.name, second, False))


@turn
async def approved_in_a_fresh_history(studio: Studio) -> None:
    """The lane moves to a fresh history between the question and the answer."""
    async with studio.serving(gated(), events_between_runs=5) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.PROVIDER_STOP)
        for approval_id in await approval_ids(client, studio.name):
            await (await client.respond(studio.name, approval_id, True)).result(timeout=BOUND)
