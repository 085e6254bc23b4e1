"""The wire protocols for a test: the model that speaks one, what it is asked, and what it made of a step of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from turnlane.activities.providers.base import Finish, ProviderFailure, ProviderRequest, StreamPart, TextDelta, ToolCall
from turnlane.activities.providers.registry import Providers
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel
from turnlane.records.messages import TextPart
from turnlane.records.prompt import Prompt, PromptMessage, PromptPart, Speaker, ToolSpec
from turnlane.records.usage import Usage, UsageValue
from turnlane.testing.fault_plan import Figures, Pass, Step
from turnlane.testing.fault_server import FaultServer

KEY_NAME = "WIRE_TEST_KEY"
KEY = "sk-wire-test"
LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})
REPORTED = Usage(
    input_tokens=UsageValue.reported(100),
    output_tokens=UsageValue.reported(7),
    reasoning_tokens=UsageValue.reported(3),
    cache_read_tokens=UsageValue.reported(60),
    cache_write_tokens=UsageValue.reported(30),
)
FIGURES = Figures(input_tokens=100, output_tokens=7, reasoning_tokens=3, cache_read_tokens=60, cache_write_tokens=30)


@dataclass(frozen=True)
class Wire:
    """One protocol: the model that speaks it."""

    kind: type[Model]

    def model(self, server: FaultServer, **options: Any) -> Model:
        base_url = server.anthropic_url if self.kind is AnthropicModel else server.openai_url
        return self.kind(name="test-model", base_url=base_url, api_key_env=KEY_NAME, **options)


RESPONSES, CHAT, ANTHROPIC = Wire(OpenAIModel), Wire(OpenAIChatModel), Wire(AnthropicModel)


def said(speaker: Speaker, *parts: PromptPart) -> PromptMessage:
    return PromptMessage(speaker=speaker, parts=parts)


def hello(*more: PromptMessage) -> Prompt:
    return Prompt(
        system=("be kind", "be brief"), messages=(said(Speaker.USER, TextPart(text="hi")), *more), tools=(LOOK,)
    )


def asked(model: Model, prompt: Prompt | None = None) -> ProviderRequest:
    return ProviderRequest(model, prompt or hello(), conversation_id="c", run_id="r", step=0, attempt=1)


async def read(providers: Providers, model: Model, prompt: Prompt | None = None) -> list[StreamPart]:
    return [part async for part in providers.of(model).stream(asked(model, prompt))]


async def answer(providers: Providers, wire: Wire, step: Step) -> list[StreamPart]:
    async with FaultServer([step]) as server:
        parts = await read(providers, wire.model(server))
        assert server.refusals == []
        return parts


async def failure(providers: Providers, wire: Wire, step: Step) -> ProviderFailure:
    async with FaultServer([step]) as server:
        with pytest.raises(ProviderFailure) as caught:
            await read(providers, wire.model(server))
        assert len(server.requests) == 1
        return caught.value


async def sent(providers: Providers, wire: Wire, prompt: Prompt, **options: Any) -> dict[str, Any]:
    """The request body for a prompt, which the server must not have refused."""
    async with FaultServer([Pass()]) as server:
        await read(providers, wire.model(server, **options), prompt)
        assert server.refusals == []
        return dict(server.requests[0].body)


def text_of(parts: Sequence[StreamPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


def calls_of(parts: Sequence[StreamPart]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


def finish_of(parts: Sequence[StreamPart]) -> Finish:
    last = parts[-1]
    assert isinstance(last, Finish)
    return last
