"""What the wire adapters hear through the real SDKs, from a local server that speaks their formats."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace

from tests.integration.wires import (
    ANTHROPIC,
    CHAT,
    FIGURES,
    REPORTED,
    Wire,
    answer,
    asked,
    calls_of,
    finish_of,
    read,
    text_of,
)
from turnlane.activities.providers.base import (
    Finish,
    Heartbeat,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    TextDelta,
    ToolArguments,
)
from turnlane.activities.providers.registry import Providers
from turnlane.records.steps import FinishReason
from turnlane.records.usage import UsageValue
from turnlane.testing.fault_plan import (
    DataOnly,
    Length,
    Pass,
    PingsOnly,
    Reasoning,
    Refusal,
    ToolCalls,
    ToolUse,
    UsageMissing,
)
from turnlane.testing.fault_server import FaultServer


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


async def test_a_stream_without_event_lines_is_read(providers: Providers, wire: Wire) -> None:
    assert "hello" == text_of(await answer(providers, wire, DataOnly(Pass("hello"))))


async def test_keep_alives_are_heartbeats(providers: Providers, wire: Wire) -> None:
    async with FaultServer([PingsOnly()]) as server:
        model = wire.model(server)
        async with aclosing(providers.of(model).stream(asked(model))) as stream:  # type: ignore[type-var]
            assert Heartbeat() == await anext(stream)


async def test_one_client_serves_every_call(providers: Providers, wire: Wire) -> None:
    async with FaultServer([Pass("one"), Pass("two")]) as server:
        model = wire.model(server)
        texts = [text_of(await read(providers, model)), text_of(await read(providers, replace(model)))]

        assert ["one", "two"] == texts
