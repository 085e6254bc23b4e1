"""What a model does in a turn, and what an application makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tests.replay.recipes import ADD, QUICK, add, ended, ring, stumble, turn
from tests.replay.studio import Studio, agent, by_step
from turnlane.agent import (
    DeferredCatalog,
    ModelDescriptor,
    ModelRegistry,
    ScriptedModel,
    StopContext,
    called,
    require_output,
)
from turnlane.agent.models import Action, Call, Fail, Pause, Say, ScriptedRequest, Stop
from turnlane.records.errors import ModelRefusedError
from turnlane.records.runs import Failure, FailureClass, TerminalReason


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
async def paused(studio: Studio) -> None:
    async with studio.serving(agent(by_step([Say("Looking."), Stop("paused")], [Say("It rains.")]))) as client:
        await ended(await client.submit(studio.name, "go"))


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
