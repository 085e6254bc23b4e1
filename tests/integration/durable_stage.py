"""A stage for durable tools: a body that counts what it did, and waits until it was left."""

from __future__ import annotations

from typing import Any

from temporalio.api.enums.v1 import EventType

from tests.conftest import Bench
from tests.integration.calling import history, told
from tests.integration.stage import until
from turnlane.agent import Tool, tool
from turnlane.agent.models import Call
from turnlane.agent.tools import ToolContext
from turnlane.client import Result, Ticket, Turnlane


async def begin(bench: Bench, conversation: str) -> tuple[Turnlane, Ticket]:
    """Submit an input."""
    client = bench.client()
    return client, await client.submit(conversation, "go")


def outputs(result: Result) -> list[Any]:
    """What the calls were answered."""
    return [part.output for part in told(result)]


async def until_suspended(bench: Bench, conversation: str, count: int = 1) -> None:
    """Wait until that many tries of tools ended, so that no worker has them any more."""

    async def suspended() -> bool:
        return await ended_calls(bench, conversation) >= count

    await until(suspended)


async def ended_calls(bench: Bench, conversation: str) -> int:
    """How many activities of the lane's present history have ended, those of the model left out."""
    events = await history(bench, conversation)
    names = {
        event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name
        for event in events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    }
    done = [
        event.activity_task_completed_event_attributes.scheduled_event_id
        for event in events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    ]
    return sum(names[number] != "provider_step" for number in done)


class Counted:
    """How often each part of a tool body was run."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, name: str) -> int:
        self.counts[name] = self.counts.get(name, 0) + 1
        return self.counts[name]


def approve_tool(counted: Counted) -> Tool:
    """A tool that orders, waits for a word from outside, and confirms."""

    @tool(durable=True)
    async def approve(ctx: ToolContext) -> dict[str, Any]:
        """Order, wait, confirm."""
        counted.add("body")
        order = await ctx.step("order", lambda: counted.add("order"))
        word = await ctx.wait_for("approved", "order-1")
        await ctx.step("confirm", lambda: counted.add("confirm"))
        return {"order": order, "word": word}

    return approve


APPROVE = [Call("approve", call_id="call_1")]
