"""Step overrides: what a step may change, for how long, and what of it a retried step forgets."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from turnlane.activities.failing import ApplicationFailedError
from turnlane.activities.providers.base import ProviderFailure
from turnlane.activities.step_overrides import Overridden, StepOverriding, carried, instructions_of
from turnlane.agent import Agent, ScriptedModel
from turnlane.agent.step_input import ContextOverflowError, PrepareStep, StepInput, StepOverrides
from turnlane.records.messages import TextPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker, SystemText, ToolSpec
from turnlane.records.runs import FailureClass, Run, RunState
from turnlane.records.steps import Fence, StepRequest
from turnlane.records.turns import PreparedTurn, StepOverride
from turnlane.store.payloads import RunContext

NOW = datetime(2030, 1, 2, tzinfo=UTC)
MARK = "xq7-never-to-be-seen-9"
FIRST = ScriptedModel(name="first", script=lambda request: [])
OTHER = ScriptedModel(name="other", script=lambda request: [])
TURN = PreparedTurn(instructions=(SystemText(text="be brief"),))


def said(text: str, speaker: Speaker = Speaker.USER) -> PromptMessage:
    return PromptMessage(speaker=speaker, parts=(TextPart(text=text),))


def projected(*texts: str) -> Prompt:
    """A prompt of these messages, with two tools, and a summary behind the instructions."""
    speakers = (Speaker.USER, Speaker.ASSISTANT)
    messages = tuple(said(text, speakers[place % 2]) for place, text in enumerate(texts))
    tools = tuple(ToolSpec(name=name, description="", parameters={"type": "object"}) for name in ("look", "leap"))
    return Prompt(system=("be brief", "so far: nothing"), messages=messages, tools=tools)


def overriding(
    prepare: PrepareStep, *, step: int = 0, turn: PreparedTurn = TURN, model: int = 0, used: int | None = None
) -> StepOverriding:
    fence = Fence(conversation_id="c", epoch=1, run_id="r", token=1, step=step, attempt=1)
    request = StepRequest(agent="a", fence=fence, assistant_message_id="out", model=model, used_tokens=used)
    run = Run(
        id="r",
        conversation_id="c",
        input_message_ids=("m",),
        assistant_message_id="out",
        state=RunState.RUNNING,
        revision=1,
        admission_order=1,
        created_at=NOW,
        updated_at=NOW,
    )
    agent = Agent(name="a", model=FIRST, prepare_step=prepare)
    context = RunContext(run=run, agent="a", tenant="t", context={"k": 1}, metadata=None)
    return StepOverriding(agent, request, context, turn)


async def changed(given: StepOverrides | None, **options: Any) -> Overridden:
    return await overriding(lambda step: given, **options).apply(FIRST, projected("hi"), ())


def texts(prompt: Prompt) -> list[str]:
    return [part.text for message in prompt.messages for part in message.parts if isinstance(part, TextPart)]


async def test_a_step_that_changes_nothing_is_sent_as_it_is_and_leaves_nothing() -> None:
    step = await changed(None)

    assert Overridden(model=FIRST, prompt=projected("hi")) == step


async def test_a_step_is_shown_what_would_be_sent() -> None:
    shown: list[StepInput] = []
    await overriding(lambda step: shown.append(step), used=321).apply(FIRST, projected("hi"), ())

    (step,) = shown
    assert ("c", "r", 0, 321, {"k": 1}, "t") == (
        step.conversation_id,
        step.run_id,
        step.step_number,
        step.context_usage,
        step.context,
        step.tenant,
    )
    assert (("look", "leap"), TURN.instructions, projected("hi").messages) == (
        step.tools,
        step.instructions,
        step.messages,
    )


async def test_instructions_replace_the_runs_own_and_leave_what_the_history_carries() -> None:
    step = await changed(StepOverrides(instructions="be long"))

    assert ("be long", "so far: nothing") == step.prompt.system
    assert step.turn is not None
    assert (SystemText(text="be long"),) == instructions_of(step.turn, 1)
    assert TURN.instructions == instructions_of(step.turn, 0)


async def test_a_model_and_active_tools_hold_for_one_step() -> None:
    step = await changed(StepOverrides(model=OTHER, active_tools=["leap"]))

    assert (OTHER, frozenset({"leap"})) == (step.model, step.active)
    assert ["leap"] == [tool.name for tool in step.prompt.tools]
    assert step.turn is None


async def test_a_fallback_that_took_over_speaks_whatever_a_step_asks_for() -> None:
    assert FIRST is (await changed(StepOverrides(model=OTHER), model=1)).model


async def test_messages_are_carried_on_with_what_the_run_says_behind_them() -> None:
    first = await changed(StepOverrides(messages=[said("in short: hi")]))
    assert first.turn is not None

    later = carried(first.turn, 1, projected("hi", "a call", "its result"))

    assert (["in short: hi"], ["in short: hi", "a call", "its result"]) == (texts(first.prompt), texts(later))


async def test_messages_that_are_replaced_again_stand_for_all_before_them() -> None:
    first = await changed(StepOverrides(messages=[said("short")]))
    assert first.turn is not None
    prepare = overriding(lambda step: StepOverrides(messages=[said("shorter")]), step=1, turn=first.turn)
    second = await prepare.apply(FIRST, projected("hi", "a call", "a result"), ())
    assert second.turn is not None

    later = carried(second.turn, 2, projected("hi", "a call", "a result", "another"))

    assert ["shorter", "another"] == texts(later)


async def test_an_attempt_starts_from_the_steps_before_it_and_not_from_the_attempt_before() -> None:
    failed = StepOverride(step=1, instructions=(SystemText(text="of the failed attempt"),))
    turn = TURN.model_copy(update={"overrides": (failed,)})

    step = await changed(None, step=1, turn=turn)

    assert ("be brief", "so far: nothing") == step.prompt.system
    assert step.turn is not None
    assert () == step.turn.overrides


async def test_what_no_later_step_needs_is_let_go() -> None:
    past = tuple(StepOverride(step=step, instructions=(SystemText(text=str(step)),)) for step in range(5))
    turn = TURN.model_copy(update={"overrides": past})

    step = await changed(StepOverrides(instructions="new"), step=5, turn=turn)

    assert step.turn is not None
    assert [4, 5] == [kept.step for kept in step.turn.overrides]


async def test_a_step_may_be_prepared_by_a_coroutine() -> None:
    async def prepare(step: StepInput) -> StepOverrides:
        return StepOverrides(model=OTHER)

    assert OTHER is (await overriding(prepare).apply(FIRST, projected("hi"), ())).model


def raises(step: StepInput) -> StepOverrides:
    raise KeyError(MARK)


@pytest.mark.parametrize(
    "prepare",
    [
        raises,
        lambda step: {"model": OTHER},
        lambda step: StepOverrides(model="other"),  # type: ignore[arg-type]
        lambda step: StepOverrides(active_tools=["no such tool"]),
        lambda step: StepOverrides(messages=["hi"]),  # type: ignore[list-item]
        lambda step: StepOverrides(instructions=[7]),  # type: ignore[list-item]
    ],
    ids=["raises", "a dict", "a model's name", "an unknown tool", "plain text", "a number"],
)
async def test_what_an_application_does_wrong_is_its_own_fault_and_its_words_stay_out_of_logs(
    prepare: PrepareStep, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ApplicationFailedError) as failed:
        await overriding(prepare).apply(FIRST, projected("hi"), ())

    assert "PREPARE_STEP_FAILED" == failed.value.code
    assert "prepare_step of agent a failed" in caplog.text
    assert MARK not in caplog.text


async def test_a_step_may_say_that_the_conversation_does_not_fit() -> None:
    def prepare(step: StepInput) -> None:
        raise ContextOverflowError

    with pytest.raises(ProviderFailure) as failed:
        await overriding(prepare).apply(FIRST, projected("hi"), ())

    assert (FailureClass.CONTEXT_OVERFLOW, False) == (
        failed.value.failure.failure_class,
        failed.value.failure.retryable,
    )
