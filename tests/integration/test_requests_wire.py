"""What the wire adapters send through the real SDKs: a local server refuses what the provider would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.wires import ANTHROPIC, CHAT, FIGURES, LOOK, RESPONSES, Wire, calls_of, hello, read, said, sent
from turnlane.activities.projection import project
from turnlane.activities.providers.base import Finish, ReasoningDelta, ReasoningEnd, StreamPart, ToolCall
from turnlane.activities.providers.registry import Providers
from turnlane.records.base import ProviderEnvelope
from turnlane.records.messages import ReasoningPart, TextPart, ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.records.prompt import Prompt, PromptFile, Speaker
from turnlane.records.usage import CostValue, Provenance
from turnlane.testing.fault_plan import Pass, Reasoning, ToolCalls, ToolUse
from turnlane.testing.fault_server import FaultServer
from turnlane.testing.wire_chat import ROUTED_TO


def reasoning_part(parts: Sequence[StreamPart]) -> ReasoningPart:
    """The reasoning of a stream as a conversation keeps it: through JSON and back."""
    text = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    (end,) = [part for part in parts if isinstance(part, ReasoningEnd)]
    return ReasoningPart.model_validate_json(ReasoningPart(text=text, provider=end.provider).model_dump_json())


def tool_round(reasoning: ReasoningPart, call: ToolCall) -> Prompt:
    made = ToolCallPart(call_id=call.call_id, tool_name=call.name, input=json.loads(call.arguments))
    result = ToolResultPart(call_id=call.call_id, tool_name=call.name, outcome=ToolOutcome.SUCCESS, output="seen")
    return hello(said(Speaker.ASSISTANT, reasoning, made), said(Speaker.TOOL, result))


@pytest.mark.parametrize(
    ("protocol", "redacted"), [(RESPONSES, None), (ANTHROPIC, None), (ANTHROPIC, "hidden")], ids=str
)
async def test_reasoning_goes_back_unchanged_with_its_call(
    providers: Providers, protocol: Wire, redacted: str | None
) -> None:
    thought = Reasoning("  hm, ünïcode \n", redacted=redacted)
    async with FaultServer([ToolCalls([ToolUse("look", {"at": "a"})], reasoning=thought), Pass()]) as server:
        parts = await read(providers, protocol.model(server))

        await read(providers, protocol.model(server), tool_round(reasoning_part(parts), calls_of(parts)[0]))

        assert [] == server.refusals
        assert _reasoning_kinds(server.requests[1].body) != []


def _reasoning_kinds(body: Any) -> list[str]:
    items = body.get("input") or [block for message in body["messages"] for block in message["content"]]
    kinds = [item.get("type") for item in items if isinstance(item, dict)]
    return [kind for kind in kinds if kind in ("reasoning", "thinking", "redacted_thinking")]


async def test_foreign_and_unsigned_reasoning_is_not_sent(providers: Providers, wire: Wire) -> None:
    foreign = ProviderEnvelope(provider="elsewhere", data={"type": "thinking", "thinking": "x", "signature": "y"})
    unsigned = ProviderEnvelope(provider="anthropic", data={"type": "thinking", "thinking": "x"})
    spoken = said(
        Speaker.ASSISTANT,
        ReasoningPart(text="private", provider=foreign),
        ReasoningPart(text="private", provider=unsigned if wire is ANTHROPIC else foreign),
        ReasoningPart(text="private"),
        TextPart(text="so"),
    )

    body = await sent(providers, wire, hello(spoken, said(Speaker.USER, TextPart(text="and"))))

    assert "private" not in json.dumps(body)
    assert "thinking" not in json.dumps(body)


async def test_broken_arguments_odd_ids_and_empty_outputs_are_sent_as_legal_ones(
    providers: Providers, wire: Wire
) -> None:
    odd = "call.1|x"
    prompt = hello(
        said(Speaker.ASSISTANT, ToolCallPart(call_id=odd, tool_name="no such tool", input='{"at": ')),
        said(
            Speaker.TOOL,
            ToolResultPart(call_id=odd, tool_name="no such tool", outcome=ToolOutcome.SUCCESS, output=" "),
        ),
    )

    body = json.dumps(await sent(providers, wire, prompt))

    assert "invalid_arguments" in body
    assert "(no output)" in body


async def test_results_stand_first_in_the_next_user_message(providers: Providers) -> None:
    call = ToolCallPart(call_id="1", tool_name="look", input={})
    result = ToolResultPart(call_id="1", tool_name="look", outcome=ToolOutcome.INTERRUPTED, output=None)
    prompt = hello(
        said(Speaker.ASSISTANT, call),
        said(Speaker.TOOL, result),
        said(Speaker.USER, TextPart(text="one")),
        said(Speaker.USER, TextPart(text="two")),
    )

    messages = (await sent(providers, ANTHROPIC, prompt))["messages"]

    assert ["user", "assistant", "user"] == [message["role"] for message in messages]
    assert ["tool_result", "text", "text"] == [block["type"] for block in messages[-1]["content"]]
    assert {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": "interrupted",
        "is_error": True,
    } == messages[-1]["content"][0]


async def test_files_are_sent_where_the_provider_can_have_them_and_named_where_not(
    providers: Providers, wire: Wire
) -> None:
    prompt = Prompt(
        messages=(
            said(
                Speaker.USER,
                TextPart(text="see"),
                PromptFile(media_type="image/png", url="https://files.test/a.png"),
                PromptFile(media_type="image/png", url="data:image/png;base64,aGk="),
                PromptFile(media_type="image/png", file_id="secret-id", provider="elsewhere", filename="b.png"),
            ),
        )
    )

    body = json.dumps(await sent(providers, wire, prompt))

    assert "https://files.test/a.png" in body
    assert "aGk=" in body
    assert "[attachment: b.png]" in body
    assert "secret-id" not in body


async def test_limits_and_extras_reach_the_request(providers: Providers, wire: Wire) -> None:
    body = await sent(providers, wire, hello(), max_output_tokens=321, extra={"temperature": 0.5})

    assert 0.5 == body["temperature"]
    assert 321 in (body.get("max_tokens"), body.get("max_output_tokens"))


async def test_nothing_is_stored_at_the_provider_and_reasoning_comes_encrypted(providers: Providers) -> None:
    body = await sent(providers, RESPONSES, hello())

    assert (False, ["reasoning.encrypted_content"]) == (body["store"], body["include"])


async def test_a_projected_history_is_accepted(providers: Providers, wire: Wire) -> None:
    prompt = project((), taken=(), instructions="be kind", tools=(LOOK,), step=0)

    body = await sent(providers, wire, prompt.model_copy(update={"messages": hello().messages}))

    assert "be kind" in json.dumps(body)


async def test_openrouter_is_asked_for_the_cost_and_names_who_answered(providers: Providers) -> None:
    figures = replace(FIGURES, cost=0.0125)
    async with FaultServer([Pass(usage=figures)]) as server:
        finish = (await read(providers, CHAT.model(server, provider_name="openrouter")))[-1]

    assert isinstance(finish, Finish)
    assert finish.usage is not None
    cost = CostValue(value=0.0125, currency="USD", provenance=Provenance.PROVIDER_REPORTED)
    assert (cost, ROUTED_TO) == (finish.usage.cost, finish.provider)
    assert {"include": True} == server.requests[0].body["usage"]


async def test_another_compatible_server_is_asked_for_nothing_beyond_the_protocol(providers: Providers) -> None:
    async with FaultServer([Pass(usage=replace(FIGURES, cost=0.0125))]) as server:
        finish = (await read(providers, CHAT.model(server, provider_name="local")))[-1]

    assert isinstance(finish, Finish)
    assert finish.usage is not None
    assert (None, None) == (finish.usage.cost, finish.provider)
    assert "usage" not in server.requests[0].body
