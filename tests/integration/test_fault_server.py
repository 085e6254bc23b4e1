"""The fault server against the real SDKs: each step of a plan arrives as what it is, in every protocol."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest

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
    Silent,
    Slow,
    Step,
    StreamError,
    ToolCalls,
    ToolUse,
    UsageMissing,
)
from turnlane.testing.fault_server import FaultServer

FIGURES = Figures(input_tokens=20, output_tokens=9, reasoning_tokens=4, cache_read_tokens=5, cache_write_tokens=3)
CALLS = (ToolUse("read", {"path": "a"}, "call_a"), ToolUse("read", {"path": "é"}, "call_b"))
TOOL = {"type": "object", "properties": {"path": {"type": "string"}}}


@dataclass
class Heard:
    """What an SDK made of a stream, in one vocabulary."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: dict[Any, list[str]] = field(default_factory=dict)
    stop: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached: int | None = None
    sealed: str | None = None
    events: list[str] = field(default_factory=list)

    def call(self, index: Any, call_id: str, name: str) -> None:
        self.calls[index] = [call_id, name, ""]


Listen = Callable[[FaultServer], Awaitable[Heard]]


async def listen_chat(server: FaultServer, **more: Any) -> Heard:
    heard = Heard()
    async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="test", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        stream = await client.chat.completions.create(**(asked | {"stream_options": {"include_usage": True}} | more))
        async for chunk in stream:
            heard.events.append("chunk")
            if chunk.usage is not None:
                heard.input_tokens, heard.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                heard.cached = chunk.usage.prompt_tokens_details.cached_tokens
            for choice in chunk.choices:
                heard.stop = choice.finish_reason or heard.stop
                heard.text += choice.delta.content or ""
                heard.refusal += choice.delta.refusal or ""
                heard.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or ():
                    if call.id:
                        heard.call((call.index, call.id), call.id, call.function.name)
                    heard.calls[next(key for key in reversed(heard.calls) if key[0] == call.index)][2] += (
                        call.function.arguments or ""
                    )
    return heard


async def listen_responses(server: FaultServer, **more: Any) -> Heard:
    heard = Heard()
    async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="test", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "m", "input": "hi", "stream": True, "store": False}
        stream = await client.responses.create(**(asked | {"include": ["reasoning.encrypted_content"]} | more))
        async for event in stream:
            heard.events.append(event.type)
            match event.type:
                case "response.output_text.delta":
                    heard.text += event.delta
                case "response.reasoning_summary_text.delta":
                    heard.reasoning += event.delta
                case "response.refusal.delta":
                    heard.refusal += event.delta
                case "response.output_item.added" if event.item.type == "function_call":
                    heard.call(event.output_index, event.item.call_id, event.item.name)
                case "response.function_call_arguments.delta":
                    heard.calls[event.output_index][2] += event.delta
                case "response.output_item.done" if event.item.type == "reasoning":
                    heard.sealed = event.item.encrypted_content
                case "response.completed" | "response.incomplete" | "response.failed":
                    details = event.response.incomplete_details
                    heard.stop = details.reason if details else event.response.status
                    if event.response.usage is not None:
                        heard.input_tokens = event.response.usage.input_tokens
                        heard.output_tokens = event.response.usage.output_tokens
                        heard.cached = event.response.usage.input_tokens_details.cached_tokens
    return heard


async def listen_messages(server: FaultServer, **more: Any) -> Heard:
    heard = Heard()
    async with anthropic.AsyncAnthropic(base_url=server.anthropic_url, api_key="test", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
        stream = await client.messages.create(**(asked | {"stream": True} | more))
        async for event in stream:
            heard.events.append(event.type)
            match event.type:
                case "content_block_start" if event.content_block.type == "tool_use":
                    heard.call(event.index, event.content_block.id, event.content_block.name)
                case "content_block_start" if event.content_block.type == "redacted_thinking":
                    heard.sealed = event.content_block.data
                case "content_block_delta":
                    match event.delta.type:
                        case "text_delta":
                            heard.text += event.delta.text
                        case "thinking_delta":
                            heard.reasoning += event.delta.thinking
                        case "signature_delta":
                            heard.sealed = event.delta.signature
                        case "input_json_delta":
                            heard.calls[event.index][2] += event.delta.partial_json
                case "message_delta":
                    heard.stop = event.delta.stop_reason
                    if event.usage is not None:
                        usage = event.usage
                        heard.cached = usage.cache_read_input_tokens
                        heard.input_tokens = usage.input_tokens + heard.cached + usage.cache_creation_input_tokens
                        heard.output_tokens = usage.output_tokens
    return heard


LISTENERS: dict[str, Listen] = {"chat": listen_chat, "responses": listen_responses, "messages": listen_messages}
STATUS_ERRORS = (openai.APIStatusError, anthropic.APIStatusError)
CONNECTION_ERRORS = (openai.APIConnectionError, anthropic.APIConnectionError)


@pytest.fixture(params=sorted(LISTENERS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def heard_of(protocol: str, step: Step) -> Heard:
    async with FaultServer([step]) as server:
        return await LISTENERS[protocol](server)


async def test_a_passing_answer_has_text_end_and_usage(protocol: str) -> None:
    heard = await heard_of(protocol, Pass("Hello, wörld", chunks=4, usage=FIGURES))

    stop = {"chat": "stop", "responses": "completed", "messages": "end_turn"}[protocol]
    assert ("Hello, wörld", stop, 20, 9, 5) == (
        heard.text,
        heard.stop,
        heard.input_tokens,
        heard.output_tokens,
        heard.cached,
    )


async def test_chunks_arrive_as_so_many_deltas(protocol: str) -> None:
    one = await heard_of(protocol, Pass("abcdef", chunks=1))
    six = await heard_of(protocol, Pass("abcdef", chunks=6))

    assert 5 == len(six.events) - len(one.events)


async def test_reasoning_comes_before_text_and_is_sealed_where_the_protocol_does(protocol: str) -> None:
    heard = await heard_of(protocol, Pass("answer", reasoning="let me think"))

    assert ("let me think", "answer") == (heard.reasoning, heard.text)
    assert (protocol != "chat") is (heard.sealed is not None)


async def test_redacted_thinking_has_data_only() -> None:
    heard = await heard_of("messages", Pass("answer", reasoning=Reasoning("", redacted="secret")))

    assert heard.sealed and "" == heard.reasoning


@pytest.mark.parametrize("interleaved", [False, True])
async def test_parallel_calls_keep_their_own_arguments(protocol: str, interleaved: bool) -> None:
    step = ToolCalls(CALLS, text="Reading.", fragments=5, interleaved=interleaved)

    heard = await heard_of(protocol, step)

    stop = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}[protocol]
    assert ("Reading.", stop) == (heard.text, heard.stop)
    assert [("call_a", "read", {"path": "a"}), ("call_b", "read", {"path": "é"})] == [
        (call_id, name, json.loads(arguments)) for call_id, name, arguments in heard.calls.values()
    ]


async def test_a_gateway_may_give_every_call_index_0() -> None:
    heard = await heard_of("chat", ToolCalls(CALLS, same_index=True))

    assert [(0, "call_a"), (0, "call_b")] == list(heard.calls)
    assert [{"path": "a"}, {"path": "é"}] == [json.loads(call[2]) for call in heard.calls.values()]


async def test_raw_arguments_are_sent_as_they_are(protocol: str) -> None:
    heard = await heard_of(protocol, ToolCalls([ToolUse("read", "not json")]))

    assert ["not json"] == [call[2] for call in heard.calls.values()]


@pytest.mark.parametrize("calls", [(), CALLS])
async def test_the_output_limit_cuts_the_last_call_only(protocol: str, calls: tuple[ToolUse, ...]) -> None:
    heard = await heard_of(protocol, Length("So f", calls))

    stop = {"chat": "length", "responses": "max_output_tokens", "messages": "max_tokens"}[protocol]
    assert ("So f", stop) == (heard.text, heard.stop)
    assert ['{"path": "a"}', '{"path'][: len(calls)] == [call[2] for call in heard.calls.values()]


async def test_a_worded_refusal(protocol: str) -> None:
    heard = await heard_of(protocol, Refusal("I will not."))

    stop = {"chat": "stop", "responses": "completed", "messages": "refusal"}[protocol]
    assert ("I will not.", stop) == (heard.refusal or heard.text, heard.stop)


async def test_a_filter_that_stopped_the_answer(protocol: str) -> None:
    heard = await heard_of(protocol, Refusal())

    stop = {"chat": "content_filter", "responses": "content_filter", "messages": "refusal"}[protocol]
    assert ("", stop) == (heard.text, heard.stop)


@pytest.mark.parametrize("status", [400, 401, 402, 404, 429, 500, 503, 529])
async def test_an_error_status_with_its_headers(protocol: str, status: int) -> None:
    with pytest.raises(STATUS_ERRORS) as caught:
        await heard_of(protocol, HttpError(status, {"retry-after": "3"}, code="slow_down"))

    error: Any = caught.value
    assert (status, "3") == (error.status_code, error.response.headers["retry-after"])
    assert "slow_down" in json.dumps(error.body)


async def test_an_error_status_with_a_body_that_is_no_json(protocol: str) -> None:
    with pytest.raises(STATUS_ERRORS) as caught:
        await heard_of(protocol, HttpError(502, body="<html>Bad gateway</html>"))

    error: Any = caught.value
    assert 502 == error.status_code


async def test_a_connection_closed_without_a_byte(protocol: str) -> None:
    with pytest.raises(CONNECTION_ERRORS):
        await heard_of(protocol, HangUp())


@pytest.mark.parametrize("cut", [CutAfter(3), CutAfter(body_bytes=200), CutAfter(0)])
async def test_a_body_that_breaks_off_is_not_the_end(protocol: str, cut: CutAfter) -> None:
    with pytest.raises(Exception, match=r"Connection error|incomplete chunked read") as caught:
        await heard_of(protocol, cut)

    assert "incomplete chunked read" in f"{caught.value!r} {caught.value.__cause__!r}"


async def test_a_clean_cut_ends_without_the_end_marker(protocol: str) -> None:
    step = Pass("abcdef", chunks=6)
    whole = await heard_of(protocol, step)
    cut = await heard_of(protocol, CutAfter(5, of=step, clean=True))

    assert cut.stop is None and len(cut.events) < len(whole.events)


async def test_the_sender_can_be_slow(protocol: str) -> None:
    heard = await heard_of(protocol, Slow(0.001, of=Pass("abc", chunks=3)))

    assert "abc" == heard.text


async def test_usage_may_be_missing(protocol: str) -> None:
    heard = await heard_of(protocol, UsageMissing(of=Pass("abc")))

    assert ("abc", None, None) == (heard.text, heard.input_tokens, heard.output_tokens)


async def test_chat_reports_usage_only_when_asked() -> None:
    async with FaultServer([Pass("abc")]) as server:
        heard = await listen_chat(server, stream_options=openai.NOT_GIVEN)

    assert ("abc", None) == (heard.text, heard.input_tokens)


async def test_bad_json_in_the_middle(protocol: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        await heard_of(protocol, BadJson(of=Pass("abc", chunks=3), at=2))


async def test_an_error_event_inside_the_stream(protocol: str) -> None:
    async with FaultServer([StreamError("overloaded_error", after=2, of=Pass("abc", chunks=3))]) as server:
        if protocol == "responses":
            assert "error" == (await LISTENERS[protocol](server)).events[-1]
            return
        with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
            await LISTENERS[protocol](server)

    error: Any = caught.value
    assert "overloaded_error" in json.dumps(error.body)


async def test_a_failed_response() -> None:
    heard = await heard_of("responses", StreamError("server_error", after=0, as_failed_response=True))

    assert (["response.failed"], "failed") == (heard.events, heard.stop)


@pytest.mark.parametrize("name", ["chat", "responses"])
async def test_gateways_that_send_data_lines_only(name: str) -> None:
    heard = await heard_of(name, DataOnly(of=Pass("abc")))

    assert "abc" == heard.text


async def test_a_silent_server_answers_when_it_is_released(protocol: str) -> None:
    silent = Silent(before=Pass("at last"))
    async with FaultServer([silent]) as server:
        call = asyncio.ensure_future(LISTENERS[protocol](server))
        request = await server.wait_for_requests(1)
        assert not request.finished.is_set()
        silent.release.set()
        heard = await call

    assert "at last" == heard.text


async def test_leaving_a_silent_server_is_noticed(protocol: str) -> None:
    async with FaultServer([Silent()]) as server:
        call = asyncio.ensure_future(LISTENERS[protocol](server))
        request = await server.wait_for_requests(1)
        call.cancel()
        await asyncio.wait_for(request.finished.wait(), 5)

        assert request.client_left
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_pings_are_not_content(protocol: str) -> None:
    async with FaultServer([PingsOnly(0.001)]) as server:
        call = asyncio.ensure_future(LISTENERS[protocol](server))
        request = await server.wait_for_requests(1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(call), 0.1)
        call.cancel()
        await asyncio.wait_for(request.finished.wait(), 5)

        assert request.client_left
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_gate_stops_the_stream_at_its_event(protocol: str) -> None:
    gate = Gate(of=Pass("abc", chunks=3), after=4)
    async with FaultServer([gate]) as server:
        call = asyncio.ensure_future(LISTENERS[protocol](server))
        await asyncio.wait_for(gate.reached.wait(), 5)
        assert not call.done()
        gate.event.set()

        assert "abc" == (await call).text


async def test_tokens_are_counted_by_what_the_test_says_and_use_up_no_step() -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with FaultServer([Pass("ok")], counts=lambda body: len(body["messages"])) as server:
        async with anthropic.AsyncAnthropic(base_url=server.anthropic_url, api_key="test", max_retries=0) as client:
            counted = await client.messages.count_tokens(**asked)
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.count_tokens(**asked, extra_body={"max_tokens": 5})

        assert 1 == counted.input_tokens
        assert ["m", "m"] == [body["model"] for body in server.counted]
        assert [] == server.requests


async def test_a_server_that_was_told_nothing_counts_nothing() -> None:
    async with FaultServer([Pass("ok")]) as server:
        async with anthropic.AsyncAnthropic(base_url=server.anthropic_url, api_key="test", max_retries=0) as client:
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "hi"}])
