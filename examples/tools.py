"""Tools: a typed function is what a model may call, and what goes wrong in it is told to the model.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import uuid

from turnlane.agent import Agent, ScriptedModel, ToolContext, ToolError, tool
from turnlane.agent.models import Action, Call, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.records.messages import ToolResultPart
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-tools"
STOCK = {"apple": 3, "pear": 0}


@tool(read_only=True)
def in_stock(fruit: str) -> int:
    """How many there are. Read-only: a call whose worker died is made again."""
    if fruit not in STOCK:
        raise ToolError("UNKNOWN_FRUIT", "there is no such fruit here", hint=f"There are: {', '.join(STOCK)}.")
    return STOCK[fruit]


@tool(timeout=10)
async def order(fruit: str, count: int, ctx: ToolContext) -> dict[str, str]:
    """Order some. Has an effect: a call whose worker died is not made again, the model is told OUTCOME_UNKNOWN.

    The key is the same for every attempt of this call: pass it on to services that know such keys.
    """
    return {"ordered": f"{count} {fruit}", "key": ctx.idempotency_key}


def script(request: ScriptedRequest) -> list[Action]:
    """Play a model that makes three calls at once, the second with a mistake of its own."""
    if request.step:
        return [Say("One call went wrong, and I was told how.")]
    return [
        Call("in_stock", {"fruit": "apple"}),
        Call("in_stock", {"fruit": "stone"}),
        Call("order", {"fruit": "pear", "count": 12}),
    ]


async def main() -> None:
    """Ask once, and print what each call gave the model."""
    agent = Agent(name="greengrocer", model=ScriptedModel(script=script), tools=[in_stock, order])
    store, bus = await open_store("tools.db"), InProcessBus()
    client = await Turnlane.connect(store=store, bus=bus, task_queue=QUEUE)
    async with build_worker(client.temporal, store=store, agents=[agent], bus=bus, task_queue=QUEUE):
        ticket = await client.submit(f"tools-{uuid.uuid4().hex[:8]}", "Apples, stones, and a dozen pears, please.")
        result = await ticket.result(timeout=60)
        for part in result.message.parts if result.message else ():
            if isinstance(part, ToolResultPart):
                print(part.tool_name, part.outcome.value, part.output)
        print(result.text)
    await client.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    # The SDK's worker must be gone before the interpreter is.
    gc.collect()
