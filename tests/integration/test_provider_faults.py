"""Whole turns through a lane, with the real SDKs, against a server that speaks their formats and breaks them.

The server judges each request as the strictest provider would, so a test that ends without a refusal has
shown that what a lane projects after a fault, an interrupt or a tool call is legal.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from tests.conftest import Bench
from tests.integration.faulty_turns import heard_until_end
from tests.integration.stage import BOUND
from tests.integration.talks import WIRES, Talks, look
from turnlane.agent import tool
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel
from turnlane.client import Result
from turnlane.records.events import (
    AssistantCheckpointEvent,
    AssistantDeltaEvent,
    AttemptResetEvent,
)
from turnlane.records.messages import ReasoningPart, ToolOutcome, ToolResultPart
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.records.usage import UNAVAILABLE, UNAVAILABLE_COST, Provenance, UsageValue
from turnlane.testing.fault_plan import (
    BadJson,
    CutAfter,
    Figures,
    Gate,
    HttpError,
    Length,
    Pass,
    Reasoning,
    Step,
    StreamError,
    ToolCalls,
    ToolUse,
    UsageMissing,
)
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server

SIGNED: dict[str, type[Model]] = {name: kind for name, kind in WIRES.items() if kind is not OpenAIChatModel}
FIGURES = Figures(input_tokens=100, output_tokens=7)


def computed(value: int) -> UsageValue:
    return UsageValue(value=value, provenance=Provenance.COMPUTED)


# --- turns without a fault ----------------------------------------------------------------------


async def test_a_plain_turn(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, Pass("hello there", chunks=3, usage=FIGURES))

    result = await talk.turn()

    assert (TerminalReason.SUCCESS, "hello there") == (result.reason, result.text)
    assert 1 == len(talk.bodies)
    assert result.usage is not None
    assert (computed(100), computed(7)) == (result.usage.input_tokens, result.usage.output_tokens)


async def test_parallel_calls_in_fragments_are_run_and_answered_in_order(talks: Talks, kind: type[Model]) -> None:
    calls = [ToolUse("look", {"at": "one"}), ToolUse("look", {"at": "two"})]
    first = ToolCalls(calls, text="Let me look.", fragments=3, interleaved=True, usage=FIGURES)
    talk = await talks.open(kind, first, Pass("both", usage=FIGURES))

    result = await talk.turn()

    assert (TerminalReason.SUCCESS, "Let me look.both") == (result.reason, result.text)
    assert ["one was seen", "two was seen"] == _outputs(result)
    sent = json.dumps(talk.bodies[1])
    assert 0 < sent.index("one was seen") < sent.index("two was seen")
    assert result.usage is not None
    assert computed(200) == result.usage.input_tokens


def _outputs(result: Result) -> list[Any]:
    assert result.message is not None
    return [part.output for part in result.message.parts if isinstance(part, ToolResultPart)]


@pytest.mark.parametrize("signed", list(SIGNED.values()), ids=list(SIGNED))
async def test_signed_thinking_goes_back_byte_for_byte_in_the_next_step_and_the_next_turn(
    talks: Talks, signed: type[Model]
) -> None:
    thought = Reasoning("  hm, ünïcode \n")
    plan = (ToolCalls([ToolUse("look", {"at": "it"})], reasoning=thought), Pass("so", reasoning="and"), Pass("bye"))
    extra = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if signed is AnthropicModel else {}
    talk = await talks.open(signed, *plan, extra=extra)

    first = await talk.turn()
    second = await talk.turn("go on")

    assert (TerminalReason.SUCCESS, TerminalReason.SUCCESS) == (first.reason, second.reason)
    assert first.message is not None
    kept = [part for part in first.message.parts if isinstance(part, ReasoningPart) and part.provider is not None]
    next_step, next_turn = _thinking(talk.bodies[1]), _thinking(talk.bodies[2])
    assert (1, 2, 2) == (len(next_step), len(next_turn), len(kept))
    assert json.dumps(next_step[0]) == json.dumps(next_turn[0])
    assert "hm, ünïcode" in kept[0].text


def _thinking(body: Any) -> list[Any]:
    """The thinking in a request, as it stands there."""
    items = body.get("input") or [block for message in body["messages"] for block in message["content"]]
    return [item for item in items if isinstance(item, dict) and item.get("type") in ("reasoning", "thinking")]


# --- faults that pass ---------------------------------------------------------------------------

PASSING: dict[str, Step] = {
    "500": HttpError(500),
    "529": HttpError(529, code="overloaded_error"),
    "cut": CutAfter(events=5, of=Pass("words that are lost", chunks=9)),
    "ended early": CutAfter(events=5, of=Pass("words that are lost", chunks=9), clean=True),
    "overloaded in the stream": StreamError("overloaded_error", after=5, of=Pass("words that are lost", chunks=9)),
}


@pytest.mark.parametrize("fault", list(PASSING.values()), ids=list(PASSING))
async def test_a_fault_that_passes_costs_one_attempt(talks: Talks, kind: type[Model], fault: Step) -> None:
    talk = await talks.open(kind, fault, Pass("the answer"))

    result, heard = await heard_until_end(talk)

    assert (TerminalReason.SUCCESS, "the answer") == (result.reason, result.text)
    first, second = talk.bodies
    assert first == second
    (reset,) = [event for event in heard if isinstance(event, AttemptResetEvent)]
    after = [event.text_delta for event in heard[heard.index(reset) :] if isinstance(event, AssistantDeltaEvent)]
    assert "the answer" == "".join(after)


async def test_a_fault_after_a_tool_call_does_not_make_the_call_again(talks: Talks, kind: type[Model]) -> None:
    made: list[str] = []

    @tool
    def charge() -> str:
        """Charge."""
        made.append("charge")
        return "charged"

    plan = (ToolCalls([ToolUse("charge")]), HttpError(500), HttpError(503), Pass("done"))
    talk = await talks.open(kind, *plan, tools=(charge,))

    result = await talk.turn()

    assert (TerminalReason.SUCCESS, "done", ["charged"]) == (result.reason, result.text, _outputs(result))
    assert (["charge"], 4) == (made, len(talk.bodies))


async def test_a_provider_that_names_a_time_is_not_asked_before(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, HttpError(429, {"retry-after": "1"}), Pass("now"))

    result = await talk.turn()

    first, second = talk.server.requests
    assert (TerminalReason.SUCCESS, "now") == (result.reason, result.text)
    assert second.arrived_at - first.arrived_at >= 1.0


async def test_a_provider_that_names_a_time_twice_is_asked_three_times_and_never_before(talks: Talks) -> None:
    busy = HttpError(429, {"retry-after": "3"})
    talk = await talks.open(OpenAIModel, busy, busy, Pass("now"))

    result = await talk.turn()

    arrived = [request.arrived_at for request in talk.server.requests]
    assert (TerminalReason.SUCCESS, "now", 3) == (result.reason, result.text, len(arrived))
    assert all(later - earlier >= 3.0 for earlier, later in pairwise(arrived))


# --- lanes and workers that are lost ------------------------------------------------------------


async def test_an_answer_of_nothing_but_a_call_is_told_as_that_by_another_worker_in_another_lane(
    bench: Bench, talks: Talks, kind: type[Model]
) -> None:
    gate = Gate(of=Pass("never heard"), after=0)
    talk = await talks.open(kind, ToolCalls([ToolUse("look", {"at": "it"})]), gate, Pass("seen"), Pass("more"))
    ticket = await talk.submit("hi")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    await bench.temporal.get_workflow_handle(f"lane/{talk.conversation}").terminate()
    async with talks.another_worker():
        gate.event.set()
        again = await talk.submit("go on")
        result = await ticket.result(BOUND)
        await again.result(BOUND)

    resumed = talk.bodies[2]
    assert (TerminalReason.SUCCESS, "seen") == (result.reason, result.text)
    assert ["call"] == _said_before_the_result(resumed)


def _said_before_the_result(body: Any) -> list[str]:
    """What stands between the question and the result of the call: each a `call` or a `text`."""
    if "input" in body:
        items = body["input"]
        return ["call" if item["type"] == "function_call" else "text" for item in items[1:-1]]
    (message,) = [message for message in body["messages"] if message["role"] == "assistant"]
    if "tool_calls" in message:
        return ["text"] * bool(message.get("content")) + ["call"] * len(message["tool_calls"])
    return ["call" if block["type"] == "tool_use" else "text" for block in message["content"]]


# --- faults that stay ---------------------------------------------------------------------------


async def test_a_refused_key_ends_the_run_after_one_request(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, HttpError(401), Pass("never"))

    result = await talk.turn()

    assert TerminalReason.PROVIDER_FAILURE is result.reason
    assert result.failure is not None
    assert (FailureClass.AUTHENTICATION, 401) == (result.failure.failure_class, result.failure.status)
    assert 1 == len(talk.bodies)


async def test_an_answer_that_is_no_json_is_a_malformed_response(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, BadJson(Pass("never", chunks=3)))

    result = await talk.turn()

    assert TerminalReason.PROVIDER_FAILURE is result.reason
    assert result.failure is not None
    assert FailureClass.MALFORMED_RESPONSE is result.failure.failure_class


async def test_usage_that_was_not_reported_is_unavailable(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, UsageMissing(Pass("hello")))

    result = await talk.turn()

    assert TerminalReason.SUCCESS is result.reason
    assert result.usage is not None
    assert (UNAVAILABLE, UNAVAILABLE_COST) == (result.usage.output_tokens, result.usage.cost)


async def test_an_attempt_that_reported_nothing_makes_the_total_a_floor(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, HttpError(500), Pass("hello", usage=FIGURES))

    result = await talk.turn()

    assert result.usage is not None
    assert (computed(7), UNAVAILABLE_COST) == (result.usage.output_tokens, result.usage.cost)


async def test_an_output_limit_in_a_call_runs_nothing_and_the_next_turn_is_legal(
    talks: Talks, kind: type[Model]
) -> None:
    talk = await talks.open(kind, Length(calls=[ToolUse("look", {"at": "somewhere"})]), Pass("better"))

    cut = await talk.turn()
    after = await talk.turn("again")

    assert TerminalReason.PROVIDER_STOP is cut.reason
    assert (TerminalReason.SUCCESS, "better", 2) == (after.reason, after.text, len(talk.bodies))


# --- interrupts ---------------------------------------------------------------------------------


async def test_a_turn_after_an_interrupted_stream_is_legal(talks: Talks, kind: type[Model]) -> None:
    gate = Gate(of=Pass("words that are heard, and more", chunks=30, reasoning="hm"), after=20)
    talk = await talks.open(kind, gate, Pass("and now"))
    ticket = await talk.submit("hi")
    async for event in ticket.events():
        if isinstance(event, AssistantCheckpointEvent) and event.message.text:
            break

    await talk.client.interrupt(talk.conversation)
    cut = await ticket.result(BOUND)
    after = await talk.turn("go on")

    assert TerminalReason.INTERRUPTED is cut.reason
    assert cut.text and "words that are heard, and more".startswith(cut.text)
    assert (TerminalReason.SUCCESS, "and now", 2) == (after.reason, after.text, len(talk.bodies))
    assert cut.text in json.dumps(talk.bodies[1])
    async with asyncio.timeout(BOUND):
        await talk.server.requests[0].finished.wait()
    assert talk.server.requests[0].client_left


async def test_a_turn_after_an_interrupted_call_is_legal(talks: Talks, kind: type[Model]) -> None:
    hold = Barrier("hold", BOUND)

    @tool
    async def wait() -> None:
        """Wait until somebody says so."""
        await hold.wait()

    calls = ToolCalls([ToolUse("look", {"at": "it"}), ToolUse("wait")], reasoning=Reasoning("hm"))
    talk = await talks.open(kind, calls, Pass("and now"), tools=(look, wait))
    ticket = await talk.submit("hi")
    await hold.until_reached()

    await talk.client.interrupt(talk.conversation)
    cut = await ticket.result(BOUND)
    after = await talk.turn("go on")

    assert cut.message is not None
    outcomes = [part.outcome for part in cut.message.parts if isinstance(part, ToolResultPart)]
    assert (TerminalReason.INTERRUPTED, ToolOutcome.INTERRUPTED) == (cut.reason, outcomes[-1])
    assert (TerminalReason.SUCCESS, "and now", 2) == (after.reason, after.text, len(talk.bodies))
