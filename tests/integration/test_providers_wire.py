"""The wire adapters through the real SDKs, against a local server that speaks and breaks their formats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from turnlane.activities.projection import project
from turnlane.activities.providers.base import (
    Finish,
    Heartbeat,
    ProviderFailure,
    ProviderRequest,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    StreamPart,
    TextDelta,
    ToolArguments,
    ToolCall,
)
from turnlane.activities.providers.registry import Providers
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel
from turnlane.records.base import ProviderEnvelope
from turnlane.records.messages import ReasoningPart, TextPart, ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.records.prompt import Prompt, PromptFile, PromptMessage, PromptPart, Speaker, ToolSpec
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import FinishReason
from turnlane.records.usage import CostValue, Provenance, Usage, UsageValue
from turnlane.testing.fault_plan import (
    BadJson,
    CutAfter,
    DataOnly,
    Figures,
    Gate,
    HangUp,
    HttpError,
    Length,
    Pass,
    PingsOnly,
    Reasoning,
    Refusal,
    Step,
    StreamError,
    ToolCalls,
    ToolUse,
    UsageMissing,
)
from turnlane.testing.fault_server import FaultServer
from turnlane.testing.wire_chat import ROUTED_TO

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


@pytest.fixture(params=[RESPONSES, CHAT, ANTHROPIC], ids=["responses", "chat", "anthropic"])
def wire(request: pytest.FixtureRequest) -> Wire:
    assert isinstance(request.param, Wire)
    return request.param


@pytest.fixture
async def providers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Providers]:
    monkeypatch.setenv(KEY_NAME, KEY)
    opened = Providers()
    yield opened
    await opened.aclose()


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


async def test_text_arrives_in_pieces_with_identity_and_usage(providers: Providers, wire: Wire) -> None:
    parts = await answer(providers, wire, Pass("hello there", chunks=3, usage=FIGURES))

    finish = finish_of(parts)
    assert "hello there" == text_of(parts)
    assert [ResponseStarted] == [type(part) for part in parts if isinstance(part, ResponseStarted)]
    assert (FinishReason.STOP, "test-model") == (finish.reason, finish.model)
    assert finish.response_id
    assert REPORTED == finish.usage


async def test_usage_that_was_not_reported_is_unknown_and_not_zero(providers: Providers, wire: Wire) -> None:
    finish = finish_of(await answer(providers, wire, UsageMissing(Pass())))

    assert finish.usage is None


async def test_a_reported_zero_is_zero(providers: Providers) -> None:
    finish = finish_of(await answer(providers, CHAT, Pass()))

    assert finish.usage is not None
    assert UsageValue.reported(0) == finish.usage.cache_read_tokens


async def test_parallel_calls_come_whole_and_in_order(providers: Providers, wire: Wire) -> None:
    step = ToolCalls([ToolUse("look", {"at": "a"}), ToolUse("look", {"at": "b"})], fragments=3, interleaved=True)

    parts = await answer(providers, wire, step)

    assert [{"at": "a"}, {"at": "b"}] == [json.loads(call.arguments) for call in calls_of(parts)]
    assert 2 == len({call.call_id for call in calls_of(parts)})
    assert any(isinstance(part, ToolArguments) for part in parts)
    assert FinishReason.TOOL_CALLS is finish_of(parts).reason


async def test_a_new_id_on_the_same_index_begins_another_call(providers: Providers) -> None:
    step = ToolCalls([ToolUse("look", {"at": "a"}, "call_a"), ToolUse("look", {"at": "b"}, "call_b")], same_index=True)

    calls = calls_of(await answer(providers, CHAT, step))

    assert [("call_a", {"at": "a"}), ("call_b", {"at": "b"})] == [
        (call.call_id, json.loads(call.arguments)) for call in calls
    ]


async def test_an_output_limit_inside_a_call_is_a_length_finish_with_raw_arguments(
    providers: Providers, wire: Wire
) -> None:
    parts = await answer(providers, wire, Length(calls=[ToolUse("look", {"at": "somewhere"})]))

    assert FinishReason.LENGTH is finish_of(parts).reason
    assert '{"at": "somewhere"}'.startswith(calls_of(parts)[0].arguments)


async def test_a_refusal_is_a_content_filter_finish(providers: Providers, wire: Wire) -> None:
    assert FinishReason.CONTENT_FILTER is finish_of(await answer(providers, wire, Refusal())).reason


async def test_a_refusal_in_words_keeps_the_words(providers: Providers, wire: Wire) -> None:
    parts = await answer(providers, wire, Refusal("I will not"))

    assert "I will not" == text_of(parts)
    assert FinishReason.CONTENT_FILTER is finish_of(parts).reason


async def test_the_category_of_a_refusal_is_evidence(providers: Providers) -> None:
    assert {"refusal_category": "cyber"} == finish_of(await answer(providers, ANTHROPIC, Refusal())).evidence


async def test_reasoning_is_a_part_of_its_own_before_the_answer(providers: Providers, wire: Wire) -> None:
    parts = await answer(providers, wire, Pass("so", reasoning=Reasoning("hm, well")))

    kinds = [type(part) for part in parts if not isinstance(part, ResponseStarted | Heartbeat)]
    assert [ReasoningStart, ReasoningDelta, ReasoningDelta, ReasoningEnd, TextDelta, Finish] == kinds
    assert "hm, well" == "".join(part.text for part in parts if isinstance(part, ReasoningDelta))


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


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "dropped"])
async def test_a_stream_without_its_end_marker_was_cut(providers: Providers, wire: Wire, clean: bool) -> None:
    raised = await failure(providers, wire, CutAfter(events=5, of=Pass("a long answer", chunks=9), clean=clean))

    assert (FailureClass.STREAM_CUT, True) == (raised.failure.failure_class, raised.failure.retryable)


async def test_a_cut_stream_keeps_the_usage_it_had_reported(providers: Providers) -> None:
    raised = await failure(providers, ANTHROPIC, CutAfter(events=3, of=Pass(usage=FIGURES)))

    assert raised.usage is not None
    assert UsageValue.reported(100) == raised.usage.input_tokens


async def test_an_error_event_fails_the_call_after_partial_text(providers: Providers, wire: Wire) -> None:
    raised = await failure(providers, wire, StreamError("overloaded_error", after=4, of=Pass("Partial", chunks=7)))

    assert (FailureClass.OVERLOADED, "overloaded_error", True) == (
        raised.failure.failure_class,
        raised.failure.code,
        raised.failure.retryable,
    )


async def test_a_failed_response_is_a_failure_even_without_event_lines(providers: Providers) -> None:
    step = DataOnly(StreamError("server_error", after=1, as_failed_response=True))

    raised = await failure(providers, RESPONSES, step)

    assert (FailureClass.SERVER_ERROR, True) == (raised.failure.failure_class, raised.failure.retryable)


async def test_a_stream_without_event_lines_is_read(providers: Providers, wire: Wire) -> None:
    assert "hello" == text_of(await answer(providers, wire, DataOnly(Pass("hello"))))


async def test_garbled_json_is_a_malformed_response(providers: Providers, wire: Wire) -> None:
    raised = await failure(providers, wire, BadJson(at=2))

    assert (FailureClass.MALFORMED_RESPONSE, True) == (raised.failure.failure_class, raised.failure.retryable)


@pytest.mark.parametrize(
    ("status", "failure_class", "retryable"),
    [
        (400, FailureClass.INVALID_REQUEST, False),
        (401, FailureClass.AUTHENTICATION, False),
        (429, FailureClass.RATE_LIMITED, True),
        (500, FailureClass.SERVER_ERROR, True),
        (529, FailureClass.OVERLOADED, True),
    ],
)
async def test_an_error_status_is_one_request_and_one_failure(
    providers: Providers, wire: Wire, status: int, failure_class: FailureClass, retryable: bool
) -> None:
    raised = await failure(providers, wire, HttpError(status, headers={"retry-after": "3"}))

    expected = Failure(
        failure_class=failure_class,
        code=f"fault_{status}",
        status=status,
        retryable=retryable,
        retry_after_seconds=3.0,
        provider=wire.kind.provider,
    )
    assert expected == raised.failure


async def test_a_dropped_connection_is_a_connection_failure(providers: Providers, wire: Wire) -> None:
    raised = await failure(providers, wire, HangUp())

    assert (FailureClass.CONNECTION, True) == (raised.failure.failure_class, raised.failure.retryable)


async def test_a_failure_carries_neither_key_nor_cause(providers: Providers, wire: Wire) -> None:
    raised = await failure(providers, wire, HttpError(401))

    assert raised.__cause__ is None
    assert raised.__context__ is None
    assert KEY not in repr(vars(raised))


async def test_a_missing_key_fails_before_any_request(
    monkeypatch: pytest.MonkeyPatch, providers: Providers, wire: Wire
) -> None:
    monkeypatch.delenv(KEY_NAME)
    async with FaultServer([Pass()]) as server:
        with pytest.raises(ProviderFailure) as caught:
            await read(providers, wire.model(server))

        assert "missing_api_key" == caught.value.failure.code
        assert [] == server.requests


async def test_keep_alives_are_heartbeats(providers: Providers, wire: Wire) -> None:
    async with FaultServer([PingsOnly()]) as server:
        model = wire.model(server)
        async with aclosing(providers.of(model).stream(asked(model))) as stream:  # type: ignore[type-var]
            assert Heartbeat() == await anext(stream)


async def test_closing_the_stream_aborts_the_request(providers: Providers, wire: Wire) -> None:
    gate = Gate(of=Pass("a long answer", chunks=9), after=5)
    async with FaultServer([gate]) as server:
        model = wire.model(server)
        async with aclosing(providers.of(model).stream(asked(model))) as stream:  # type: ignore[type-var]
            await anext(stream)

        await server.requests[0].finished.wait()

        assert server.requests[0].client_left


async def test_cancelling_the_reader_aborts_the_request(providers: Providers, wire: Wire) -> None:
    gate = Gate(of=Pass("a long answer", chunks=9), after=5)
    async with FaultServer([gate]) as server:
        reading = asyncio.create_task(read(providers, wire.model(server)))
        await gate.reached.wait()

        reading.cancel()

        with pytest.raises(asyncio.CancelledError):
            await reading
        await server.requests[0].finished.wait()
        assert server.requests[0].client_left


async def test_one_client_serves_every_call(providers: Providers, wire: Wire) -> None:
    async with FaultServer([Pass("one"), Pass("two")]) as server:
        model = wire.model(server)
        texts = [text_of(await read(providers, model)), text_of(await read(providers, replace(model)))]

        assert ["one", "two"] == texts


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


async def test_a_failure_carries_the_name_a_compatible_server_was_given(providers: Providers) -> None:
    async with FaultServer([HttpError(503)]) as server:
        with pytest.raises(ProviderFailure) as caught:
            await read(providers, CHAT.model(server, provider_name="openrouter"))

    assert "openrouter" == caught.value.failure.provider
