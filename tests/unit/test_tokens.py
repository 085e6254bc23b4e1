"""Token counters: an application's function, tiktoken's encodings, and nothing that is made up."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import tiktoken

from turnlane.agent import CountSource, ProviderCounter, TextCounter, TiktokenCounter, TokenCount, TokenCounter
from turnlane.agent.models import OpenAIModel
from turnlane.records.messages import TextPart, ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker, ToolSpec
from turnlane.records.tokens import UNKNOWN_COUNT

MODEL = OpenAIModel(name="no-such-model")
PROMPT = Prompt(
    system=("Be kind.",),
    messages=(
        PromptMessage(speaker=Speaker.USER, parts=(TextPart(text="two words"),)),
        PromptMessage(
            speaker=Speaker.ASSISTANT, parts=(ToolCallPart(call_id="a", tool_name="look", input={"at": "it"}),)
        ),
        PromptMessage(
            speaker=Speaker.TOOL,
            parts=(ToolResultPart(call_id="a", tool_name="look", outcome=ToolOutcome.SUCCESS, output={"seen": 1}),),
        ),
    ),
    tools=(ToolSpec(name="look", description="Look at it.", parameters={"type": "object"}),),
)
TEXTS = ["Be kind.", "two words", "look", '{"at":"it"}', '{"seen":1}', "look", "Look at it.", '{"type":"object"}']


def bytewise() -> tiktoken.Encoding:
    """An encoding with one token for each byte."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    return tiktoken.Encoding(name="bytewise", pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={"<|end|>": 256})


async def test_a_function_is_asked_for_every_text_that_a_model_reads() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return len(text)

    counted = await TextCounter(count).count(MODEL, PROMPT)

    assert TEXTS == asked
    assert TokenCount(value=sum(map(len, TEXTS)), source=CountSource.ESTIMATED) == counted


async def test_a_function_may_measure_and_may_be_asynchronous() -> None:
    async def count(text: str) -> TokenCount:
        return TokenCount(value=2, source=CountSource.MEASURED)

    assert TokenCount(value=2, source=CountSource.COMPUTED) == await TextCounter(count).count(
        MODEL, Prompt(system=("a",))
    )


async def test_a_function_that_gives_no_whole_number_is_refused() -> None:
    wrong: Any = lambda text: 3.5  # noqa: E731
    with pytest.raises(TypeError):
        await TextCounter(wrong).count(MODEL, PROMPT)


async def test_tiktoken_counts_with_the_encoding_it_is_given() -> None:
    counted = await TiktokenCounter(bytewise()).count(MODEL, Prompt(system=("é<|end|>",)))

    assert TokenCount(value=2 + len("<|end|>"), source=CountSource.ESTIMATED) == counted


async def test_a_model_that_tiktoken_does_not_know_is_unknown() -> None:
    assert UNKNOWN_COUNT == await TiktokenCounter().count(MODEL, PROMPT)


async def test_an_encoding_that_cannot_be_fetched_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> tiktoken.Encoding:
        raise ConnectionError

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)

    assert UNKNOWN_COUNT == await TiktokenCounter("cl100k_base").count(MODEL, PROMPT)


def test_an_encoding_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no-such-encoding"):
        TiktokenCounter("no-such-encoding")


def test_without_its_extra_the_counter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ModuleNotFoundError, match=r"turnlane\[tokens\]"):
        TiktokenCounter()


async def test_a_provider_is_asked_by_a_worker_only() -> None:
    assert UNKNOWN_COUNT == await ProviderCounter().count(MODEL, PROMPT)


@pytest.mark.parametrize("counter", [ProviderCounter(), TextCounter(len), TiktokenCounter(bytewise())])
def test_each_is_a_counter(counter: object) -> None:
    assert isinstance(counter, TokenCounter)
