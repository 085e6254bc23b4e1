import asyncio
import gc
from pathlib import Path

from turnlane.agent import Agent, ScriptedModel, tool
from turnlane.agent.models import Call, Say
from turnlane.client.dev_config import DevConfig
from turnlane.client.stack import Stack


@tool(read_only=True)
def add(a: int, b: int) -> int:
    "The sum of two numbers."
    return a + b


def script(request):  # an offline model; AnthropicModel(name="...") and OpenAIModel(name="...") are real ones
    return [Say("2 and 3 make 5.")] if request.step else [Call("add", {"a": 2, "b": 3})]


async def main():
    agent = Agent(name="adder", model=ScriptedModel(script=script), tools=[add])
    async with Stack(DevConfig.throwaway(Path("quickstart")), agents=[agent]) as stack:
        ticket = await (await stack.client()).submit("sums", "How much is 2 and 3?")
        print((await ticket.result()).text)


asyncio.run(main())
gc.collect()
