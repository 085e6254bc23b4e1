"""OpenAI's Responses API on the wire, as the fault server speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from turnlane.testing.fault_plan import Content, Ending, Figures, Reasoning, ToolUse, mixed, pieces, seal
from turnlane.testing.rules_responses import check_responses
from turnlane.testing.wire import Asked, SseEvent, arguments_of, event
from turnlane.testing.wire_chat import openai_error


class ResponsesWire:
    """`POST /v1/responses` with `stream: true`."""

    def check(self, asked: Asked) -> None:
        check_responses(asked)

    def events(self, content: Content, asked: Asked) -> Iterator[SseEvent]:
        for number, data in enumerate(_Answer(content, asked).play()):
            yield event(data | {"sequence_number": number}, data["type"])

    def ping(self) -> SseEvent:
        return SseEvent(comment="ping")

    def failure(self, code: str, as_failed_response: bool, asked: Asked) -> SseEvent:
        if as_failed_response:
            error = {"code": code, "message": "the stream failed"}
            failed = _response(asked, "failed", []) | {"error": error}
            return event({"type": "response.failed", "response": failed, "sequence_number": 99}, "response.failed")
        told = {"type": "error", "code": code, "message": "the stream failed", "param": None, "sequence_number": 99}
        return event(told, "error")

    def error_body(self, status: int, code: str, message: str) -> dict[str, Any]:
        return openai_error(code, message)


@dataclass
class _Answer:
    """One answer being played: `output` collects the finished items for the closing event."""

    content: Content
    asked: Asked
    output: list[dict[str, Any]] = field(default_factory=list)
    opened: int = 0

    def play(self) -> Iterator[dict[str, Any]]:
        yield {"type": "response.created", "response": _response(self.asked, "in_progress", [])}
        yield {"type": "response.in_progress", "response": _response(self.asked, "in_progress", [])}
        if self.content.reasoning is not None:
            yield from self._reason(self.content.reasoning)
        if self.content.text or self.content.refusal:
            yield from self._speak()
        yield from self._call()
        yield self._close()

    def _item_id(self, prefix: str, position: int) -> str:
        """An item given out behind reasoning names it, so that the rules can ask for both or neither."""
        behind = f"_rs_{self.asked.number}" if self.content.reasoning is not None else ""
        return f"{prefix}_{self.asked.number}_{position}{behind}"

    def _open(self, item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        index = self.opened
        self.opened += 1
        return index, {"type": "response.output_item.added", "output_index": index, "item": item}

    def _done(self, index: int, item: dict[str, Any]) -> dict[str, Any]:
        self.output.append(item)
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    def _reason(self, reasoning: Reasoning) -> Iterator[dict[str, Any]]:
        item_id = f"rs_{self.asked.number}"
        blank: dict[str, Any] = {"id": item_id, "type": "reasoning", "summary": []}
        sealed = {"encrypted_content": seal(item_id, reasoning.text)} if _wants_encrypted(self.asked) else {}
        index, added = self._open(blank)
        at = {"item_id": item_id, "output_index": index, "summary_index": 0}
        prefix = "response.reasoning_summary"
        yield added
        yield {"type": f"{prefix}_part.added", **at, "part": {"type": "summary_text", "text": ""}}
        for piece in pieces(reasoning.text, reasoning.chunks):
            yield {"type": f"{prefix}_text.delta", **at, "delta": piece}
        part = {"type": "summary_text", "text": reasoning.text}
        yield {"type": f"{prefix}_text.done", **at, "text": reasoning.text}
        yield {"type": f"{prefix}_part.done", **at, "part": part}
        yield self._done(index, blank | {"summary": [part]} | sealed)

    def _speak(self) -> Iterator[dict[str, Any]]:
        refusing = bool(self.content.refusal)
        said = self.content.refusal or self.content.text
        name, key = ("response.refusal", "refusal") if refusing else ("response.output_text", "text")
        status = "incomplete" if self.content.ending is Ending.LENGTH and not self.content.calls else "completed"
        item_id = self._item_id("msg", self.opened)
        message: dict[str, Any] = {"id": item_id, "type": "message", "role": "assistant", "content": []}
        index, added = self._open(message | {"status": "in_progress"})
        at = {"item_id": item_id, "output_index": index, "content_index": 0}
        extra: dict[str, Any] = {} if refusing else {"logprobs": []}
        yield added
        yield {"type": "response.content_part.added", **at, "part": _part(refusing, "")}
        for piece in pieces(said, self.content.chunks):
            yield {"type": f"{name}.delta", **at, "delta": piece, **extra}
        yield {"type": f"{name}.done", **at, key: said, **extra}
        yield {"type": "response.content_part.done", **at, "part": _part(refusing, said)}
        yield self._done(index, message | {"status": status, "content": [_part(refusing, said)]})

    def _call(self) -> Iterator[dict[str, Any]]:
        calls = self.content.calls
        streams = [list(self._one_call(position, call)) for position, call in enumerate(calls)]
        self.output.extend(stream[-1]["item"] for stream in streams)
        yield from mixed(streams, self.content.interleaved)

    def _one_call(self, position: int, call: ToolUse) -> Iterator[dict[str, Any]]:
        cut = self.content.cut_call and position == len(self.content.calls) - 1
        text = arguments_of(call)
        text = text[: len(text) // 2] if cut else text
        item = {
            "id": self._item_id("fc", position),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.call_id or f"call_{self.asked.number}_{position}",
            "name": call.name,
            "arguments": "",
        }
        index, added = self._open(item)
        at = {"item_id": item["id"], "output_index": index}
        prefix = "response.function_call_arguments"
        yield added
        for piece in pieces(text, self.content.fragments):
            yield {"type": f"{prefix}.delta", **at, "delta": piece}
        yield {"type": f"{prefix}.done", **at, "arguments": text}
        done = item | {"status": "incomplete" if cut else "completed", "arguments": text}
        yield {"type": "response.output_item.done", "output_index": index, "item": done}

    def _close(self) -> dict[str, Any]:
        reason = None
        if self.content.ending is Ending.LENGTH:
            reason = "max_output_tokens"
        elif self.content.ending is Ending.REFUSAL and not self.content.refusal:
            reason = "content_filter"
        status = "incomplete" if reason else "completed"
        response = _response(self.asked, status, self.output)
        response["usage"] = None if self.content.usage is None else _usage_of(self.content.usage)
        response["incomplete_details"] = {"reason": reason} if reason else None
        return {"type": f"response.{status}", "response": response}


def _part(refusing: bool, said: str) -> dict[str, Any]:
    if refusing:
        return {"type": "refusal", "refusal": said}
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": []}


def _wants_encrypted(asked: Asked) -> bool:
    return "reasoning.encrypted_content" in (asked.body.get("include") or ())


def _response(asked: Asked, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"resp_{asked.number}",
        "object": "response",
        "created_at": 1_760_000_000 + asked.number,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": asked.body.get("max_output_tokens"),
        "model": asked.model,
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": asked.body.get("store", True),
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
    }


def _usage_of(figures: Figures) -> dict[str, Any]:
    cached = {"cached_tokens": figures.cache_read_tokens, "cache_write_tokens": figures.cache_write_tokens}
    return {
        "input_tokens": figures.input_tokens,
        "input_tokens_details": cached,
        "output_tokens": figures.output_tokens,
        "output_tokens_details": {"reasoning_tokens": figures.reasoning_tokens},
        "total_tokens": figures.input_tokens + figures.output_tokens,
    }
