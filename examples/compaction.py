"""Compaction: a conversation that has become long goes on with a summary of its older part.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import json
import uuid

from turnlane.agent import Agent, Compaction, ScriptedModel
from turnlane.agent.models import Action, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-compaction"


def answer(request: ScriptedRequest) -> list[Action]:
    """Play a model that says how much of the conversation it was shown."""
    summaries = sum("Summary of" in str(text) for text in request.prompt.system)
    return [Say(f"I was shown {len(request.prompt.messages)} messages and {summaries} summaries.")]


def sum_up(request: ScriptedRequest) -> list[Action]:
    """Play the model that is asked for summaries: it answers with JSON of the schema."""
    return [Say(json.dumps({"goal": "To see what the model is shown.", "facts": ["It is told each time."]}))]


async def main() -> None:
    """Ask four times; before the fourth answer, the two oldest turns become a summary."""
    compaction = Compaction(turns=3, keep_recent_turns=1, model=ScriptedModel(script=sum_up))
    agent = Agent(name="listener", model=ScriptedModel(script=answer), compaction=compaction)
    store, bus = await open_store("compaction.db"), InProcessBus()
    client = await Turnlane.connect(store=store, bus=bus, task_queue=QUEUE)
    conversation = f"long-{uuid.uuid4().hex[:8]}"
    async with build_worker(client.temporal, store=store, agents=[agent], bus=bus, task_queue=QUEUE):
        for number in range(1, 5):
            ticket = await client.submit(conversation, f"Question {number}")
            print((await ticket.result(timeout=60)).text)
        for message in (await client.snapshot(conversation)).messages:
            print(f"{message.role.value}: {message.text.splitlines()[0]}")
    await client.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    # The SDK's worker must be gone before the interpreter is.
    gc.collect()
