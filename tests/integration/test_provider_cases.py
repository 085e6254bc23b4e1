"""Whole turns that went wrong somewhere, each once: what was executed, paid, asked again, and shown."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from email.utils import formatdate
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.stage import BOUND
from tests.integration.talks import KEY_NAME, WIRES, Talk, Talks
from turnlane.agent import tool
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel
from turnlane.client import Result
from turnlane.records.events import AssistantDeltaEvent, AttemptResetEvent, Event
from turnlane.records.lane import RetryFacts
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import RefusalPart, ToolOutcome, ToolResultPart
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.records.usage import Provenance, UsageValue
from turnlane.testing.fault_plan import (
    CutAfter,
    DataOnly,
    Figures,
    HttpError,
    Length,
    Pass,
    PingsOnly,
    Reasoning,
    Refusal,
    Silent,
    Slow,
    Step,
    StreamError,
    ToolCalls,
    ToolUse,
)
from turnlane.testing.fault_server import FaultRequest

pytestmark = pytest.mark.server

TWICE = RetryFacts(max_tries=2, initial_seconds=0.01)


@pytest.fixture
async def talks(bench: Bench, serve: Serve, conversation: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Talks]:
    """Conversations with faulty providers; their servers outlive the worker."""
    monkeypatch.setenv(KEY_NAME, "sk-faults-test")
    async with AsyncExitStack() as stack:
        yield Talks(bench, serve, conversation, stack)


@pytest.fixture(params=list(WIRES.values()), ids=list(WIRES))
def kind(request: pytest.FixtureRequest) -> type[Model]:
    """Each wire protocol in turn."""
    chosen: type[Model] = request.param
    return chosen


class Effects:
    """A tool whose executions are counted."""

    def __init__(self) -> None:
        self.made: list[str] = []

        @tool
        def write(path: str) -> str:
            """Write a file."""
            self.made.append(path)
            return f"wrote {path}"

        self.write = write


def failed(result: Result) -> tuple[TerminalReason | None, FailureClass | None]:
    return result.reason, result.failure.failure_class if result.failure else None


def results(result: Result) -> list[ToolResultPart]:
    assert result.message is not None
    return [part for part in result.message.parts if isinstance(part, ToolResultPart)]


async def ledger(talk: Talk, bench: Bench, kind: LedgerKind) -> list[dict[str, Any]]:
    events = (await bench.store.read_events(talk.conversation)).items
    return [event.payload for event in events if event.kind == kind]


async def heard_until_end(talk: Talk) -> tuple[Result, list[Event]]:
    """One turn, and everything that was told of it."""
    ticket = await talk.submit("hi")
    heard = [event async for event in ticket.events()]
    return await ticket.result(BOUND), heard


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


# --- faults that are tried again ----------------------------------------------------------------


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


# --- secrets ------------------------------------------------------------------------------------

SECRET = "sk-xq7-never-to-be-seen-9"
SPOKEN = "xq8-said-by-the-user-only"


@pytest.mark.parametrize(
    "fault",
    [
        HttpError(401, body={"error": {"message": f"{SPOKEN} {SECRET}", "code": SECRET, "type": SPOKEN}}),
        HttpError(400, body={"error": {"message": SECRET, "type": "invalid_request_error"}}),
        StreamError(SECRET, after=1),
    ],
    ids=["401", "400", "in the stream"],
)
async def test_what_a_provider_echoes_is_neither_stored_nor_logged_nor_shown(
    talks: Talks,
    bench: Bench,
    kind: type[Model],
    fault: Step,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(KEY_NAME, SECRET)
    talk = await talks.open(kind, fault, agent={"retry": TWICE})

    result = await talk.turn(SPOKEN)

    history = await bench.temporal.get_workflow_handle(f"lane/{talk.conversation}").fetch_history()
    events = (await bench.store.read_events(talk.conversation)).items
    snapshot = await bench.store.load_snapshot(talk.conversation)
    shown = [
        repr(result),
        caplog.text,
        snapshot.model_dump_json(),
        *(event.model_dump_json() for event in events),
        *(str(event) for event in history.events),
    ]
    assert TerminalReason.PROVIDER_FAILURE is result.reason
    assert [] == [text for text in shown if SECRET in text]
    assert SPOKEN not in caplog.text
    assert [] == [event.kind for event in events if SPOKEN in event.model_dump_json()]


@pytest.mark.parametrize("key", ["sk-1\r\nx-injected: yes", "sk-1\nsk-2", "sk-é"])
async def test_a_key_that_is_no_header_reaches_nobody(
    talks: Talks,
    kind: type[Model],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(KEY_NAME, key)
    talk = await talks.open(kind, Pass("never"))

    result = await talk.turn()

    assert result.failure is not None
    assert ("invalid_key_characters", []) == (result.failure.code, talk.bodies)
    assert key not in caplog.text + repr(result)
