"""Files: an upload is kept in the store, and the model gets it; records hold a reference.

Needs a Temporal server: TEMPORAL_ADDRESS, else 127.0.0.1:7233, where `./run dev` has one.
"""

from __future__ import annotations

import asyncio
import gc
import uuid

from turnlane.agent import Agent, ScriptedModel, Upload
from turnlane.agent.models import Action, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.records.errors import FileRefusedError
from turnlane.records.messages import FilePart, TextPart
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

QUEUE = "example-files"
NOTES = Upload(data=b"Water the fern on Monday.", media_type="text/plain", filename="notes.txt")


def script(request: ScriptedRequest) -> list[Action]:
    """Play a model that repeats what it was given."""
    given = [part.text for part in request.prompt.messages[-1].parts if isinstance(part, TextPart)]
    return [Say(" | ".join(line for text in given for line in text.splitlines()))]


async def main() -> None:
    """Send a file with a question, and one that is not what it says it is."""
    agent = Agent(name="reader", model=ScriptedModel(script=script))
    store, bus = await open_store("files.db"), InProcessBus()
    client = await Turnlane.connect(store=store, bus=bus, task_queue=QUEUE)
    conversation = f"files-{uuid.uuid4().hex[:8]}"
    async with build_worker(client.temporal, store=store, agents=[agent], bus=bus, task_queue=QUEUE):
        ticket = await client.submit(conversation, [TextPart(text="What is to be done?"), NOTES])
        print((await ticket.result(timeout=60)).text)
        [said, _] = (await client.messages(conversation)).items
        print([part.filename for part in said.parts if isinstance(part, FilePart)])
        try:
            await client.submit(conversation, [Upload(data=b"no picture", media_type="image/png")])
        except FileRefusedError as error:
            print(error.code, error.details["reason"])
    await client.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    # The SDK's worker must be gone before the interpreter is.
    gc.collect()
