"""How a prompt is put for each provider, where its protocol is narrower than ours."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import JsonValue

from tests.unit.recorded import call, result, text
from turnlane.activities.providers.anthropic_fields import anthropic_fields, binds_thinking
from turnlane.activities.providers.anthropic_prompt import anthropic_request
from turnlane.activities.providers.base import ReasoningEnd
from turnlane.activities.providers.openai_chat import chat_request
from turnlane.activities.providers.openai_responses import (
    FAILURES,
    ResponsesDecoder,
    responses_origin,
    responses_request,
)
from turnlane.agent import AnthropicModel, OpenAIChatModel, OpenAIModel
from turnlane.records.base import JsonObject, ProviderEnvelope
from turnlane.records.messages import ReasoningPart
from turnlane.records.prompt import (
    Prompt,
    PromptFile,
    PromptMessage,
    PromptPart,
    ProviderOptions,
    Speaker,
    SystemText,
    ToolSpec,
)

THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1}
HI = PromptMessage(speaker=Speaker.USER, parts=(text("hi"),))
DONE = PromptMessage(speaker=Speaker.TOOL, parts=(result("1"),))


def thinking(words: str, signature: str | None = "s") -> ReasoningPart:
    data: JsonObject = {"type": "thinking", "thinking": words}
    data |= {} if signature is None else {"signature": signature}
    return ReasoningPart(text=words, provider=ProviderEnvelope(provider="anthropic", data=data))


def envelope(data: JsonObject) -> ReasoningPart:
    return ReasoningPart(text="", provider=ProviderEnvelope(provider="anthropic", data=data))


def laid_over(model: AnthropicModel, *messages: PromptMessage) -> dict[str, Any]:
    """What goes with a request to Anthropic beside its prompt."""
    prompt = Prompt(messages=messages)
    return anthropic_fields(model, prompt, anthropic_request(model, prompt)).extra


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


def test_text_behind_a_call_moves_before_it_and_what_a_hosted_tool_left_there_goes() -> None:
    hosted = envelope({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})

    assert ["thinking", "text", "tool_use"] == blocks(thinking("a"), call("1"), hosted, text("so"))
    assert ["message", "function_call", "function_call"] == items(call("1"), text("so"), call("2"))


def test_an_answer_thought_out_between_its_calls_goes_back_as_it_came() -> None:
    said = (thinking("a"), call("1"), text("so"), thinking("b"), call("2"))

    assert ["thinking", "tool_use", "text", "thinking", "tool_use"] == blocks(*said)
    assert ["thinking", "text", "tool_use", "tool_use"] == blocks(*said[:3], thinking("b", None), call("2"))


def test_reasoning_is_sent_with_what_it_led_to_or_not_at_all() -> None:
    assert ["rs_1", "function_call", "rs_2", "function_call"] == items(
        reasoning("rs_1"), call("1"), reasoning("rs_2"), call("2")
    )
    assert ["rs_2", "function_call"] == items(reasoning("rs_1"), reasoning("rs_2"), call("1"))
    assert ["function_call"] == items(thinking("hm"), call("1"), reasoning("rs_1"))


def test_encrypted_reasoning_goes_back_to_the_address_and_account_that_gave_it_out() -> None:
    item: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    own = OpenAIModel(name="m")
    azure = OpenAIModel(name="m", base_url="https://a.example/openai/v1", api_key_env="AZURE_KEY")
    other = OpenAIModel(name="m", api_key_env="OTHER_KEY")

    def is_sent(at: OpenAIModel, to: OpenAIModel) -> bool:
        decoder = ResponsesDecoder(FAILURES, 0, responses_origin(at))
        ended = [part for part in decoder.feed({"type": "response.output_item.done", "item": item})][-1]
        assert isinstance(ended, ReasoningEnd)
        said = assistant(ReasoningPart(text="", provider=ended.provider), call("1"))
        return "rs_1" in str(responses_request(to, Prompt(messages=(HI, said, DONE))))

    models = (own, azure, other)
    assert [(True, False, False), (False, True, False), (False, False, True)] == [
        tuple(is_sent(at, to) for to in models) for at in models
    ]
    assert None is responses_origin(own)


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
    extra = laid_over(AnthropicModel(name="m", extra=THINKING), *messages)

    assert (THINKING if is_on else {"temperature": 1}) == extra


@pytest.mark.parametrize("extra", [{}, {"thinking": {"type": "adaptive"}}, {"thinking": None}])
def test_what_does_not_enable_thinking_stays(extra: dict[str, Any]) -> None:
    assert extra == laid_over(AnthropicModel(name="m", extra=extra), HI, assistant(call("1")), DONE)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claude-fable-5-1", True),
        ("anthropic/claude-opus-5.5", True),
        ("claude-haiku-5-5-20261001", True),
        ("claude-opus-6", True),
        ("claude-opus-5-20260901", False),
        ("claude-opus-5", False),
        ("claude-sonnet-4-5-20250929", False),
        ("claude-3-5-sonnet-20241022", False),
        ("gpt-5.5", False),
    ],
)
def test_which_models_tie_their_thinking_to_what_came_before_it(name: str, expected: bool) -> None:
    assert expected == binds_thinking(name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            {"type": "adaptive", "display": "omitted", "block_binding": {"prefix_mismatch_behavior": "drop_block"}},
        ),
        (
            {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}},
            {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}},
        ),
    ],
    ids=["unasked", "asked", "as the application says"],
)
def test_thoughts_that_no_longer_fit_are_left_out_by_the_provider(given: dict[str, Any], expected: Any) -> None:
    model, prompt = AnthropicModel(name="claude-opus-5-5", extra=given), Prompt(messages=(HI,))

    extra, headers = anthropic_fields(model, prompt, anthropic_request(model, prompt))

    assert expected == extra["thinking"]
    assert {"anthropic-beta": "thinking-binding-controls-2026-08-01"} == headers


def test_a_model_that_is_not_to_think_is_not_reminded_of_its_thoughts() -> None:
    model = AnthropicModel(name="claude-opus-5-5", extra={"thinking": {"type": "disabled"}})
    prompt = Prompt(messages=(HI, assistant(thinking("hm"), call("1")), DONE))
    body = anthropic_request(model, prompt)

    extra, headers = anthropic_fields(model, prompt, body)

    assert ({"thinking": {"type": "disabled"}}, {}) == (extra, headers)
    assert ["tool_use"] == [block["type"] for block in body["messages"][1]["content"]]


def test_a_conversation_with_calls_defines_the_tools_that_it_called() -> None:
    prompt = Prompt(messages=(HI, assistant(call("1"), call("2", "see"), call("3")), DONE))

    body = anthropic_request(AnthropicModel(name="m"), prompt)

    assert (["look", "see"], {"type": "none"}) == ([tool["name"] for tool in body["tools"]], body["tool_choice"])
    assert "tools" not in anthropic_request(AnthropicModel(name="m"), Prompt(messages=(HI,)))


def test_tools_of_the_providers_own_stand_beside_the_agents() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    look = ToolSpec(name="look", description="", parameters={"type": "object"})
    model, prompt = AnthropicModel(name="m", extra={"tools": [hosted]}), Prompt(messages=(HI,), tools=(look,))

    extra = anthropic_fields(model, prompt, anthropic_request(model, prompt)).extra

    assert ["look", "web_search"] == [tool["name"] for tool in extra["tools"]]
    assert model.extra == laid_over(model, HI)


def test_a_compatible_server_is_sent_one_system_message() -> None:
    def system(prompt: Prompt, base_url: str | None) -> list[Any]:
        body = chat_request(OpenAIChatModel(name="m", base_url=base_url), prompt)
        return [message["content"] for message in body["messages"] if message["role"] == "system"]

    prompt = Prompt(system=("Be kind.", " ", "Summary: x"), messages=(HI,))
    marked = prompt.model_copy(update={"system": (SystemText(text="A", options={"openai-chat": {"k": 1}}), "B")})

    assert ["Be kind.", "Summary: x"] == system(prompt, None)
    assert ["Be kind.\n\nSummary: x"] == system(prompt, "http://127.0.0.1:8000/v1")
    assert [] == system(Prompt(messages=(HI,)), "http://127.0.0.1:8000/v1")
    assert [[{"type": "text", "text": "A", "k": 1}], "B"] == system(marked, "http://127.0.0.1:8000/v1")


@pytest.mark.parametrize(("moves", "expected"), [(False, "-1234"), (True, "--234")])
def test_of_too_many_cache_points_the_first_ones_go(moves: bool, expected: str) -> None:
    mark: ProviderOptions = {"anthropic": {"cache_control": {"type": "ephemeral"}}}
    prompt = Prompt(
        system=tuple(SystemText(text=text, options=mark) for text in "1234"),
        messages=(HI,),
        tools=(ToolSpec(name="look", description="", parameters={"type": "object"}, options=mark),),
        options=mark if moves else None,
    )
    body = anthropic_request(AnthropicModel(name="m"), prompt)

    anthropic_fields(AnthropicModel(name="m"), prompt, body)

    marked = ["t" if "cache_control" in body["tools"][0] else "-"]
    assert expected == "".join(marked + [each["text"] if "cache_control" in each else "-" for each in body["system"]])


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


# --- hosted tools ---------------------------------------------------------------------------------


def search(search_id: str) -> ReasoningPart:
    return envelope({"type": "server_tool_use", "id": search_id, "name": "web_search", "input": {}})


def found(search_id: str) -> ReasoningPart:
    return envelope({"type": "web_search_tool_result", "tool_use_id": search_id, "content": []})


def turns(*messages: PromptMessage) -> list[list[str]]:
    """The blocks of each message at Anthropic."""
    body = anthropic_request(AnthropicModel(name="m"), Prompt(messages=messages))
    return [[block["type"] for block in message["content"]] for message in body["messages"]]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([assistant(search("s"), found("s"), text("so"))], ["server_tool_use", "web_search_tool_result", "text"]),
        ([assistant(text("so"), search("s")), HI], ["text"]),
        ([assistant(found("s"), text("so")), HI], ["text"]),
        ([assistant(thinking("hm"), text("so"), thinking("hm"), search("s")), HI], ["thinking", "text"]),
        ([assistant(text("so"), search("s"))], ["text", "server_tool_use"]),
        ([assistant(search("s"), call("1")), DONE], ["server_tool_use", "tool_use"]),
        ([assistant(search("s"), call("1")), DONE, HI], ["tool_use"]),
        ([assistant(search("s"), call("1")), DONE, assistant(found("s"), text("so"))], ["server_tool_use", "tool_use"]),
    ],
    ids=["pair", "no result", "no call", "thought of it", "paused", "beside a call", "given up", "ended later"],
)
def test_hosted_calls_go_with_their_results_or_where_the_provider_goes_on(
    said: list[PromptMessage], expected: list[str]
) -> None:
    assert expected == turns(HI, *said)[1]


def test_an_answer_that_consists_of_an_orphaned_search_is_not_told_at_all() -> None:
    assert [["text", "text"]] == turns(HI, assistant(search("s")), HI)


def test_words_of_the_model_that_would_stand_last_are_answered_on_every_wire() -> None:
    prompt = Prompt(messages=(HI, assistant(text("so far"))))
    going_on = "[go on]"

    assert going_on == anthropic_request(AnthropicModel(name="m"), prompt)["messages"][-1]["content"][0]["text"]
    assert going_on == chat_request(OpenAIChatModel(name="m"), prompt)["messages"][-1]["content"]
    assert going_on == responses_request(OpenAIModel(name="m"), prompt)["input"][-1]["content"][0]["text"]


def test_a_pause_at_another_provider_leaves_nothing_to_answer() -> None:
    prompt = Prompt(messages=(HI, assistant(search("s"))))

    assert ["user"] == [message["role"] for message in chat_request(OpenAIChatModel(name="m"), prompt)["messages"]]
    assert ["user"] == [item["role"] for item in responses_request(OpenAIModel(name="m"), prompt)["input"]]
