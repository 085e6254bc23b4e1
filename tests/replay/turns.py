"""Every kind of turn that a release must be able to replay, each played once from beginning to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from tests.replay.studio import BOUND, Studio, agent, by_step
from turnlane.agent import (
    Agent,
    Compaction,
    DeferredCatalog,
    ModelDescriptor,
    ModelRegistry,
    PolicyContext,
    ScriptedModel,
    StopContext,
    SummaryContext,
    ToolContext,
    ToolError,
    called,
    require_output,
    tool,
)
from turnlane.agent.models import Action, Call, Fail, Pause, Say, Script, ScriptedRequest, Stop
from turnlane.client import Ticket, Turnlane
from turnlane.records.admissions import Policy
from turnlane.records.compaction import CompactionResult
from turnlane.records.errors import (
    AgentMismatchError,
    ApprovalDecidedError,
    IdempotencyConflictError,
    ModelRefusedError,
    RunConflictError,
)
from turnlane.records.lane import RetryFacts
from turnlane.records.prompt import Speaker
from turnlane.records.runs import Failure, FailureClass, TerminalReason

Play = Callable[[Studio], Awaitable[None]]
TURNS: dict[str, Play] = {}

QUICK = RetryFacts(max_tries=3, initial_seconds=0.05, max_seconds=0.2)


def turn(play: Play) -> Play:
    """Add a kind of turn, under its function's name."""
    TURNS[play.__name__.replace("_", "-")] = play
    return play


@tool(read_only=True)
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@tool
def ring(times: int) -> str:
    """Ring a bell."""
    return f"rang {times} times"


@tool
def stumble() -> str:
    """Fail, always."""
    raise ToolError("NOT_TODAY", "This tool never works.")


ADD = Call("add", {"left": 1, "right": 2})
HOLD_THEN_ANSWER = by_step([Call("hold")], [Say("Done.")])


async def ended(ticket: Ticket, reason: TerminalReason = TerminalReason.SUCCESS) -> None:
    """Wait for a result, and insist on how it ended: a history of something else is not worth keeping."""
    result = await ticket.result(timeout=BOUND)
    if result.reason is not reason:
        raise AssertionError(f"{ticket.conversation_id} ended {result.reason}, not {reason}")


async def answered_together(one: Ticket, other: Ticket) -> None:
    """Insist that one run answered both."""
    runs = {(await ticket.result(timeout=BOUND)).run_id for ticket in (one, other)}
    if len(runs) != 1:
        raise AssertionError(f"{one.conversation_id} was answered by {len(runs)} runs")


def slow(studio: Studio) -> Script:
    """The first model call begins and then says nothing more; every later one answers."""
    calls = iter([True])

    def script(request: ScriptedRequest) -> Sequence[Action]:
        studio.speaking.set()
        return [Say("Well,"), Pause(120.0)] if next(calls, False) else [Say("Yes.")]

    return script


# --- what a model does --------------------------------------------------------------------------


@turn
async def plain(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        for text in ("one", "two", "three"):
            await ended(await client.submit(studio.name, text))


@turn
async def one_tool(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Let me see."), ADD], [Say("3.")]), tools=[add])) as client:
        await ended(await client.submit(studio.name, "one and two?"))


@turn
async def parallel_tools(studio: Studio) -> None:
    calls = [ADD, Call("ring", {"times": 2}), Call("add", {"left": 3, "right": 4})]
    async with studio.serving(agent(by_step(calls, [Say("Done.")]), tools=[add, ring])) as client:
        await ended(await client.submit(studio.name, "go"))


@turn
async def calls_that_fail(studio: Studio) -> None:
    calls = [Call("nothing-like-it"), Call("add", "not json"), Call("add", {"left": "x"}), Call("stumble")]
    async with studio.serving(agent(by_step(calls, [Say("I tried.")]), tools=[add, stumble])) as client:
        await ended(await client.submit(studio.name, "go"))


@turn
async def cut_off(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("And then"), ADD, Stop("length")]), tools=[add])) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.PROVIDER_STOP)


@turn
async def too_many_steps(studio: Studio) -> None:
    async with studio.serving(agent(by_step([ADD]), tools=[add], max_steps=2)) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.POLICY_STOP)


@turn
async def retry(studio: Studio) -> None:
    overloaded = Failure(failure_class=FailureClass.OVERLOADED, status=529, retryable=True)

    def script(request: ScriptedRequest) -> Sequence[Action]:
        return [Say("Let me"), Fail(overloaded)] if request.attempt == 1 else [Say("Hello.")]

    async with studio.serving(agent(script, retry=QUICK)) as client:
        await ended(await client.submit(studio.name, "go"))


@turn
async def failure(studio: Studio) -> None:
    overloaded = Failure(failure_class=FailureClass.OVERLOADED, status=529, retryable=True)
    async with studio.serving(agent(by_step([Fail(overloaded)]), retry=QUICK)) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.PROVIDER_FAILURE)


@turn
async def silence(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Well,"), Pause(60.0)]), idle_timeout=0.2, retry=QUICK)) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.TIMEOUT)


@turn
async def searched_tool(studio: Studio) -> None:
    """A tool is called before it is on offer, which searches for it, and again; another is searched for."""
    calls = [ADD], [ADD, Call("tool_search", {"query": "ring"})], [Call("ring", {"times": 2})], [Say("Done.")]
    async with studio.serving(agent(by_step(*calls), catalog=DeferredCatalog(tools=[add, ring, stumble]))) as client:
        await ended(await client.submit(studio.name, "go"))


@turn
async def chosen_model(studio: Studio) -> None:
    """A model is chosen before the first word and after it, and one that does not exist is refused."""

    def model(text: str) -> ModelDescriptor:
        return ModelDescriptor(model=ScriptedModel(name=text, script=by_step([Say(text)])), context_window=1000)

    served = agent(
        by_step(), model="short", models=ModelRegistry({"short": model("Yes."), "long": model("I think so.")})
    )
    async with studio.serving(served) as client:
        await client.choose_model(studio.name, "long")
        await ended(await client.submit(studio.name, "one"))
        with suppress(ModelRefusedError):
            await client.choose_model(studio.name, "loud")
        await client.choose_model(studio.name, None)
        await ended(await client.submit(studio.name, "two"))


@turn
async def fallback(studio: Studio) -> None:
    """The first model fails for good in its second step, the second is overloaded once, the third answers."""
    overloaded = Failure(failure_class=FailureClass.OVERLOADED, status=529, retryable=True)
    refused = Failure(failure_class=FailureClass.AUTHENTICATION, status=401)
    second = ScriptedModel(name="second", script=by_step([Fail(overloaded)]))
    third = ScriptedModel(name="third", script=by_step([Say("3.")]))
    script = by_step([ADD], [Fail(refused)])
    async with studio.serving(agent(script, tools=[add], fallbacks=[second, third], retry=QUICK)) as client:
        await ended(await client.submit(studio.name, "one and two?"))


@turn
async def policy_stop(studio: Studio) -> None:
    """Judged at every boundary: the first goes on, the second stops the run."""
    calls = by_step([ADD], [Call("ring", {"times": 2})], [Say("never")])
    stopping = agent(calls, tools=[add, ring], stop_when={"rang": called("ring")}, accept=require_output())
    async with studio.serving(stopping) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.POLICY_STOP)


@turn
async def slow_judgement(studio: Studio) -> None:
    """A policy that takes longer than a local activity may is asked again, by an activity that waits for it."""
    tried = asyncio.Event()

    async def judge(context: StopContext) -> bool:
        if not tried.is_set():
            tried.set()
            await asyncio.Event().wait()
        return True

    stopping = agent(by_step([ADD]), tools=[add], stop_when={"slow": judge})
    async with studio.serving(stopping, local_seconds=0.3) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.POLICY_STOP)


@turn
async def rejected(studio: Studio) -> None:
    async with studio.serving(agent(by_step([ADD], [Say(" ")]), tools=[add], accept=require_output())) as client:
        await ended(await client.submit(studio.name, "go"), TerminalReason.OUTPUT_REJECTED)


# --- what policies do ---------------------------------------------------------------------------


@turn
async def interrupt(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        second = await client.submit(studio.name, "two")
        await studio.until_speaking()
        await client.interrupt(studio.name)
        await ended(first, TerminalReason.INTERRUPTED)
        await ended(second)


@turn
async def stop_by_signal(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await studio.until_speaking()
        await studio.lane.signal("stop")
        await ended(first, TerminalReason.INTERRUPTED)


@turn
async def interrupt_by_input(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await studio.until_speaking()
        second = await client.submit(studio.name, "two", policy=Policy.INTERRUPT)
        await ended(first, TerminalReason.INTERRUPTED)
        await ended(second)


@turn
async def interrupt_in_a_tool(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        await client.interrupt(studio.name)
        await ended(first, TerminalReason.INTERRUPTED)


@turn
async def interrupt_next(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        second = await client.submit(studio.name, "two")
        await studio.until_speaking()
        urgent = await client.submit(studio.name, "three", policy=Policy.INTERRUPT_NEXT)
        await ended(first, TerminalReason.INTERRUPTED)
        await ended(urgent)
        await ended(second)


@turn
async def supersede(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await studio.until_speaking()
        second = await client.submit(studio.name, "two", policy=Policy.SUPERSEDE)
        await ended(first, TerminalReason.SUPERSEDED)
        await ended(second)


@turn
async def inject(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        injected = await client.submit(studio.name, "two", key="two", policy=Policy.INJECT)
        studio.held.release()
        await ended(first)
        await ended(injected)
        await answered_together(first, injected)
        await answered_together(first, await client.submit(studio.name, "two", key="two"))


@turn
async def coalesced(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()], coalesce_pending=True)) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        joined = [await client.submit(studio.name, text) for text in ("two", "three")]
        studio.held.release()
        for ticket in (first, *joined):
            await ended(ticket)
        await answered_together(*joined)


@turn
async def chosen_policy(studio: Studio) -> None:
    def choose(asked: PolicyContext) -> Policy:
        return Policy.INJECT if asked.has_live_run else Policy.QUEUE

    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()], policy=choose)) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        second = await client.submit(studio.name, "two")
        studio.held.release()
        await ended(first)
        await answered_together(first, second)


# --- what callers do ----------------------------------------------------------------------------


@turn
async def cancel(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])) as client:
        first = await client.submit(studio.name, "one")
        second = await client.submit(studio.name, "two")
        await studio.held.until_reached()
        await client.cancel(studio.name, (await second.admitted()).run_id)
        studio.held.release()
        await ended(first)
        await ended(second, TerminalReason.CANCELLED)


@turn
async def abandon(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])) as client:
        first = await client.submit(studio.name, "one")
        await studio.held.until_reached()
        run_id = (await first.admitted()).run_id
        view = await studio.whole_store.load_run(studio.name, run_id)
        revision = 0 if view is None else view.run.revision
        await client.abandon(studio.name, run_id, expected_revision=revision, stale_owner=True)
        await ended(first, TerminalReason.ABANDONED)


@turn
async def wait_and_stay(studio: Studio) -> None:
    async with studio.serving(agent(HOLD_THEN_ANSWER, tools=[studio.hold()])):
        alone, other = studio.client(store=False), studio.client(store=False)
        first = await alone.submit(studio.name, "one")
        await studio.held.until_reached()
        waiting = asyncio.create_task(other.await_result(studio.name, (await first.admitted()).run_id))
        second = await other.submit(studio.name, "two")
        studio.held.release()
        await waiting
        await ended(first)
        await ended(second)
        await alone.close()
        await other.close()


@turn
async def signal_start(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one", via="signal"))
        await ended(await client.submit(studio.name, "two", via="signal"))


@turn
async def large_input(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Long.")]))) as client:
        await ended(await client.submit(studio.name, "word " * 20_000))


@turn
async def refused(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one", key="k"))
        with suppress(IdempotencyConflictError):
            await client.submit(studio.name, "another", key="k")
        with suppress(AgentMismatchError):
            await client.submit(studio.name, "two", agent="somebody-else")
        with suppress(RunConflictError):
            await client.interrupt(studio.name)
        with suppress(IdempotencyConflictError):
            await (await client.submit(studio.name, "a third", key="k", via="signal")).result(timeout=1.0)
        await ended(await client.submit(studio.name, "one", key="k"))


@turn
async def purge(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Hello.")]))) as client:
        await ended(await client.submit(studio.name, "one"))
        await client.purge(studio.name)
        await studio.lane.result()


@turn
async def shutdown(studio: Studio) -> None:
    async with studio.serving(agent(slow(studio))) as client:
        first = await client.submit(studio.name, "one")
        await client.submit(studio.name, "two")
        await studio.until_speaking()
        await studio.lane.cancel()
        await ended(first, TerminalReason.SHUTDOWN)


# --- what lanes go through ----------------------------------------------------------------------


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
