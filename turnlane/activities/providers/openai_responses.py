"""The adapter to OpenAI's Responses API. Nothing is stored there: reasoning travels encrypted, with us."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from turnlane.activities.providers.base import (
    Finish,
    GeneratedFile,
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
from turnlane.activities.providers.failures import FailureReader
from turnlane.activities.providers.openai_clients import open_client, openai_failures, openai_usage
from turnlane.activities.providers.openai_prompt import responses_items, responses_tools
from turnlane.activities.providers.wire import TIMEOUT, Decoder, run_call
from turnlane.activities.providers.wording import extra_fields
from turnlane.agent.models import Model, OpenAIModel
from turnlane.records.base import ProviderEnvelope, digest
from turnlane.records.prompt import Prompt
from turnlane.records.steps import FinishReason
from turnlane.records.usage import Usage, counters_of

PROVIDER: Final = "openai"
FAILURES: Final = openai_failures(PROVIDER)

_INCOMPLETE: Final[Mapping[str, FinishReason]] = {
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
_WITHOUT_REASONING: Final = re.compile(r"(ft:)?(gpt-3|gpt-4|chatgpt-|gpt-5(\.\d+)?-chat)")
"""Models that refuse a request for encrypted reasoning."""


class OpenAIResponsesProvider:
    """Speaks the Responses API, streaming."""

    def __init__(self) -> None:
        self._clients = Clients(open_client)

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        """Make one call; see `Provider.stream`."""
        model = request.model
        client = self._clients.of(model)
        create = cast(Callable[..., Any], client.responses.with_streaming_response.create)
        body = responses_request(model, request.prompt)
        extra = extra_fields(model, request.prompt, body)
        call = create(**body, extra_body=extra or None, timeout=TIMEOUT)
        decoder = ResponsesDecoder(FAILURES, request.step, responses_origin(model))
        async with aclosing(run_call(call, decoder)) as parts:
            async for part in parts:
                yield part

    async def aclose(self) -> None:
        """Close the HTTP clients."""
        await self._clients.aclose()


def responses_request(model: Model, prompt: Prompt) -> dict[str, Any]:
    """Return the body of a Responses call; `model.extra` is laid over it by the adapter."""
    body: dict[str, Any] = {
        "model": model.name,
        "input": responses_items(prompt, responses_origin(model)),
        "stream": True,
        "store": False,
    }
    if not _WITHOUT_REASONING.match(model.name):
        body["include"] = ["reasoning.encrypted_content"]
    instructions = "\n\n".join(given.text for given in prompt.system_texts if given.text.strip())
    if instructions:
        body["instructions"] = instructions
    if prompt.tools:
        body["tools"] = responses_tools(prompt)
    if model.max_output_tokens is not None:
        body["max_output_tokens"] = model.max_output_tokens
    return body


def responses_origin(model: Model) -> str | None:
    """Where a model's reasoning was encrypted: None at OpenAI's own address with the usual key, else a digest.

    No other account, region or server can read it, and one that is sent it refuses the whole request.
    """
    place = (model.base_url, model.api_key_env)
    return None if place == (None, OpenAIModel.api_key_env) else digest(place)


class ResponsesDecoder(Decoder):
    """Reads the events of one response; what it must send back is marked with its `origin`."""

    def __init__(self, failures: FailureReader, step: int, origin: str | None = None) -> None:
        super().__init__(failures)
        self._origin = origin
        self._step = step
        self._usage: Usage | None = None
        self._id: str | None = None
        self._model: str | None = None
        self._incomplete: str | None = None
        self._open_reasoning: set[int | None] = set()
        self._calls: list[str] = []
        self._sources = 0
        self._is_refusal = False

    @property
    def usage(self) -> Usage | None:
        return self._usage

    def feed(self, event: dict[str, Any]) -> Iterable[StreamPart]:
        match event.get("type"):
            case "response.created":
                return self._started(event["response"])
            case "response.output_text.delta":
                return [TextDelta(event["delta"])]
            case "response.refusal.delta":
                self._is_refusal = True
                return [TextDelta(event["delta"])]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._reasoning(event.get("output_index"), event["delta"])
            case "response.reasoning_summary_part.added":
                return self._reasoning(event.get("output_index"), "\n\n") if event.get("summary_index") else []
            case "response.function_call_arguments.delta":
                return [ToolArguments(size=len(event["delta"]))]
            case "response.output_text.annotation.added":
                return self._source(event["annotation"])
            case "response.output_item.added":
                return self._item_added(event.get("output_index"), event["item"])
            case "response.output_item.done":
                return self._item_done(event.get("output_index"), event["item"])
            case "response.completed" | "response.incomplete":
                return self._ended(event["response"])
            case "response.failed" | "error":
                raise self._failure(event)
            case "keepalive":
                return [Heartbeat()]
        if "error" in event and "type" not in event:
            raise self._failure(event)
        return []

    def end(self) -> Iterable[StreamPart]:
        if not self.is_done:
            raise self.failed(self.failures.stream_cut())
        yield Finish(
            self._reason(),
            raw_reason="refusal" if self._is_refusal and self._incomplete is None else self._incomplete,
            usage=self._usage,
            response_id=self._id,
            model=self._model,
            raw_usage=self.raw_usage,
        )

    def _reason(self) -> FinishReason:
        if self._incomplete is not None:
            return _INCOMPLETE.get(self._incomplete, FinishReason.OTHER)
        if self._is_refusal:
            return FinishReason.CONTENT_FILTER
        return FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP

    def _started(self, response: dict[str, Any]) -> Iterator[StreamPart]:
        self._id, self._model = response.get("id"), response.get("model")
        yield ResponseStarted(response_id=self._id)

    def _ended(self, response: dict[str, Any]) -> Iterator[StreamPart]:
        """Take the final record, which also has the calls that an output limit cut short."""
        self._id, self._model = response.get("id") or self._id, response.get("model") or self._model
        self._note_usage(response)
        details = response.get("incomplete_details")
        if response.get("status") == "incomplete" or details:
            self._incomplete = (details or {}).get("reason") or "incomplete"
        calls = [item for item in response.get("output") or () if item.get("type") == "function_call"]
        for item in calls[len(self._calls) :]:
            yield self._call(item)
        self.is_done = True

    def _note_usage(self, response: dict[str, Any]) -> None:
        if response.get("usage"):
            self._usage = openai_usage(response["usage"], side=("input", "output"))
            self.raw_usage = counters_of(response["usage"])

    def _failure(self, event: dict[str, Any]) -> Exception:
        response = event.get("response") or {}
        self._note_usage(response)
        return self.failed(self.failures.of_stream_error(response if response else event))

    def _reasoning(self, index: int | None, text: str) -> Iterator[StreamPart]:
        yield from self._open(index)
        yield ReasoningDelta(text)

    def _open(self, index: int | None) -> Iterator[StreamPart]:
        if index not in self._open_reasoning:
            self._open_reasoning.add(index)
            yield ReasoningStart()

    def _item_added(self, index: int | None, item: dict[str, Any]) -> Iterator[StreamPart]:
        if item.get("type") == "reasoning":
            yield from self._open(index)

    def _item_done(self, index: int | None, item: dict[str, Any]) -> Iterator[StreamPart]:
        match item.get("type"):
            case "message":
                return
            case "reasoning":
                yield from self._open(index)
                self._open_reasoning.discard(index)
                yield ReasoningEnd(provider=self._envelope(item) if item.get("encrypted_content") else None)
            case "function_call":
                yield self._call(item)
            case "image_generation_call" if item.get("result"):
                yield _generated_image(item)
            case _:
                yield Opaque(self._envelope(item))

    def _envelope(self, item: dict[str, Any]) -> ProviderEnvelope:
        return ProviderEnvelope(provider=PROVIDER, data=item, origin=self._origin)

    def _call(self, item: dict[str, Any]) -> ToolCall:
        call_id = item.get("call_id") or f"call_{self._step}_{len(self._calls)}"
        self._calls.append(call_id)
        return ToolCall(call_id=call_id, name=item["name"], arguments=item.get("arguments") or "")

    def _source(self, annotation: dict[str, Any]) -> Iterator[StreamPart]:
        if annotation.get("url"):
            self._sources += 1
            source_id = f"source_{self._step}_{self._sources}"
            yield Source(source_id=source_id, url=annotation["url"], title=annotation.get("title"))


def _generated_image(item: dict[str, Any]) -> GeneratedFile:
    """The image of a finished generation. The item itself is not kept: it is the image in base64."""
    kind = item.get("output_format") or "png"
    return GeneratedFile(data=base64.b64decode(item["result"]), media_type=f"image/{kind}")
