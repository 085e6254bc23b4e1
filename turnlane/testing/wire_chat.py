"""OpenAI's Chat Completions on the wire, as the fault server speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnlane.testing.fault_plan import Content, Ending, Figures, mixed, pieces
from turnlane.testing.rules_chat import check_chat
from turnlane.testing.wire import Asked, SseEvent, arguments_of, event

_FINISH = {
    Ending.STOP: "stop",
    Ending.TOOLS: "tool_calls",
    Ending.LENGTH: "length",
    Ending.REFUSAL: "content_filter",
    Ending.PAUSED: "stop",
}

ROUTED_TO = "Fault Cloud"
"""The provider that an answer names when the request is one to OpenRouter."""


class ChatWire:
    """`POST /v1/chat/completions` with `stream: true`."""

    def check(self, asked: Asked) -> None:
        check_chat(asked)

    def events(self, content: Content, asked: Asked) -> Iterator[SseEvent]:
        yield _delta(asked, {"role": "assistant", "content": "", "refusal": None})
        for delta in _deltas(content, asked):
            yield _delta(asked, delta)
        yield _delta(asked, {}, finish=_finish_of(content))
        if content.usage is not None and _wants_usage(asked):
            yield event(_chunk(asked, [], usage=_usage_of(content.usage, asked)))
        yield SseEvent("[DONE]")

    def ping(self) -> SseEvent:
        return SseEvent(comment="ping")

    def failure(self, code: str, as_failed_response: bool, asked: Asked) -> SseEvent:
        return event(openai_error(code, "the stream failed"))

    def error_body(self, status: int, code: str, message: str) -> dict[str, Any]:
        return openai_error(code, message)


def openai_error(code: str, message: str) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": code, "param": None, "code": code}}


def _deltas(content: Content, asked: Asked) -> Iterator[dict[str, Any]]:
    if content.reasoning is not None:
        for piece in pieces(content.reasoning.text, content.reasoning.chunks):
            yield {"reasoning_content": piece}
    for piece in pieces(content.text, content.chunks):
        yield {"content": piece}
    for piece in pieces(content.refusal, 2):
        yield {"refusal": piece}
    yield from mixed(_call_deltas(content, asked), content.interleaved)


def _call_deltas(content: Content, asked: Asked) -> list[list[dict[str, Any]]]:
    streams = []
    for position, call in enumerate(content.calls):
        index = 0 if content.same_index else position
        text = arguments_of(call)
        if content.cut_call and position == len(content.calls) - 1:
            text = text[: len(text) // 2]
        named = {"name": call.name, "arguments": ""}
        call_id = call.call_id or f"call_{asked.number}_{position}"
        first = {"index": index, "id": call_id, "type": "function", "function": named}
        rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces(text, content.fragments)]
        streams.append([{"tool_calls": [fragment]} for fragment in (first, *rest)])
    return streams


def _finish_of(content: Content) -> str:
    """A refusal the model worded itself ends as an ordinary stop."""
    return "stop" if content.refusal else _FINISH[content.ending]


def _wants_usage(asked: Asked) -> bool:
    return bool((asked.body.get("stream_options") or {}).get("include_usage"))


def _delta(asked: Asked, delta: dict[str, Any], finish: str | None = None) -> SseEvent:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event(_chunk(asked, [choice]))


def _chunk(asked: Asked, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
    chunk = {
        "id": f"chatcmpl-{asked.number}",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000 + asked.number,
        "model": asked.model,
        "service_tier": "default",
        "system_fingerprint": "fp_fault",
        "choices": choices,
    }
    if _is_routed(asked):
        chunk["provider"] = ROUTED_TO
    return chunk | {"usage": usage} if _wants_usage(asked) else chunk


def _is_routed(asked: Asked) -> bool:
    """Whether the request is one to OpenRouter, whose answers name the provider behind it and the cost."""
    return bool((asked.body.get("usage") or {}).get("include"))


def _usage_of(figures: Figures, asked: Asked) -> dict[str, Any]:
    cost = {"cost": figures.cost} if _is_routed(asked) and figures.cost is not None else {}
    return cost | {
        "prompt_tokens": figures.input_tokens,
        "completion_tokens": figures.output_tokens,
        "total_tokens": figures.input_tokens + figures.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": figures.cache_read_tokens,
            "cache_write_tokens": figures.cache_write_tokens,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": figures.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
