"""Prepared steps: what the application changes before a step reaches the model, in that step and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.looping import MARK, leap, look, requests, scripted, turn
from turnlane.agent import Agent
from turnlane.agent.models import Action, Call, Say, ScriptedModel, ScriptedRequest
from turnlane.agent.step_input import StepInput, StepOverrides
from turnlane.records.messages import ToolResultPart
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server


async def test_what_a_step_changes_reaches_the_model_and_the_steps_behind_it(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    heard: list[tuple[tuple[Any, ...], list[str]]] = []
    shown: list[StepInput] = []

    def script(request: ScriptedRequest) -> Sequence[Action]:
        heard.append((request.prompt.system, [spec.name for spec in request.prompt.tools]))
        return [Say("so")] if request.step == 2 else [Call("look")]

    def prepare(step: StepInput) -> StepOverrides | None:
        shown.append(step)
        return StepOverrides(instructions="Be brief.", active_tools=["look"]) if step.step_number == 1 else None

    agent = Agent(
        name="actor",
        model=ScriptedModel(script=script),
        instructions="Be kind.",
        tools=[look, leap],
        prepare_step=prepare,
    )

    result = await turn(bench, serve, conversation, agent)

    both = ["look", "leap"]
    assert TerminalReason.SUCCESS is result.reason
    assert [(("Be kind.",), both), (("Be brief.",), ["look"]), (("Be brief.",), both)] == heard
    assert [0, 1, 2] == [len(step.steps) for step in shown]
    assert shown[0].context_usage is None
    assert all(step.context_usage for step in shown[1:])


async def test_a_tool_that_is_not_on_offer_in_a_step_is_not_run(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = scripted(
        [Call("look"), Call("leap")], [Say("so")], prepare_step=lambda step: StepOverrides(active_tools=["leap"])
    )

    result = await turn(bench, serve, conversation, agent)

    assert result.message is not None
    outputs = [part.output for part in result.message.parts if isinstance(part, ToolResultPart)]
    assert isinstance(outputs[0], dict)
    assert ("INACTIVE_TOOL", "leapt") == (outputs[0]["error"], outputs[1])


async def test_a_step_that_cannot_be_prepared_fails_the_run_and_is_not_tried_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    tried: list[int] = []

    def prepare(step: StepInput) -> None:
        tried.append(step.step_number)
        raise KeyError(MARK)

    fallback = ScriptedModel(name="second", script=lambda request: [Say("never")])
    agent = scripted([Say("never")], prepare_step=prepare, fallbacks=[fallback])

    result = await turn(bench, serve, conversation, agent)

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert ("PREPARE_STEP_FAILED", [0], 0) == (result.failure.code, tried, await requests(bench, conversation))
