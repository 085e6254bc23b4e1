"""Policies: what an input does to the run in flight. One answer is stopped here by the next input.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import uuid

from turnlane.agent import Agent, ScriptedModel
from turnlane.agent.models import Action, Pause, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.records.events import AssistantDeltaEvent
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-policies"


def script(request: ScriptedRequest) -> list[Action]:
    """Play a model whose first answer never ends by itself."""
    is_first = len(request.prompt.messages) == 1
    return [Say("Let me begin at the very beginning. "), Pause(600)] if is_first else [Say("In short: yes.")]


async def first_words(client: Turnlane, conversation: str) -> None:
    """Wait until an answer begins."""
    async for event in client.events(conversation):
        if isinstance(event, AssistantDeltaEvent):
            return


async def main() -> None:
    """Ask, interrupt the answer when its first words are there, and queue a third question."""
    agent = Agent(name="rambler", model=ScriptedModel(script=script))
    store, bus = await open_store("policies.db"), InProcessBus()
    client = await Turnlane.connect(store=store, bus=bus, task_queue=QUEUE)
    conversation = f"policies-{uuid.uuid4().hex[:8]}"
    async with build_worker(client.temporal, store=store, agents=[agent], bus=bus, task_queue=QUEUE):
        # Who must hear the first words listens before asking.
        begun = asyncio.create_task(first_words(client, conversation))
        first = await client.submit(conversation, "Does it work? Tell me everything.")
        await begun
        second = await client.submit(conversation, "Just yes or no, please.", policy="interrupt")
        third = await client.submit(conversation, "Are you sure?")
        for ticket in (first, second, third):
            result = await ticket.result(timeout=60)
            print(f"{result.reason.value}: {result.text}")
    await client.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    # The SDK's worker must be gone before the interpreter is.
    gc.collect()
