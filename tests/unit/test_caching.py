"""Cache marks: where a provider's breakpoints stand, and who never hears of them."""

from __future__ import annotations

from typing import Any

import pytest

from turnlane.activities.providers.anthropic_prompt import anthropic_request
from turnlane.activities.providers.openai_chat import chat_request
from turnlane.activities.providers.openai_responses import responses_request
from turnlane.activities.providers.wording import extra_fields
from turnlane.activities.turn import plain_turn
from turnlane.agent import Agent, Instructions, PromptCache, RenderedSection, SystemText
from turnlane.agent.models import AnthropicModel, OpenAIChatModel, OpenAIModel
from turnlane.records.base import JsonObject
from turnlane.records.messages import TextPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker, ToolSpec

MARK: JsonObject = {"cache_control": {"type": "ephemeral"}}
USER = PromptMessage(speaker=Speaker.USER, parts=(TextPart(text="hi"),))
LOOK, SEE = (ToolSpec(name=name, description=name, parameters={"type": "object"}) for name in ("look", "see"))


def instructions(*sections: tuple[str, Any]) -> Instructions:
    rendered = tuple(
        RenderedSection(name=text, stability=stability, role="system", text=text) for text, stability in sections
    )
    return Instructions("\n\n".join(section.text for section in rendered), rendered)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ([("A", "stable"), ("B", "dynamic")], [("A", True), ("B", False)]),
        ([("A", "stable"), ("B", "stable"), ("C", "dynamic"), ("D", "dynamic")], [("A\n\nB", True), ("C\n\nD", False)]),
        ([("A", "dynamic"), ("B", "stable")], [("A\n\nB", True)]),
        ([("A", "dynamic")], [("A", False)]),
    ],
)
def test_the_mark_stands_behind_the_last_stable_section(sections: Any, expected: list[tuple[str, bool]]) -> None:
    adapted = PromptCache().adapt(instructions(*sections))

    assert expected == [(each.text, each.options is not None) for each in adapted]
    assert all(each.options in (None, {"anthropic": MARK}) for each in adapted)


def test_what_is_not_marked_is_left_as_it_is() -> None:
    cache = PromptCache(instructions=False, tools=False, conversation=False, key=None)

    assert (SystemText(text="A\n\nB"),) == cache.adapt(instructions(("A", "stable"), ("B", "dynamic")))
    assert (LOOK, SEE) == cache.marked_tools([LOOK, SEE])
    assert {} == cache.request_options("helper", "c-1")


def marked_prompt(cache: PromptCache) -> Prompt:
    return Prompt(
        system=cache.adapt(instructions(("A", "stable"), ("B", "dynamic"))),
        messages=(USER,),
        tools=cache.marked_tools([LOOK, SEE]),
        options=cache.request_options("helper", "c-1"),
    )


def test_anthropic_is_sent_the_marks() -> None:
    model, prompt = AnthropicModel(name="m"), marked_prompt(PromptCache(ttl="1h"))
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}

    body = anthropic_request(model, prompt)

    assert [{"type": "text", "text": "A", **mark}, {"type": "text", "text": "B"}] == body["system"]
    assert [False, True] == ["cache_control" in tool for tool in body["tools"]]
    assert mark == extra_fields(model, prompt, body)


@pytest.mark.parametrize("model", [OpenAIModel(name="m"), OpenAIChatModel(name="m")], ids=["responses", "chat"])
def test_openai_is_sent_a_key_and_no_marks(model: OpenAIModel | OpenAIChatModel) -> None:
    prompt = marked_prompt(PromptCache())

    body = responses_request(model, prompt) if isinstance(model, OpenAIModel) else chat_request(model, prompt)

    assert ["prompt_cache_key"] == list(extra_fields(model, prompt, body))
    assert "cache_control" not in str(body)


def test_a_key_is_that_of_a_conversation_or_of_the_agent_and_names_neither() -> None:
    def key(cache: PromptCache, conversation_id: str) -> Any:
        return cache.request_options("helper", conversation_id)["openai"]["prompt_cache_key"]

    assert key(PromptCache(), "c-1") == key(PromptCache(), "c-1") != key(PromptCache(), "c-2")
    assert key(PromptCache(key="agent"), "c-1") == key(PromptCache(key="agent"), "c-2")
    assert "c-1" not in key(PromptCache(), "c-1")
    assert len(key(PromptCache(), "c-1")) <= 64


def test_a_models_own_extra_has_the_last_word() -> None:
    model = OpenAIModel(name="m", extra={"prompt_cache_key": "mine"})

    assert {"prompt_cache_key": "mine"} == extra_fields(model, marked_prompt(PromptCache()), {})


def test_a_chat_system_message_with_options_is_a_content_part() -> None:
    breakpoint_: JsonObject = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    prompt = Prompt(system=(SystemText(text="A", options={"openai-chat": breakpoint_}), "B"), messages=(USER,))

    body = chat_request(OpenAIChatModel(name="m"), prompt)

    assert [
        {"role": "system", "content": [{"type": "text", "text": "A", **breakpoint_}]},
        {"role": "system", "content": "B"},
    ] == body["messages"][:2]


@pytest.mark.parametrize("wrong", [{"ttl": "2h"}, {"key": "user"}])
def test_marks_that_there_are_not_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one of"):
        PromptCache(**wrong)


def test_constant_instructions_are_marked_and_nothing_is_prepared_for_that() -> None:
    agent = Agent(name="a", model=AnthropicModel(name="m"), instructions="Be kind.", cache=PromptCache())

    assert (SystemText(text="Be kind.", options={"anthropic": MARK}),) == plain_turn(agent).instructions
    assert not agent.prepares


def test_no_instructions_are_not_marked() -> None:
    agent = Agent(name="a", model=AnthropicModel(name="m"), cache=PromptCache())

    assert (SystemText(text=""),) == plain_turn(agent).instructions
