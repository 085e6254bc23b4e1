"""Agents whose model makes given calls, and what comes of these: results, outputs, and the lane's history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from tests.conftest import Bench, Serve
from tests.integration.stage import BOUND
from turnlane.agent import Agent, Tool, tool
from turnlane.agent.models import Action, Call, Say, ScriptedModel, ScriptedRequest
from turnlane.client import Result
from turnlane.records.base import Json
from turnlane.records.messages import ToolResultPart
from turnlane.records.runs import TerminalReason


def calling(calls: Sequence[Call], *tools: Tool, prompts: list[ScriptedRequest] | None = None, **options: Any) -> Agent:
    """An agent whose model makes these calls, and then has nothing to add."""

    def script(request: ScriptedRequest) -> Sequence[Action]:
        if prompts is not None:
            prompts.append(request)
        return calls if request.step == 0 else [Say("done")]

    return Agent(name="caller", model=ScriptedModel(script=script), tools=tools, **options)


async def turn(bench: Bench, serve: Serve, conversation: str, agent: Agent) -> Result:
    """One turn of a conversation with an agent."""
    await serve(agent)
    ticket = await bench.client().submit(conversation, "hi")
    return await ticket.result(BOUND)


def told(result: Result) -> list[ToolResultPart]:
    """The results of the calls of a run, however it ended."""
    assert result.message is not None
    return [part for part in result.message.parts if isinstance(part, ToolResultPart)]


def results(result: Result) -> list[ToolResultPart]:
    """The results of the calls of a run that succeeded."""
    assert TerminalReason.SUCCESS is result.reason
    return told(result)


async def outputs(bench: Bench, serve: Serve, conversation: str, calls: Sequence[Call], *tools: Tool) -> list[Any]:
    """What the calls of one step were answered, as the message tells it."""
    return [part.output for part in results(await turn(bench, serve, conversation, calling(calls, *tools)))]


def heard(request: ScriptedRequest) -> list[Json]:
    """The results that a prompt holds."""
    parts = [part for message in request.prompt.messages for part in message.parts]
    return [part.output for part in parts if isinstance(part, ToolResultPart)]


def code(output: Any) -> str | None:
    """The code of an output that is an error."""
    return output.get("error") if isinstance(output, dict) else None


async def history(bench: Bench, conversation: str) -> Sequence[HistoryEvent]:
    """The history that the lane has now."""
    handle = bench.temporal.get_workflow_handle(f"lane/{conversation}")
    return (await handle.fetch_history()).events


def scheduled(events: Sequence[HistoryEvent]) -> list[str]:
    """The types of the activities that were scheduled, in order."""
    wanted = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in events
        if event.event_type == wanted
    ]


@tool(read_only=True)
def size(text: str) -> int:
    """Count the characters of a text."""
    return len(text)
