"""Prompts: sections, instructions in the user's name, and a history that is cut to a budget.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import uuid

from turnlane.agent import Agent, ContextBudget, PromptSection, ScriptedModel, SectionContext, TextCounter
from turnlane.agent.models import Action, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.records.messages import TextPart
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-prompt"


def greeting(context: SectionContext) -> str:
    """Say it in the first run of a conversation only."""
    return "Greet the user." if context.event == "session.started" else "Do not greet again."


def answer(request: ScriptedRequest) -> list[Action]:
    """Play a model that says what it was told."""
    parts = [part for message in request.prompt.messages for part in message.parts]
    heard = [part.text for part in parts if isinstance(part, TextPart)]
    return [Say(f"{request.prompt.system_texts[0].text.splitlines()[-1]} First: {heard[0]}")]


async def main() -> None:
    """Ask three times; for the third answer the first turn no longer fits."""
    agent = Agent(
        name="listener",
        model=ScriptedModel(script=answer),
        instructions="You listen.",
        prompt=[
            PromptSection(name="greeting", render=greeting, stability="dynamic"),
            PromptSection(name="customer", render="I am Ada.", role="user"),
        ],
        budget=ContextBudget(
            context_window=35,
            reserved_output=10,
            oversize="select",
            counter=TextCounter(lambda text: len(text.split())),
        ),
    )
    store, bus = await open_store("prompt.db"), InProcessBus()
    client = await Turnlane.connect(store=store, bus=bus, task_queue=QUEUE)
    conversation = f"prompt-{uuid.uuid4().hex[:8]}"
    async with build_worker(client.temporal, store=store, agents=[agent], bus=bus, task_queue=QUEUE):
        for number in range(1, 4):
            ticket = await client.submit(conversation, f"Question {number}")
            print((await ticket.result(timeout=60)).text)
    await client.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    # The SDK's worker must be gone before the interpreter is.
    gc.collect()
