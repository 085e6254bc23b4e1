"""A deferred catalog: of a hundred tools the model is shown two, and searches for the one it needs.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import uuid

from turnlane.agent import Agent, DeferredCatalog, ScriptedModel, Tool, tool
from turnlane.agent.models import Action, Call, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-catalog"
CITIES = ["lima", "oslo", "rome", *(f"city-{number}" for number in range(97))]


def weather_of(city: str) -> Tool:
    """Make the weather tool of a city."""

    def weather(day: str) -> str:
        return f"{day} in {city}: sunny"

    return tool(name=f"weather_{city}", description=f"The weather in {city}.", read_only=True)(weather)


def script(request: ScriptedRequest) -> list[Action]:
    """Play a model that looks for a tool, uses it, and tells what it was shown."""
    shown = ", ".join(spec.name for spec in request.prompt.tools)
    print(f"step {request.step + 1} offers {shown}")
    if request.step == 0:
        return [Call("tool_search", {"query": "oslo"})]
    if request.step == 1:
        return [Call("weather_oslo", {"day": "today"})]
    return [Say("It is sunny in Oslo.")]


async def main() -> None:
    """Ask for the weather in one of a hundred cities."""
    catalog = DeferredCatalog(tools=[weather_of(city) for city in CITIES], always_on=["weather_rome"])
    agent = Agent(name="forecaster", model=ScriptedModel(script=script), catalog=catalog)
    store, bus = await open_store("catalog.db"), InProcessBus()
    client = await Turnlane.connect(store=store, bus=bus, task_queue=QUEUE)
    async with build_worker(client.temporal, store=store, agents=[agent], bus=bus, task_queue=QUEUE):
        ticket = await client.submit(f"weather-{uuid.uuid4().hex[:8]}", "What is the weather in Oslo?")
        print((await ticket.result(timeout=60)).text)
    await client.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    # The SDK's worker must be gone before the interpreter is.
    gc.collect()
