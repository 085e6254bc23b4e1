"""Wire decoding: bytes to events whatever the chunks, and events to parts whatever a gateway leaves out."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlane.activities.providers.anthropic import FAILURES as ANTHROPIC_FAILURES
from turnlane.activities.providers.anthropic import AnthropicDecoder, anthropic_usage
from turnlane.activities.providers.base import (
    Finish,
    GeneratedFile,
    Opaque,
    ProviderFailure,
    ReasoningEnd,
    ResponseStarted,
    Source,
    StreamPart,
    TextDelta,
    ToolCall,
)
from turnlane.activities.providers.openai_chat import ChatDecoder
from turnlane.activities.providers.openai_clients import openai_failures
from turnlane.activities.providers.openai_responses import FAILURES as RESPONSES_FAILURES
from turnlane.activities.providers.openai_responses import ResponsesDecoder, responses_request
from turnlane.activities.providers.sse import SseEvent, SseParser
from turnlane.activities.providers.wire import Decoder
from turnlane.agent.models import OpenAIModel
from turnlane.records.prompt import Prompt
from turnlane.records.runs import FailureClass
from turnlane.records.steps import FinishReason
from turnlane.records.usage import CostValue, Provenance, UsageValue

CHAT_FAILURES = openai_failures("openai-chat")
STREAM = 'event: a\ndata: {"é":1}\r\n\r\n: ping\rdata:x\ndata: y\n\nid: 7\n\ndata: \u2028\n\ndata: cut'.encode()
EVENTS = [SseEvent("a", '{"é":1}'), SseEvent(None, None), SseEvent(None, "x\ny"), SseEvent(None, "\u2028")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted))
def test_events_do_not_depend_on_chunk_borders(cuts: list[int]) -> None:
    parser = SseParser()
    borders = [0, *cuts, len(STREAM)]

    events = [event for start, end in pairwise(borders) for event in parser.feed(STREAM[start:end])]

    assert EVENTS == events


def decoded(decoder: Decoder, *events: dict[str, Any]) -> list[StreamPart]:
    parts = [part for event in events for part in decoder.feed(event)]
    return [*parts, *decoder.end()]


def chat(*deltas: dict[str, Any], finish: str | None = "stop", **chunk: Any) -> list[StreamPart]:
    events = [{"id": "c", "choices": [{"delta": delta}]} for delta in deltas]
    last = {"choices": [{"delta": None, "finish_reason": finish}], **chunk}
    return decoded(ChatDecoder(CHAT_FAILURES, step=2, currency="USD"), *events, last)


def fragment(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"function": {"name": "look", "arguments": arguments}, **fields}]}


def calls_of(parts: list[StreamPart]) -> list[tuple[str, str]]:
    return [(part.call_id, part.arguments) for part in parts if isinstance(part, ToolCall)]


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        ([fragment("{", index=0), fragment("}", index=0)], [("call_2_0", "{}")]),
        ([fragment("{", index=0), fragment("}", index=0, id="late")], [("late", "{}")]),
        ([fragment("{", index=0, id="a"), fragment("}", index=0, id="a")], [("a", "{}")]),
        ([fragment("{", index=0, id="a"), fragment("}", index=0, id="")], [("a", "{}")]),
        ([fragment("{}", index=0, id="a"), fragment("{}", index=0, id="b")], [("a", "{}"), ("b", "{}")]),
        ([fragment("{", id="a"), fragment("}"), fragment("{}", id="b")], [("a", "{}"), ("b", "{}")]),
        (
            [fragment("1", index=0, id="a"), fragment("2", index=1, id="b"), fragment("3", index=0)],
            [("a", "13"), ("b", "2")],
        ),
        ([fragment({"q": 1}, index=0, id="a")], [("a", '{"q": 1}')]),
        ([fragment(None, index=0, id="a")], [("a", "")]),
    ],
)
def test_call_fragments_find_their_call(deltas: list[dict[str, Any]], calls: list[tuple[str, str]]) -> None:
    assert calls == calls_of(chat(*deltas))


def test_chat_content_may_come_as_typed_pieces() -> None:
    parts = chat({"content": [{"type": "thinking"}, {"type": "text", "text": "hi"}]})

    assert [TextDelta("hi")] == [part for part in parts if isinstance(part, TextDelta)]


def test_a_cost_the_server_reports_is_kept() -> None:
    finish = chat(finish="stop", usage={"prompt_tokens": 3, "completion_tokens": 1.5, "cost": 0.25})[-1]

    assert isinstance(finish, Finish)
    assert finish.usage is not None
    assert CostValue(value=0.25, currency="USD", provenance=Provenance.PROVIDER_REPORTED) == finish.usage.cost
    assert (UsageValue.reported(3), UsageValue()) == (finish.usage.input_tokens, finish.usage.output_tokens)


def test_usage_behind_the_last_choice_is_read() -> None:
    decoder = ChatDecoder(CHAT_FAILURES, step=0)
    ended = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    counted = {"choices": [], "usage": {"prompt_tokens": 148, "completion_tokens": 26}}

    finish = decoded(decoder, ended, counted)[-1]

    assert isinstance(finish, Finish)
    assert finish.usage is not None
    assert (148, 26) == (finish.usage.input_tokens.value, finish.usage.output_tokens.value)


def test_a_chat_stream_without_a_finish_reason_was_cut_and_gives_no_calls() -> None:
    with pytest.raises(ProviderFailure) as caught:
        chat(fragment("{}", index=0, id="a"), finish=None)

    assert FailureClass.STREAM_CUT is caught.value.failure.failure_class


def test_anthropic_input_is_the_sum_of_fresh_and_cached() -> None:
    usage = anthropic_usage({"input_tokens": 3, "cache_creation_input_tokens": 12304, "cache_read_input_tokens": 0})

    assert UsageValue.reported(12307) == usage.input_tokens
    assert (UsageValue.reported(0), UsageValue()) == (usage.cache_read_tokens, usage.output_tokens)


def test_what_anthropic_tells_at_the_start_is_partial_until_the_answer_is_counted() -> None:
    decoder = AnthropicDecoder(ANTHROPIC_FAILURES, step=0)
    started = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1200, "output_tokens": 1}}}
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 40}}

    early = [part.usage for part in decoder.feed(started) if isinstance(part, ResponseStarted)]
    list(decoder.feed(ended))

    assert [(1200, True)] == [(usage.input_tokens.value, usage.partial) for usage in early if usage]
    assert decoder.usage is not None
    assert (40, False) == (decoder.usage.output_tokens.value, decoder.usage.partial)
    assert {"input_tokens": 1200, "output_tokens": 40} == decoder.raw_usage


@pytest.mark.parametrize(
    ("details", "expected"),
    [(None, UsageValue()), ({}, UsageValue()), ({"cached_tokens": 0}, UsageValue.reported(0))],
)
def test_a_cached_count_that_is_left_out_is_unknown_and_a_zero_is_zero(
    details: dict[str, int] | None, expected: UsageValue
) -> None:
    raw = {"prompt_tokens": 148, "completion_tokens": 26, "prompt_tokens_details": details}
    finish = chat(finish="stop", usage=raw)[-1]

    assert isinstance(finish, Finish)
    assert finish.usage is not None
    assert expected == finish.usage.cache_read_tokens


Block = tuple[dict[str, Any], list[dict[str, Any]]]


def anthropic(*blocks: Block, **stop: Any) -> list[StreamPart]:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}}]
    for index, (start, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": stop, "usage": {"output_tokens": 2}}, {"type": "message_stop"}]
    return decoded(AnthropicDecoder(ANTHROPIC_FAILURES, step=2), *events)


def test_thinking_without_a_signature_has_nothing_to_send_back() -> None:
    parts = anthropic(({"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": "hm"}]))

    assert ReasoningEnd(provider=None) in parts


@pytest.mark.parametrize("words", ["a\ud83d", "a\x00b"])
def test_thinking_that_cannot_be_stored_as_it_is_has_nothing_to_send_back(words: str) -> None:
    deltas = [{"type": "thinking_delta", "thinking": words}, {"type": "signature_delta", "signature": "s"}]

    parts = anthropic(({"type": "thinking", "thinking": ""}, deltas))

    assert [ReasoningEnd(provider=None)] == [part for part in parts if isinstance(part, ReasoningEnd)]


def test_a_paused_turn_goes_on_and_calls_beside_it_come_first() -> None:
    said: Block = ({"type": "text", "text": "so far"}, [])
    call: Block = ({"type": "tool_use", "id": "t", "name": "look", "input": {}}, [])

    (paused,) = [part for part in anthropic(said, stop_reason="pause_turn") if isinstance(part, Finish)]
    (called,) = [part for part in anthropic(said, call, stop_reason="pause_turn") if isinstance(part, Finish)]

    assert (FinishReason.PAUSED, "pause_turn") == (paused.reason, paused.raw_reason)
    assert (FinishReason.TOOL_CALLS, "pause_turn") == (called.reason, called.raw_reason)


def test_blocks_that_only_the_provider_reads_are_kept_whole() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    parts = anthropic((search, [{"type": "input_json_delta", "partial_json": '{"q": 1}'}]))

    (opaque,) = [part for part in parts if isinstance(part, Opaque)]
    assert {**search, "input": {"q": 1}} == opaque.envelope.data


def test_citations_with_an_address_are_sources() -> None:
    cited = {"type": "citations_delta", "citation": {"url": "https://x.test", "title": "X"}}
    parts = anthropic(({"type": "text", "text": ""}, [cited, {"type": "citations_delta", "citation": {}}]))

    assert [Source("source_2_1", "https://x.test", "X")] == [part for part in parts if isinstance(part, Source)]


def responses(*events: dict[str, Any]) -> list[StreamPart]:
    return decoded(ResponsesDecoder(RESPONSES_FAILURES, step=2), *events)


def test_calls_that_only_the_final_record_has_are_told_once() -> None:
    first = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    cut = {"type": "function_call", "call_id": "b", "name": "look", "arguments": '{"q'}
    record = {
        "id": "r",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [first, cut],
    }

    parts = responses(
        {"type": "response.output_item.done", "output_index": 0, "item": first},
        {"type": "response.incomplete", "response": record},
    )

    assert [("a", "{}"), ("b", '{"q')] == calls_of(parts)


def test_summary_paragraphs_are_kept_apart() -> None:
    part = {"type": "response.reasoning_summary_part.added", "output_index": 0}
    delta = {"type": "response.reasoning_summary_text.delta", "output_index": 0}
    ended = {"type": "response.completed", "response": {"status": "completed"}}

    parts = responses(
        {**part, "summary_index": 0},
        {**delta, "delta": "a"},
        {**part, "summary_index": 1},
        {**delta, "delta": "b"},
        ended,
    )

    assert "a\n\nb" == "".join(getattr(part, "text", "") for part in parts)


@pytest.mark.parametrize(
    ("name", "asks"),
    [("gpt-5.2", True), ("o3", True), ("gpt-4o", False), ("ft:gpt-4.1:x", False), ("gpt-5-chat-latest", False)],
)
def test_encrypted_reasoning_is_asked_of_models_that_reason(name: str, asks: bool) -> None:
    assert asks is ("include" in responses_request(OpenAIModel(name=name), Prompt()))


def test_an_error_object_without_a_type_fails_the_call() -> None:
    with pytest.raises(ProviderFailure) as caught:
        responses(json.loads('{"error": {"code": "server_error", "message": "secret"}}'))

    assert "server_error" == caught.value.failure.code


def test_a_generated_image_is_a_file_and_its_base64_is_kept_nowhere_else() -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "result": "aGk=", "output_format": "webp"}

    parts = decoded(
        ResponsesDecoder(RESPONSES_FAILURES, step=0),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [item]}},
    )

    assert [GeneratedFile(data=b"hi", media_type="image/webp")] == parts[:-1]
