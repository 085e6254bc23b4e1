"""A worker as a process of its own, so that a test may kill, freeze or stop it.

What its agent does follows from the text of the input, and what it did is written, a line each, to files in a
folder that outlives the process: `model` has a line for each model call, `charge` and `look` one for each effect,
`operator` one for each operator event.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from pydantic import JsonValue
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.chaos.everything import StrictProvider, everything_agents, note_in
from tests.integration.stage import until
from turnlane.activities.operator_sink import OperatorSink
from turnlane.activities.providers.base import ProviderRequest, StreamPart
from turnlane.activities.providers.registry import Providers
from turnlane.activities.providers.scripted import ScriptedProvider
from turnlane.agent import Agent, Compaction, SummaryContext, Tool, tool
from turnlane.agent.models import Action, Call, Pause, Say, ScriptedModel, ScriptedRequest
from turnlane.agent.tools import ToolContext
from turnlane.records.lane import LaneSettings
from turnlane.records.messages import TextPart, ToolResultPart
from turnlane.store.bus_socket import SocketBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

FOR_EVER = 3600.0
HOLD = "hold"


class Place(TypedDict):
    """Where a worker works."""

    target: str
    store: str
    bus: str
    task_queue: str
    folder: str
    cast: str
    settings: dict[str, Any]


def note(folder: Path, name: str, line: str) -> None:
    """Append a line to a file, whole, whatever happens to the process afterwards."""
    note_in(folder)(name, line)


# --- what the agent says ------------------------------------------------------------------------


def _stream(request: ScriptedRequest) -> Sequence[Action]:
    """Talk and talk; the second attempt answers."""
    if request.attempt == 1:
        return [Say("words that are lost " * 2_000, chunk=10, delay=0.05)]
    return [Say("the answer")]


def _between(request: ScriptedRequest) -> Sequence[Action]:
    """Call a tool, and get stuck before the next one is called."""
    if request.step == 0:
        return [Call("charge")]
    if request.step == 1:
        return [Say("next"), Pause(FOR_EVER)] if request.attempt == 1 else [Call("charge")]
    return [Say("charged twice")]


def _tools(request: ScriptedRequest) -> Sequence[Action]:
    """Call two tools that get stuck, and repeat what they answered."""
    if request.step == 0:
        return [Call("charge_and_hang"), Call("look_and_hang")]
    return [Say(json.dumps(_told(request)))]


def _durable(request: ScriptedRequest) -> Sequence[Action]:
    """Call a durable tool that gets stuck between what it records, and repeat what it answered."""
    if request.step == 0:
        return [Call("ship")]
    return [Say(json.dumps(_told(request)))]


def _approval(request: ScriptedRequest) -> Sequence[Action]:
    """Call a tool that waits for approval and then gets stuck, and repeat what it answered."""
    told = _told(request)
    return [Say(json.dumps(told))] if told else [Call("pay_and_hang")]


def _told(request: ScriptedRequest) -> list[JsonValue]:
    """What tools answered so far."""
    parts = [part for message in request.prompt.messages for part in message.parts]
    return [part.output for part in parts if isinstance(part, ToolResultPart)]


def _soak(request: ScriptedRequest) -> Sequence[Action]:
    """An ordinary turn that takes a while."""
    if request.step == 0:
        return [Say("let me see about that", chunk=2, delay=0.02), Call("charge")]
    return [Say("here is the answer", chunk=2, delay=0.02)]


SCENES: dict[str, Callable[[ScriptedRequest], Sequence[Action]]] = {
    "stream": _stream,
    "between": _between,
    "tools": _tools,
    "durable": _durable,
    "approval": _approval,
    "soak": _soak,
}


def _scene(request: ScriptedRequest) -> Callable[[ScriptedRequest], Sequence[Action]]:
    texts = [part.text for message in request.prompt.messages for part in message.parts if isinstance(part, TextPart)]
    return next(SCENES[text] for text in reversed(texts) if text in SCENES)


class HeldProvider(ScriptedProvider):
    """Plays scripts, but no second attempt while a file named `hold` is in the folder."""

    def __init__(self, folder: Path) -> None:
        self._hold = folder / HOLD

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        if request.attempt > 1:
            await until(self._is_released, FOR_EVER)
        async for part in super().stream(request):
            yield part

    async def _is_released(self) -> bool:
        return not self._hold.exists()


# --- what the agent does ------------------------------------------------------------------------


def _effects(folder: Path) -> list[Tool]:
    """Tools whose effects must not happen twice."""

    @tool
    def charge(ctx: ToolContext) -> str:
        """Have an effect."""
        note(folder, "charge", ctx.idempotency_key)
        return "charged"

    @tool
    async def charge_and_hang(ctx: ToolContext) -> None:
        """Have an effect, and never say so."""
        note(folder, "charge", ctx.idempotency_key)
        await asyncio.Event().wait()

    @tool(approval="user-approval")
    async def pay_and_hang(ctx: ToolContext) -> None:
        """Have an effect that somebody approved, and never say so."""
        note(folder, "pay", ctx.idempotency_key)
        await asyncio.Event().wait()

    return [charge, charge_and_hang, pay_and_hang]


def _look(folder: Path) -> Tool:
    @tool(read_only=True)
    async def look_and_hang(ctx: ToolContext) -> str:
        """Look; the first look takes for ever."""
        note(folder, "look", ctx.idempotency_key)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "seen"

    return look_and_hang


def _ship(folder: Path) -> Tool:
    def done(name: str) -> str:
        note(folder, name, str(os.getpid()))
        return name

    @tool(durable=True)
    async def ship(ctx: ToolContext) -> list[str]:
        """Pack, hand over, and post; the first try gets stuck in the middle of the handing over."""

        async def hand_over() -> str:
            note(folder, "hand_over", ctx.call_id)
            await asyncio.Event().wait()
            return "never said"

        packed = await ctx.step("pack", lambda: done("pack"))
        handed = await ctx.effect("hand_over", run=hand_over, reconcile=lambda: None)
        return [packed, handed.status, await ctx.step("post", lambda: done("post"))]

    return ship


def _compaction(folder: Path) -> Compaction:
    async def summarize(context: SummaryContext) -> dict[str, str]:
        """Sum up; the first summary takes for ever."""
        is_first = not (folder / "summary").exists()
        note(folder, "summary", str(os.getpid()))
        if is_first:
            await asyncio.Event().wait()
        return {"goal": f"{len(context.messages)} messages"}

    return Compaction(summarize=summarize)


def chaos_agent(folder: Path) -> Agent:
    """The agent of the chaos tests; what it does is written to `folder`."""

    def script(request: ScriptedRequest) -> Sequence[Action]:
        note(folder, "model", f"{os.getpid()} {request.run_id} {request.step} {request.attempt}")
        return _scene(request)(request)

    return Agent(
        name="chaos",
        model=ScriptedModel(script=script),
        tools=[*_effects(folder), _look(folder), _ship(folder)],
        idle_timeout=None,
        checkpoint_every=2,
        compaction=_compaction(folder),
    )


# --- the process --------------------------------------------------------------------------------


def _cast(name: str, folder: Path) -> tuple[list[Agent], ScriptedProvider]:
    """Who is served, and by which provider."""
    if name == "everything":
        return everything_agents(folder), StrictProvider(note_in(folder))
    return [chaos_agent(folder)], HeldProvider(folder)


async def serve(place: Place) -> None:
    """Work until SIGTERM, then finish what can be finished at once and hand back the rest."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await Client.connect(place["target"], data_converter=pydantic_data_converter)
    store, bus, folder = await open_store(place["store"]), SocketBus(Path(place["bus"])), Path(place["folder"])
    agents, provider = _cast(place["cast"], folder)
    worker = build_worker(
        client,
        store=store,
        agents=agents,
        bus=bus,
        task_queue=place["task_queue"],
        providers=Providers({"scripted": lambda: provider}),
        settings=LaneSettings.model_validate(place["settings"]),
        operator_events=OperatorSink(lambda event: note(folder, "operator", event.model_dump_json())),
        graceful_seconds=0.5,
    )
    async with worker:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stop.wait()
    await bus.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
    gc.collect()  # a worker that is collected during interpreter shutdown can crash it
