"""Faults of a provider that are tried again: what is withdrawn, paid, asked once more, and whom the next call asks."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from tests.conftest import Bench
from tests.integration.faulty_turns import TWICE, Effects, failed, heard_until_end, ledger
from tests.integration.talks import Talks
from turnlane.agent.models import AnthropicModel, Model, OpenAIModel
from turnlane.records.events import AssistantDeltaEvent, AttemptResetEvent
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.records.usage import Provenance, UsageValue
from turnlane.testing.fault_plan import (
    CutAfter,
    DataOnly,
    Figures,
    HttpError,
    Pass,
    Reasoning,
    Step,
    StreamError,
    ToolCalls,
    ToolUse,
)
from turnlane.testing.fault_server import FaultRequest

pytestmark = pytest.mark.server


async def test_an_overload_in_mid_answer_leaves_nothing_of_the_attempt(talks: Talks, kind: type[Model]) -> None:
    fault = StreamError("overloaded_error", after=6, of=Pass("Partial", chunks=7))
    talk = await talks.open(kind, fault, Pass("the answer"))

    result = await talk.turn()
    stored = (await talk.client.messages(talk.conversation)).items

    assert (TerminalReason.SUCCESS, "the answer") == (result.reason, result.text)
    assert ["the answer"] == [message.text for message in stored if message.role == "assistant"]


@pytest.mark.parametrize("wrap", [lambda step: step, DataOnly], ids=["with event lines", "data lines only"])
async def test_a_failed_response_before_any_output_is_tried_again_and_then_named(talks: Talks, wrap: Any) -> None:
    fault = wrap(StreamError("server_is_overloaded", after=1, as_failed_response=True))
    talk = await talks.open(OpenAIModel, fault, agent={"retry": TWICE})

    result = await talk.turn()

    assert ((TerminalReason.PROVIDER_FAILURE, FailureClass.OVERLOADED), 2) == (failed(result), len(talk.bodies))
    assert result.failure is not None and result.message is not None
    assert ("server_is_overloaded", ()) == (result.failure.code, result.message.parts)


async def test_an_attempt_cut_in_a_call_is_paid_and_its_call_is_never_made(talks: Talks, bench: Bench) -> None:
    effects = Effects()
    broken = ToolCalls(
        [ToolUse("write", {"path": "lost.md"})], text="Writing.", fragments=4, usage=Figures(input_tokens=40)
    )
    whole = ToolCalls([ToolUse("write", {"path": "kept.md"})], usage=Figures(input_tokens=50))
    talk = await talks.open(
        AnthropicModel, CutAfter(events=9, of=broken), whole, Pass("done", usage=Figures(input_tokens=60)),
        tools=(effects.write,),
    )  # fmt: skip

    result = await talk.turn()

    answered = await ledger(talk, bench, LedgerKind.PROVIDER_RESPONSE)
    assert (TerminalReason.SUCCESS, "done", ["kept.md"]) == (result.reason, result.text, effects.made)
    assert [(0, 1, None), (0, 2, "tool-calls"), (1, 1, "stop")] == [
        (event["step"], event["attempt"], event["finish"]) for event in answered
    ]
    assert result.usage is not None
    assert UsageValue(value=150, provenance=Provenance.COMPUTED) == result.usage.input_tokens


async def test_a_cut_stream_is_withdrawn_before_the_next_attempt_speaks(talks: Talks, bench: Bench) -> None:
    cut = CutAfter(events=6, of=Pass("first words", chunks=5, usage=Figures(input_tokens=7)))
    talk = await talks.open(AnthropicModel, cut, Pass("the answer", usage=Figures(input_tokens=3)))

    result, heard = await heard_until_end(talk)

    (reset,) = [event for event in heard if isinstance(event, AttemptResetEvent)]
    deltas = [event for event in heard if isinstance(event, AssistantDeltaEvent)]
    assert "the answer" == "".join(event.text_delta for event in deltas if event.epoch == reset.epoch)
    assert all(heard.index(event) > heard.index(reset) for event in deltas if event.epoch == reset.epoch)
    assert (TerminalReason.SUCCESS, "the answer") == (result.reason, result.text)
    assert result.usage is not None
    assert UsageValue(value=10, provenance=Provenance.COMPUTED) == result.usage.input_tokens
    answered = await ledger(talk, bench, LedgerKind.PROVIDER_RESPONSE)
    assert [(0, 1), (0, 2)] == [(event["step"], event["attempt"]) for event in answered]


async def test_a_provider_that_names_a_time_twice_is_given_it_twice(talks: Talks, kind: type[Model]) -> None:
    busy = HttpError(429, {"retry-after": "1"})
    talk = await talks.open(kind, busy, busy, Pass("now"))

    result = await talk.turn()

    first, second, third = (request.arrived_at for request in talk.server.requests)
    assert (TerminalReason.SUCCESS, "now") == (result.reason, result.text)
    assert second - first >= 1.0 and third - second >= 1.0


async def test_a_time_may_be_a_date(talks: Talks) -> None:
    def plan(request: FaultRequest) -> Step:
        if request.number > 1:
            return Pass("now")
        return HttpError(503, {"retry-after": formatdate(time.time() + 2, usegmt=True)})

    talk = await talks.planned(OpenAIModel, plan)

    result = await talk.turn()

    first, second = (request.arrived_at for request in talk.server.requests)
    assert (TerminalReason.SUCCESS, "now") == (result.reason, result.text)
    # A date has whole seconds.
    assert second - first >= 1.0


async def test_a_step_makes_as_many_requests_as_it_has_tries(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, HttpError(500), agent={"retry": TWICE})

    result = await talk.turn()

    assert ((TerminalReason.PROVIDER_FAILURE, FailureClass.SERVER_ERROR), 2) == (failed(result), len(talk.bodies))


@pytest.mark.parametrize(
    ("status", "failure_class", "requests"),
    [(503, None, 2), (401, FailureClass.AUTHENTICATION, 1), (400, FailureClass.INVALID_REQUEST, 1)],
)
async def test_only_what_may_pass_is_tried_again(
    talks: Talks, kind: type[Model], status: int, failure_class: FailureClass | None, requests: int
) -> None:
    talk = await talks.open(kind, HttpError(status), Pass("well"))

    result = await talk.turn()

    assert (failure_class, requests) == (failed(result)[1], len(talk.bodies))


async def test_a_fallback_of_another_provider_goes_on_behind_the_calls_and_hears_no_foreign_thought(
    talks: Talks, bench: Bench
) -> None:
    effects = Effects()
    plan = (
        ToolCalls([ToolUse("write", {"path": "a"})], reasoning=Reasoning("hm, a signed thought")),
        HttpError(401),
        Pass("done"),
        Pass("hello again"),
    )
    talk = await talks.open(
        AnthropicModel,
        *plan,
        tools=(effects.write,),
        fallback=OpenAIModel,
        extra={"thinking": {"type": "enabled", "budget_tokens": 1024}},
    )

    result = await talk.turn()
    after = await talk.turn("and now")

    assert (TerminalReason.SUCCESS, "done", ["a"]) == (result.reason, result.text, effects.made)
    assert (TerminalReason.SUCCESS, "hello again") == (after.reason, after.text)
    assert ["/v1/messages", "/v1/messages", "/v1/responses", "/v1/messages"] == [
        request.path for request in talk.server.requests
    ]
    assert "signed thought" not in json.dumps(talk.bodies[2])
    asked = await ledger(talk, bench, LedgerKind.PROVIDER_REQUEST)
    assert ["test-model", "test-model", "second-model", "test-model"] == [event["model"] for event in asked]
