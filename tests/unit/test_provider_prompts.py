"""How a prompt is put for each provider, where its protocol is narrower than ours."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import JsonValue

from tests.unit.recorded import call, result, text
from turnlane.activities.providers.anthropic_prompt import anthropic_extra, anthropic_request
from turnlane.activities.providers.openai_chat import chat_request
from turnlane.activities.providers.openai_responses import responses_request
from turnlane.agent import AnthropicModel, OpenAIChatModel, OpenAIModel
from turnlane.records.base import JsonObject, ProviderEnvelope
from turnlane.records.messages import ReasoningPart
from turnlane.records.prompt import Prompt, PromptFile, PromptMessage, PromptPart, Speaker

THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1}
HI = PromptMessage(speaker=Speaker.USER, parts=(text("hi"),))
DONE = PromptMessage(speaker=Speaker.TOOL, parts=(result("1"),))


def thinking(words: str, signature: str | None = "s") -> ReasoningPart:
    data: JsonObject = {"type": "thinking", "thinking": words}
    data |= {} if signature is None else {"signature": signature}
    return ReasoningPart(text=words, provider=ProviderEnvelope(provider="anthropic", data=data))


def reasoning(item_id: str) -> ReasoningPart:
    summary: list[JsonValue] = []
    data: JsonObject = {"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": "x"}
    return ReasoningPart(text="", provider=ProviderEnvelope(provider="openai", data=data))


def assistant(*parts: PromptPart) -> PromptMessage:
    return PromptMessage(speaker=Speaker.ASSISTANT, parts=parts)


def blocks(*parts: PromptPart) -> list[str]:
    """The blocks of an assistant message at Anthropic."""
    body = anthropic_request(AnthropicModel(name="m"), Prompt(messages=(HI, assistant(*parts), DONE)))
    return [block["type"] for block in body["messages"][1]["content"]]


def items(*parts: PromptPart) -> list[str]:
    """The items of an assistant message at OpenAI."""
    body = responses_request(OpenAIModel(name="m"), Prompt(messages=(HI, assistant(*parts), DONE)))
    return [item.get("id") or item["type"] for item in body["input"][1:-1]]


def test_signed_thinking_goes_back_also_without_its_text_and_unsigned_never() -> None:
    assert ["thinking", "thinking", "tool_use"] == blocks(thinking("hm"), thinking(""), thinking("x", None), call("1"))
    assert ["thinking", "text"] == blocks(thinking("hm"), thinking("x", ""), reasoning("rs_1"), text("so"))


def test_nothing_but_calls_stands_behind_a_call_at_anthropic() -> None:
    assert ["thinking", "tool_use", "tool_use"] == blocks(thinking("a"), call("1"), thinking("b"), call("2"))


def test_reasoning_is_sent_with_what_it_led_to_or_not_at_all() -> None:
    assert ["rs_1", "function_call", "rs_2", "function_call"] == items(
        reasoning("rs_1"), call("1"), reasoning("rs_2"), call("2")
    )
    assert ["rs_2", "function_call"] == items(reasoning("rs_1"), reasoning("rs_2"), call("1"))
    assert ["function_call"] == items(thinking("hm"), call("1"), reasoning("rs_1"))


@pytest.mark.parametrize(
    ("messages", "is_on"),
    [
        ((HI,), True),
        ((HI, assistant(text("so")), HI), True),
        ((HI, assistant(thinking("hm"), call("1")), DONE), True),
        ((HI, assistant(call("1")), DONE), False),
        ((HI, assistant(reasoning("rs_1"), call("1")), DONE, HI), False),
        ((HI, assistant(call("1")), DONE, assistant(text("so")), HI), True),
    ],
    ids=["first", "no round", "own round", "foreign round", "foreign round with an injected input", "round that ended"],
)
def test_thinking_is_off_for_a_round_that_began_without_it(messages: tuple[PromptMessage, ...], is_on: bool) -> None:
    model = AnthropicModel(name="m", extra=THINKING)
    extra = anthropic_extra(model, anthropic_request(model, Prompt(messages=messages)))

    assert (THINKING if is_on else {"temperature": 1}) == extra


@pytest.mark.parametrize("extra", [{}, {"thinking": {"type": "adaptive"}}, {"thinking": None}])
def test_what_does_not_enable_thinking_stays(extra: dict[str, Any]) -> None:
    model = AnthropicModel(name="m", extra=extra)

    assert extra == anthropic_extra(model, anthropic_request(model, Prompt(messages=(HI, assistant(call("1")), DONE))))


def test_an_upload_is_named_by_its_id_where_it_is_and_by_its_name_elsewhere() -> None:
    def sent(provider: str, media_type: str) -> list[str]:
        file = PromptFile(media_type=media_type, filename="a.b", file_id="file_1", provider=provider)
        prompt = Prompt(messages=(PromptMessage(speaker=Speaker.USER, parts=(text("see"), file)),))
        bodies = (
            responses_request(OpenAIModel(name="m"), prompt),
            chat_request(OpenAIChatModel(name="m"), prompt),
            anthropic_request(AnthropicModel(name="m"), prompt),
        )
        return ["file_1" if "file_1" in str(body) else "a.b" for body in bodies]

    assert ["file_1", "a.b", "a.b"] == sent("openai", "image/png") == sent("openai", "application/pdf")
    assert ["a.b", "file_1", "a.b"] == sent("openai-chat", "application/pdf")
    assert ["a.b", "a.b", "file_1"] == sent("anthropic", "image/png") == sent("anthropic", "application/pdf")


def test_a_conversation_that_the_assistant_opened_is_opened_by_a_user_at_anthropic() -> None:
    body = anthropic_request(AnthropicModel(name="m"), Prompt(messages=(assistant(text("hello")), HI)))

    assert ["user", "assistant", "user"] == [message["role"] for message in body["messages"]]
