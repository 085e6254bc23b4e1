"""A client that has only Temporal: it submits, waits and controls; what was said stays with the workers' store.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import uuid

from turnlane.agent import Agent, ScriptedModel
from turnlane.agent.models import Say
from turnlane.client import Turnlane
from turnlane.records.errors import StoreRequiredError
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-no-store"


async def converse() -> None:
    """Use a client without a store, as a program on another machine would."""
    client = await Turnlane.connect(task_queue=QUEUE)
    conversation = f"no-store-{uuid.uuid4().hex[:8]}"
    ticket = await client.submit(conversation, "Hello!")
    result = await ticket.result(timeout=60)
    print(f"{result.state.value}, {result.reason.value}")
    try:
        await client.messages(conversation)
    except StoreRequiredError as error:
        print(error.code)
    await client.close()


async def main() -> None:
    """Run a worker, which has a store, and the client beside it."""
    agent = Agent(name="greeter", model=ScriptedModel(script=lambda request: [Say("Hello to you.")]))
    store, bus = await open_store("no_store.db"), InProcessBus()
    worker = await Turnlane.connect(task_queue=QUEUE)
    async with build_worker(worker.temporal, store=store, agents=[agent], bus=bus, task_queue=QUEUE):
        await converse()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    # The SDK's worker must be gone before the interpreter is.
    gc.collect()
