"""Operator events: what whoever runs a worker is told of a turn, of its steps and of their cost.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import uuid

from turnlane.activities.operator_sink import OperatorSink
from turnlane.agent import Agent, Prices, ScriptedModel, tool
from turnlane.agent.models import Action, Call, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.records.operator_events import OperatorEvent, RunStarted, StepFinished
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-operator-events"


@tool(read_only=True)
def stock(fruit: str) -> int:
    """How many there are."""
    return len(fruit)


def script(request: ScriptedRequest) -> list[Action]:
    """Play a model that looks something up, and then tells it."""
    return [Say("There are 5.")] if request.step else [Call("stock", {"fruit": "apple"})]


def handle(event: OperatorEvent) -> None:
    """Print what is told. A real one would count, and be async if it talks to anybody."""
    if isinstance(event, RunStarted):
        print(event.type)
        return
    cost = event.usage.cost
    what = f"step {event.step} {event.phase}" if isinstance(event, StepFinished) else event.reason.value
    print(event.type, what, f"cost {cost.value} {cost.provenance}" if cost is not None else "")


async def main() -> None:
    """Have a turn answered, and see it from the operator's side."""
    model = ScriptedModel(name="script", script=script)
    agent = Agent(name="grocer", model=model, tools=[stock], prices={"script": Prices(input="500000", output="0")})
    store, bus = await open_store("operator-events.db"), InProcessBus()
    client = await Turnlane.connect(store=store, bus=bus, task_queue=QUEUE)
    async with OperatorSink(handle) as sink:
        options = {"store": store, "bus": bus, "task_queue": QUEUE, "operator_events": sink}
        async with build_worker(client.temporal, agents=[agent], **options):
            ticket = await client.submit(f"stock-{uuid.uuid4().hex[:8]}", "How many apples?")
            await ticket.result(timeout=60)
    await client.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    gc.collect()
