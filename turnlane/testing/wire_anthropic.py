"""Anthropic's Messages API on the wire, as the fault server speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnlane.testing.fault_plan import Content, Ending, Figures, Reasoning, ToolUse, mixed, pieces, seal
from turnlane.testing.rules_anthropic import check_messages
from turnlane.testing.wire import Asked, SseEvent, arguments_of, event

_STOP = {
    Ending.STOP: "end_turn",
    Ending.TOOLS: "tool_use",
    Ending.LENGTH: "max_tokens",
    Ending.REFUSAL: "refusal",
    Ending.PAUSED: "pause_turn",
}
_TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesWire:
    """`POST /v1/messages` with `stream: true`."""

    def check(self, asked: Asked) -> None:
        check_messages(asked)

    def events(self, content: Content, asked: Asked) -> Iterator[SseEvent]:
        yield _event("message_start", message=_message(content, asked))
        yield self.ping()
        said = list(_spoken(content))
        spoken = len(said)
        streams = [list(block.events(index)) for index, block in enumerate([*said, *_called(content, asked)])]
        yield from mixed(streams[:spoken], interleaved=False)
        yield from mixed(streams[spoken:], content.interleaved)
        yield _event("message_delta", delta=_ending(content), **_final_usage(content))
        yield _event("message_stop")

    def ping(self) -> SseEvent:
        return _event("ping")

    def failure(self, code: str, as_failed_response: bool, asked: Asked) -> SseEvent:
        error = {"type": code, "message": "the stream failed", "details": None}
        return _event("error", error=error, request_id=f"req_{asked.number}")

    def error_body(self, status: int, code: str, message: str) -> dict[str, Any]:
        kind = _TYPE_OF_STATUS.get(status, "api_error")
        error = {"type": kind, "message": message, "details": {"error_code": code}}
        return {"type": "error", "error": error, "request_id": "req_fault"}


@dataclass(frozen=True)
class _Block:
    """One content block: how it starts, and its deltas."""

    start: dict[str, Any]
    deltas: tuple[dict[str, Any], ...]

    def events(self, index: int) -> Iterator[SseEvent]:
        yield _event("content_block_start", index=index, content_block=self.start)
        for delta in self.deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)


def _event(kind: str, **data: Any) -> SseEvent:
    return event({"type": kind, **data}, kind)


def _spoken(content: Content) -> Iterator[_Block]:
    if content.reasoning is not None:
        yield _thinking(content.reasoning)
    yield from (_found(search) for search in content.found if search not in content.searches)
    said = content.refusal or content.text
    if said:
        deltas = tuple({"type": "text_delta", "text": piece} for piece in pieces(said, content.chunks))
        yield _Block({"type": "text", "text": ""}, deltas)
    for search in content.searches:
        yield _search(search)
        if search in content.found:
            yield _found(search)


def _search(search_id: str) -> _Block:
    start = {"type": "server_tool_use", "id": search_id, "name": "web_search", "input": {}}
    return _Block(start, ({"type": "input_json_delta", "partial_json": '{"query": "news"}'},))


def _found(search_id: str) -> _Block:
    page = {"type": "web_search_result", "url": "https://x.test/", "title": "X", "encrypted_content": seal(search_id)}
    return _Block({"type": "web_search_tool_result", "tool_use_id": search_id, "content": [page]}, ())


def _thinking(reasoning: Reasoning) -> _Block:
    if reasoning.redacted is not None:
        return _Block({"type": "redacted_thinking", "data": seal(reasoning.redacted)}, ())
    thought = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(reasoning.text, reasoning.chunks)]
    signed = {"type": "signature_delta", "signature": seal(reasoning.text)}
    return _Block({"type": "thinking", "thinking": "", "signature": ""}, (*thought, signed))


def _called(content: Content, asked: Asked) -> Iterator[_Block]:
    for position, call in enumerate(content.calls):
        if position and content.between is not None:
            yield _thinking(content.between)
        cut = content.cut_call and position == len(content.calls) - 1
        yield _tool_use(call, f"toolu_{asked.number}_{position}", content.fragments, cut)


def _tool_use(call: ToolUse, call_id: str, fragments: int, cut: bool) -> _Block:
    text = arguments_of(call)
    text = text[: len(text) // 2] if cut else text
    start = {"type": "tool_use", "id": call.call_id or call_id, "name": call.name, "input": {}}
    deltas = tuple({"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(text, fragments)])
    return _Block(start, deltas)


def _message(content: Content, asked: Asked) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": f"msg_{asked.number}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
    }
    return message if content.usage is None else message | {"usage": _usage(content.usage, 1)}


def _ending(content: Content) -> dict[str, Any]:
    ending: dict[str, Any] = {"stop_reason": _STOP[content.ending], "stop_sequence": None, "stop_details": None}
    if content.ending is Ending.REFUSAL:
        ending["stop_details"] = {"type": "refusal", "category": content.category, "explanation": None}
    return ending


def _final_usage(content: Content) -> dict[str, Any]:
    if content.usage is None:
        return {}
    return {"usage": _usage(content.usage, content.usage.output_tokens)}


def _usage(figures: Figures, output_tokens: int) -> dict[str, Any]:
    """The counts are cumulative: the start says what went in, the end repeats it and adds what came out."""
    usage: dict[str, Any] = {
        "input_tokens": figures.input_tokens - figures.cache_read_tokens - figures.cache_write_tokens,
        "cache_creation_input_tokens": figures.cache_write_tokens,
        "cache_read_input_tokens": figures.cache_read_tokens,
        "output_tokens": output_tokens,
    }
    if figures.reasoning_tokens and output_tokens == figures.output_tokens:
        usage["output_tokens_details"] = {"thinking_tokens": figures.reasoning_tokens}
    return usage
