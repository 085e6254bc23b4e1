"""The scripted provider: what a script says is what a caller hears, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from turnlane.activities.providers.base import (
    Finish,
    ProviderFailure,
    ProviderRequest,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    StreamPart,
    TextDelta,
    ToolArguments,
    ToolCall,
)
from turnlane.activities.providers.registry import Providers
from turnlane.activities.providers.scripted import ScriptedProvider
from turnlane.agent.models import (
    Action,
    Call,
    Fail,
    Model,
    OpenAIModel,
    Pause,
    Say,
    ScriptedModel,
    ScriptedRequest,
    Stop,
    Think,
)
from turnlane.records.messages import TextPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import FinishReason
from turnlane.records.usage import Usage, UsageValue

PROMPT = Prompt(
    system=("be brief",), messages=(PromptMessage(speaker=Speaker.USER, parts=(TextPart(text="how are you"),)),)
)


def request_for(model: Model, step: int = 0, attempt: int = 1) -> ProviderRequest:
    return ProviderRequest(model, PROMPT, conversation_id="c", run_id="r", step=step, attempt=attempt)


async def play(*actions: Action, step: int = 0) -> list[StreamPart]:
    def script(_: ScriptedRequest) -> Sequence[Action]:
        return actions

    return [part async for part in ScriptedProvider().stream(request_for(ScriptedModel(script=script), step))]


async def finish_of(*actions: Action) -> Finish:
    last = (await play(*actions))[-1]
    assert isinstance(last, Finish)
    return last


async def failure_of(*actions: Action) -> Failure:
    with pytest.raises(ProviderFailure) as caught:
        await play(*actions)
    return caught.value.failure


async def test_text_is_streamed_in_chunks_between_start_and_finish() -> None:
    parts = await play(Say("hello there", chunk=6))

    assert [ResponseStarted, TextDelta, TextDelta, Finish] == [type(part) for part in parts]
    assert ["hello ", "there"] == [part.text for part in parts if isinstance(part, TextDelta)]


async def test_thinking_is_a_closed_reasoning_part() -> None:
    parts = await play(Think("hm", chunk=1))

    assert [ReasoningStart(), ReasoningDelta("h"), ReasoningDelta("m"), ReasoningEnd()] == parts[1:-1]


async def test_calls_get_ids_from_step_and_place_and_end_the_step_for_tools() -> None:
    parts = await play(Call("look", {"q": 1}), Call("look", "{broken"), Call("look", call_id="mine"), step=3)

    expected = [
        ToolCall("call_3_0", "look", '{"q": 1}'),
        ToolCall("call_3_1", "look", "{broken"),
        ToolCall("mine", "look", "{}"),
    ]
    assert expected == [part for part in parts if isinstance(part, ToolCall)]
    assert ToolArguments(size=8) == parts[1]
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is FinishReason.TOOL_CALLS


async def test_usage_counts_words_in_and_out_as_reported() -> None:
    finish = await finish_of(Say("fine thank you"))

    assert Usage(input_tokens=UsageValue.reported(5), output_tokens=UsageValue.reported(3)) == finish.usage


async def test_a_stop_ends_the_stream_for_its_reason_and_nothing_follows() -> None:
    parts = await play(Say("cut", chunk=3), Stop("length"), Say("never"))

    assert ["cut"] == [part.text for part in parts if isinstance(part, TextDelta)]
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is FinishReason.LENGTH


async def test_a_scripted_failure_is_raised_with_the_usage_until_then() -> None:
    overloaded = Failure(failure_class=FailureClass.OVERLOADED, retryable=True)

    with pytest.raises(ProviderFailure) as caught:
        await play(Say("one two"), Fail(overloaded))

    assert overloaded == caught.value.failure
    assert caught.value.usage is not None
    assert caught.value.usage.output_tokens == UsageValue.reported(2)


async def test_an_unknown_stop_reason_fails_the_call() -> None:
    failure = await failure_of(Stop("whenever"))

    assert (FailureClass.APPLICATION, "unknown_finish_reason") == (failure.failure_class, failure.code)


async def test_a_script_that_raises_fails_the_call_and_nothing_else() -> None:
    def script(_: ScriptedRequest) -> Sequence[Action]:
        raise LookupError("no such line")

    with pytest.raises(ProviderFailure) as caught:
        await anext(aiter(ScriptedProvider().stream(request_for(ScriptedModel(script=script)))))

    assert "script_raised" == caught.value.failure.code


async def test_a_script_sees_step_and_attempt() -> None:
    def script(asked: ScriptedRequest) -> Sequence[Action]:
        return [Say(f"{asked.step}/{asked.attempt}", chunk=99)]

    stream = ScriptedProvider().stream(request_for(ScriptedModel(script=script), step=2, attempt=5))
    parts = [part async for part in stream]

    assert TextDelta("2/5") == parts[1]


async def test_a_pause_ends_when_the_reader_is_cancelled() -> None:
    begun = asyncio.Event()

    def script(_: ScriptedRequest) -> Sequence[Action]:
        begun.set()
        return [Pause(3600)]

    async def read() -> list[StreamPart]:
        return [part async for part in ScriptedProvider().stream(request_for(ScriptedModel(script=script)))]

    reading = asyncio.create_task(read())
    await begun.wait()

    reading.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_the_registry_gives_one_adapter_per_provider_and_opens_it_once() -> None:
    opened: list[ScriptedProvider] = []

    def factory() -> ScriptedProvider:
        opened.append(ScriptedProvider())
        return opened[-1]

    providers = Providers({"scripted": factory})
    model = ScriptedModel(script=lambda _: [])

    assert providers.of(model) is providers.of(model)
    assert len(opened) == 1
    await providers.aclose()
    assert providers.of(model) is opened[1]


def test_the_registry_refuses_a_provider_that_nobody_speaks() -> None:
    class Strange(Model):
        provider = "strange"

    with pytest.raises(ProviderFailure) as caught:
        Providers().of(Strange(name="m"))

    assert (FailureClass.MODEL_UNAVAILABLE, "unknown_provider", False) == (
        caught.value.failure.failure_class,
        caught.value.failure.code,
        caught.value.failure.retryable,
    )


async def test_a_model_without_a_script_cannot_be_played() -> None:
    with pytest.raises(ProviderFailure) as caught:
        await anext(aiter(ScriptedProvider().stream(request_for(OpenAIModel(name="m")))))

    assert "not_a_script" == caught.value.failure.code
