"""The agents that are measured: offline scripts, so that a turn costs what the machinery costs."""

from __future__ import annotations

from collections.abc import Sequence

from turnlane.agent import Agent, tool
from turnlane.agent.models import Action, Call, Say, ScriptedModel, ScriptedRequest

ANSWER = "It is as you say, and here is why."
STREAM_PIECES = 100
STREAM_SECONDS = 5.0


@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _answer(request: ScriptedRequest) -> Sequence[Action]:
    return [Say(ANSWER)]


def _calls(count: int) -> Sequence[Action]:
    return [Call("add", {"a": number, "b": 1}) for number in range(count)]


def _one_tool(request: ScriptedRequest) -> Sequence[Action]:
    return _calls(1) if request.step == 0 else [Say(ANSWER)]


def _five_tools(request: ScriptedRequest) -> Sequence[Action]:
    return _calls(5) if request.step == 0 else [Say(ANSWER)]


def _stream(request: ScriptedRequest) -> Sequence[Action]:
    return [Say("delta. " * STREAM_PIECES, chunk=7, delay=STREAM_SECONDS / STREAM_PIECES)]


PLAIN = Agent(name="plain", model=ScriptedModel(script=_answer))
ONE_TOOL = Agent(name="one-tool", model=ScriptedModel(script=_one_tool), tools=[add])
FIVE_TOOLS = Agent(name="five-tools", model=ScriptedModel(script=_five_tools), tools=[add])
STREAM = Agent(name="stream", model=ScriptedModel(script=_stream))
AGENTS = (PLAIN, ONE_TOOL, FIVE_TOOLS, STREAM)
