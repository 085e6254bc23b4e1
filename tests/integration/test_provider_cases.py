"""Answers that are not whole, calls in fragments, and silence: what was executed, paid, and shown."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.integration.faulty_turns import Effects, failed, results
from tests.integration.stage import BOUND
from tests.integration.talks import Talks
from turnlane.agent import tool
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel
from turnlane.records.messages import RefusalPart, ToolOutcome
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.records.usage import Provenance, UsageValue
from turnlane.testing.fault_plan import (
    Figures,
    Length,
    Pass,
    PingsOnly,
    Refusal,
    Silent,
    Slow,
    Step,
    ToolCalls,
    ToolUse,
)

pytestmark = pytest.mark.server


# --- answers that are not whole -----------------------------------------------------------------


async def test_calls_at_the_output_limit_are_told_so_and_none_of_them_runs(talks: Talks, kind: type[Model]) -> None:
    effects = Effects()
    calls = [ToolUse("write", {"path": "whole.md"}), ToolUse("write", {"path": "cut.md", "content": "long"})]
    cut = Length(calls=calls, usage=Figures(input_tokens=20, output_tokens=9))
    talk = await talks.open(kind, cut, Pass("sorry"), tools=(effects.write,))

    result = await talk.turn()
    requests = len(talk.bodies)
    await talk.turn("go on")

    assert ((TerminalReason.PROVIDER_STOP, FailureClass.TRUNCATED), 1) == (failed(result), requests)
    assert ([], [ToolOutcome.ERROR] * 2) == (effects.made, [part.outcome for part in results(result)])
    assert ["OUTPUT_TRUNCATED"] * 2 == [
        part.output["error"] for part in results(result) if isinstance(part.output, dict)
    ]
    assert result.usage is not None
    assert UsageValue(value=20, provenance=Provenance.COMPUTED) == result.usage.input_tokens
    assert 2 == json.dumps(talk.bodies[1]).count("OUTPUT_TRUNCATED")


@pytest.mark.parametrize(
    ("chosen", "code"),
    [(OpenAIModel, "max_output_tokens"), (OpenAIChatModel, "length"), (AnthropicModel, "max_tokens")],
)
async def test_a_limit_is_named_in_the_providers_own_word(talks: Talks, chosen: type[Model], code: str) -> None:
    talk = await talks.open(chosen, Length("as far as"))

    result = await talk.turn()

    assert result.failure is not None
    assert (code, chosen.provider, "as far as") == (result.failure.code, result.failure.provider, result.text)


async def test_a_limit_reached_in_thought_ends_the_turn_and_the_next_input_is_answered(
    talks: Talks, kind: type[Model]
) -> None:
    extra = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if kind is AnthropicModel else {}
    talk = await talks.open(kind, Length(reasoning="thinking and thinking"), Pass("so"), extra=extra)

    first = await talk.turn()
    started = time.monotonic()
    second = await talk.turn("well?")

    assert (TerminalReason.PROVIDER_STOP, FailureClass.TRUNCATED) == failed(first)
    assert (TerminalReason.SUCCESS, "so", 2) == (second.reason, second.text, len(talk.bodies))
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize(
    ("chosen", "step", "code"),
    [
        (OpenAIModel, Refusal(), "content_filter"),
        (OpenAIModel, Refusal("I will not."), "refusal"),
        (OpenAIChatModel, Refusal(), "content_filter"),
        (OpenAIChatModel, Refusal("I will not."), "refusal"),
        (AnthropicModel, Refusal(category="bio"), "bio"),
        (AnthropicModel, Refusal("I will not.", category="cyber"), "cyber"),
    ],
)
async def test_a_refusal_is_shown_with_its_category_and_not_said_again(
    talks: Talks, chosen: type[Model], step: Refusal, code: str
) -> None:
    talk = await talks.open(chosen, step, Pass("hello"))

    refused = await talk.turn()
    requests = len(talk.bodies)
    after = await talk.turn("hi again")

    assert ((TerminalReason.PROVIDER_STOP, FailureClass.REFUSED), 1) == (failed(refused), requests)
    assert refused.failure is not None and refused.message is not None
    assert (code, "") == (refused.failure.code, refused.text)
    assert (RefusalPart(text=step.text, category=code),) == refused.message.parts
    assert (TerminalReason.SUCCESS, "hello") == (after.reason, after.text)
    assert "I will not." not in json.dumps(talk.bodies[1])
    view = await talk.client.run(talk.conversation, refused.run_id)
    assert view is not None
    assert refused.failure == view.run.failure


# --- calls in fragments -------------------------------------------------------------------------


async def test_two_calls_under_one_index_are_two_calls(talks: Talks) -> None:
    effects = Effects()
    calls = [ToolUse("write", {"path": "a"}, "call_a"), ToolUse("write", {"path": "b"}, "call_b")]
    talk = await talks.open(OpenAIChatModel, ToolCalls(calls, same_index=True), Pass("done"), tools=(effects.write,))

    result = await talk.turn()

    assert (["call_a", "call_b"], ["wrote a", "wrote b"]) == (
        [part.call_id for part in results(result)],
        [part.output for part in results(result)],
    )
    assert ["a", "b"] == sorted(effects.made)


async def test_interleaved_calls_are_answered_in_their_order_whoever_ends_first(
    talks: Talks, kind: type[Model]
) -> None:
    late = asyncio.Event()

    @tool
    async def run(p: str) -> str:
        """Run."""
        if p == "x":
            await late.wait()
        late.set()
        return f"ran {p}"

    calls = ToolCalls([ToolUse("run", {"p": "x"}, "a"), ToolUse("run", {"p": "y"}, "b")], fragments=2, interleaved=True)
    talk = await talks.open(kind, calls, Pass("done"), tools=(run,))

    result = await talk.turn()

    assert [("a", "ran x"), ("b", "ran y")] == [(part.call_id, part.output) for part in results(result)]
    sent = json.dumps(talk.bodies[1])
    assert sent.index("ran x") < sent.index("ran y")


# --- silence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("silence", [PingsOnly(), Silent()], ids=["pings only", "not a byte"])
async def test_a_provider_without_words_is_given_up(talks: Talks, kind: type[Model], silence: Step) -> None:
    talk = await talks.open(kind, silence, agent={"idle_timeout": 0.3})

    result = await talk.turn()
    async with asyncio.timeout(BOUND):
        await talk.server.requests[0].finished.wait()

    assert ((TerminalReason.TIMEOUT, FailureClass.TIMEOUT), True) == (
        failed(result),
        talk.server.requests[0].client_left,
    )


async def test_a_slow_answer_that_goes_on_is_not_cut(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, Slow(0.05, Pass("word by word", chunks=12)), agent={"idle_timeout": 0.5})

    result = await talk.turn()

    assert (TerminalReason.SUCCESS, "word by word") == (result.reason, result.text)
