"""The adapter to Anthropic's Messages API."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, cast

import anthropic

from turnlane.activities.providers.anthropic_count import AnthropicCounts
from turnlane.activities.providers.anthropic_fields import anthropic_fields
from turnlane.activities.providers.anthropic_prompt import anthropic_request
from turnlane.activities.providers.base import (
    Finish,
    Heartbeat,
    Opaque,
    ProviderRequest,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    Source,
    StreamPart,
    TextDelta,
    ToolArguments,
    ToolCall,
)
from turnlane.activities.providers.clients import Clients
from turnlane.activities.providers.failures import FailureReader, SdkErrors
from turnlane.activities.providers.wire import TIMEOUT, Decoder, run_call
from turnlane.agent.models import Model
from turnlane.records.base import JsonObject, ProviderEnvelope, clean_text
from turnlane.records.prompt import Prompt
from turnlane.records.steps import FinishReason
from turnlane.records.tokens import TokenCount
from turnlane.records.usage import Usage, UsageValue, counters_of, cut_short

PROVIDER: Final = "anthropic"
FAILURES: Final = FailureReader(
    PROVIDER, SdkErrors(anthropic.APIStatusError, anthropic.APIConnectionError, anthropic.APITimeoutError)
)

_REASONS: Final[Mapping[str, FinishReason]] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "pause_turn": FinishReason.PAUSED,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}


class AnthropicProvider:
    """Speaks the Messages API, streaming."""

    def __init__(self) -> None:
        self._clients = Clients(_open_client)
        self._counts = AnthropicCounts()

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        """Make one call; see `Provider.stream`."""
        client = self._clients.of(request.model)
        body = anthropic_request(request.model, request.prompt)
        create = cast(Callable[..., Any], client.messages.with_streaming_response.create)
        extra, headers = anthropic_fields(request.model, request.prompt, body)
        call = create(**body, stream=True, extra_body=extra or None, extra_headers=headers, timeout=TIMEOUT)
        decoder = AnthropicDecoder(FAILURES, request.step)
        async with aclosing(run_call(call, decoder)) as parts:
            async for part in parts:
                yield part

    async def count_tokens(self, model: Model, prompt: Prompt) -> TokenCount:
        """Return how many tokens a prompt has; see `CountsTokens`."""
        return await self._counts.count(self._clients.of(model), model, prompt)

    async def aclose(self) -> None:
        """Close the HTTP clients."""
        await self._clients.aclose()


def _without_requests(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _open_client(api_key: str, base_url: str | None) -> anthropic.AsyncAnthropic:
    # The SDK writes whole requests to its debug log, and the headers of answers: prompts stay out of logs.
    logging.getLogger("anthropic._base_client").addFilter(_without_requests)
    return anthropic.AsyncAnthropic(api_key=api_key, base_url=base_url, max_retries=0, timeout=TIMEOUT)


@dataclass
class _Block:
    """One content block while it arrives."""

    start: dict[str, Any]
    text: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.start.get("type"))


class AnthropicDecoder(Decoder):
    """Reads the events of one message."""

    def __init__(self, failures: FailureReader, step: int) -> None:
        super().__init__(failures)
        self._step = step
        self._usage: dict[str, Any] = {}
        self._is_counted = False
        self._blocks: dict[int, _Block] = {}
        self._id: str | None = None
        self._model: str | None = None
        self._stop: dict[str, Any] = {}
        self._calls = 0
        self._sources = 0

    @property
    def usage(self) -> Usage | None:
        if not self._usage:
            return None
        usage = anthropic_usage(self._usage)
        return usage if self._is_counted else cut_short(usage)

    def feed(self, event: dict[str, Any]) -> Iterable[StreamPart]:
        match event.get("type"):
            case "message_start":
                return self._message_start(event["message"])
            case "content_block_start":
                return self._block_start(event["index"], event["content_block"])
            case "content_block_delta":
                return self._block_delta(self._blocks[event["index"]], event["delta"])
            case "content_block_stop":
                return self._block_stop(self._blocks.pop(event["index"]))
            case "message_delta":
                self._stop.update(event["delta"])
                self._note_usage(event.get("usage"))
                self._is_counted = True
            case "message_stop":
                self.is_done = True
            case "error":
                raise self.failed(self.failures.of_stream_error(event))
            case "ping":
                return [Heartbeat()]
        return []

    def end(self) -> Iterable[StreamPart]:
        if not self.is_done:
            raise self.failed(self.failures.stream_cut())
        # A block that nobody closed was cut by the end of the answer.
        yield from (self._call(block) for block in self._blocks.values() if block.kind == "tool_use")
        raw = self._stop.get("stop_reason")
        reason = _REASONS.get(str(raw), FinishReason.OTHER)
        yield Finish(
            # Calls of ours that stand beside what the provider paused in come first: it goes on behind their results.
            FinishReason.TOOL_CALLS if reason is FinishReason.PAUSED and self._calls else reason,
            raw_reason=raw if isinstance(raw, str) else None,
            usage=self.usage,
            response_id=self._id,
            model=self._model,
            evidence=self._evidence(),
            raw_usage=self.raw_usage,
        )

    def _evidence(self) -> JsonObject | None:
        """The category of a refusal, if the provider named one."""
        details = self._stop.get("stop_details")
        category = details.get("category") if isinstance(details, dict) else None
        return {"refusal_category": category} if isinstance(category, str) else None

    def _message_start(self, message: dict[str, Any]) -> Iterator[StreamPart]:
        self._id, self._model = message.get("id"), message.get("model")
        self._note_usage(message.get("usage"))
        yield ResponseStarted(response_id=self._id, usage=self.usage, raw_usage=self.raw_usage)

    def _note_usage(self, raw: dict[str, Any] | None) -> None:
        """Later figures are totals and replace earlier ones; a figure that is null says nothing."""
        self._usage.update({name: value for name, value in (raw or {}).items() if value is not None})
        self.raw_usage = counters_of(self._usage)

    def _block_start(self, index: int, start: dict[str, Any]) -> Iterator[StreamPart]:
        block = self._blocks[index] = _Block(start)
        if block.kind in ("thinking", "redacted_thinking"):
            yield ReasoningStart()
        if block.kind == "text" and start.get("text"):
            yield TextDelta(start["text"])
        if block.kind == "thinking" and start.get("thinking"):
            block.text.append(start["thinking"])
            yield ReasoningDelta(start["thinking"])

    def _block_delta(self, block: _Block, delta: dict[str, Any]) -> Iterator[StreamPart]:
        match delta.get("type"):
            case "text_delta":
                yield TextDelta(delta["text"])
            case "thinking_delta":
                block.text.append(delta["thinking"])
                yield ReasoningDelta(delta["thinking"])
            case "signature_delta":
                block.signature.append(delta["signature"])
            case "input_json_delta":
                block.arguments.append(delta["partial_json"])
                yield ToolArguments(size=len(delta["partial_json"]))
            case "citations_delta":
                yield from self._source(delta["citation"])

    def _source(self, citation: dict[str, Any]) -> Iterator[StreamPart]:
        if citation.get("url"):
            self._sources += 1
            source_id = f"source_{self._step}_{self._sources}"
            yield Source(source_id=source_id, url=citation["url"], title=citation.get("title"))

    def _block_stop(self, block: _Block) -> Iterator[StreamPart]:
        match block.kind:
            case "text":
                return
            case "thinking" | "redacted_thinking":
                yield ReasoningEnd(provider=_thinking(block))
            case "tool_use":
                yield self._call(block)
            case _:
                yield Opaque(_envelope(_whole(block)))

    def _call(self, block: _Block) -> ToolCall:
        call_id = block.start.get("id") or f"call_{self._step}_{self._calls}"
        self._calls += 1
        given = block.start.get("input")
        arguments = "".join(block.arguments) or (json.dumps(given) if given else "")
        return ToolCall(call_id=call_id, name=block.start["name"], arguments=arguments)


def _envelope(data: JsonObject) -> ProviderEnvelope:
    return ProviderEnvelope(provider=PROVIDER, data=data)


def _thinking(block: _Block) -> ProviderEnvelope | None:
    """The block as it must be sent back; None for thinking that came without a signature.

    One that holds what cannot be stored is kept for people alone: its signature would not fit what is left of it.
    """
    if block.kind == "redacted_thinking":
        return _envelope(block.start)
    text, signature = "".join(block.text), "".join(block.signature) or block.start.get("signature")
    if not signature or clean_text(text) != text:
        return None
    return _envelope({"type": "thinking", "thinking": text, "signature": signature})


def _whole(block: _Block) -> JsonObject:
    """A block that is not ours to read, with its input put together."""
    return {**block.start, "input": json.loads("".join(block.arguments))} if block.arguments else block.start


def anthropic_usage(raw: Mapping[str, Any]) -> Usage:
    """Read raw usage: the provider's `input_tokens` leaves out what came from or went to the cache."""
    written, read = raw.get("cache_creation_input_tokens"), raw.get("cache_read_input_tokens")
    fresh = UsageValue.reported(raw.get("input_tokens"))
    cached = sum(UsageValue.reported(figure).value or 0 for figure in (written, read))
    details = raw.get("output_tokens_details")
    return Usage(
        input_tokens=UsageValue.reported(fresh.value + cached) if fresh.value is not None else fresh,
        output_tokens=UsageValue.reported(raw.get("output_tokens")),
        reasoning_tokens=UsageValue.reported(details.get("thinking_tokens") if isinstance(details, dict) else None),
        cache_read_tokens=UsageValue.reported(read),
        cache_write_tokens=UsageValue.reported(written),
    )
