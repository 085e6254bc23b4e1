"""The adapter to Chat Completions: OpenAI's own, and the many servers that speak it more or less."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, cast

from turnlane.activities.providers.base import (
    Finish,
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
from turnlane.activities.providers.clients import Clients
from turnlane.activities.providers.failures import FailureReader
from turnlane.activities.providers.openai_clients import open_client, openai_failures, openai_usage
from turnlane.activities.providers.openai_prompt import chat_messages, chat_tools
from turnlane.activities.providers.wire import TIMEOUT, Decoder, run_call
from turnlane.activities.providers.wording import extra_fields
from turnlane.agent.models import Model
from turnlane.records.base import clean_text
from turnlane.records.prompt import Prompt
from turnlane.records.steps import FinishReason
from turnlane.records.usage import CostValue, Provenance, Usage, counters_of

_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "error": FinishReason.ERROR,
}
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
_OPENROUTER: Final = "openrouter"
_OPENROUTER_HOST: Final = "openrouter.ai"


class OpenAIChatProvider:
    """Speaks Chat Completions, streaming."""

    def __init__(self) -> None:
        self._clients = Clients(open_client)

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        """Make one call; see `Provider.stream`."""
        model = request.model
        client = self._clients.of(model)
        create = cast(Callable[..., Any], client.chat.completions.with_streaming_response.create)
        body = chat_request(model, request.prompt)
        call = create(**body, extra_body=_extra(model, request.prompt, body), timeout=TIMEOUT)
        currency = "USD" if _is_openrouter(model) else None
        decoder = ChatDecoder(openai_failures(model.reported_provider), request.step, currency)
        async with aclosing(run_call(call, decoder)) as parts:
            async for part in parts:
                yield part

    async def aclose(self) -> None:
        """Close the HTTP clients."""
        await self._clients.aclose()


def chat_request(model: Model, prompt: Prompt) -> dict[str, Any]:
    """Return the body of a Chat Completions call; `model.extra` is laid over it by the adapter."""
    body: dict[str, Any] = {
        "model": model.name,
        "messages": chat_messages(prompt, one_system=model.base_url is not None),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if prompt.tools:
        body["tools"] = chat_tools(prompt)
    if model.max_output_tokens is not None:
        # OpenAI's reasoning models refuse the old name, and many compatible servers know no other.
        body["max_tokens" if model.base_url else "max_completion_tokens"] = model.max_output_tokens
    return body


def _is_openrouter(model: Model) -> bool:
    return model.reported_provider == _OPENROUTER or _OPENROUTER_HOST in (model.base_url or "")


def _extra(model: Model, prompt: Prompt, body: dict[str, Any]) -> dict[str, Any] | None:
    """What the body says beyond the protocol: the application's words, and a request for OpenRouter's accounting."""
    asked = {"usage": {"include": True}} if _is_openrouter(model) else {}
    return asked | extra_fields(model, prompt, body) or None


@dataclass
class _Call:
    """One tool call while its fragments arrive."""

    call_id: str | None
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass
class _Calls:
    """Tool calls from fragments, which may be interleaved.

    A fragment belongs to the newest call of its index; a new id on a known index begins another call.
    A fragment without index belongs to the call of its id, or to the last one.
    """

    all: list[_Call] = field(default_factory=list)
    _by_index: dict[Any, _Call] = field(default_factory=dict)

    def take(self, fragment: dict[str, Any]) -> int:
        """Add a fragment; return how much of the arguments it brought."""
        call = self._call_for(fragment)
        function = fragment.get("function") or {}
        call.name = call.name or function.get("name") or ""
        given = function.get("arguments")
        text = given if isinstance(given, str) else "" if given is None else json.dumps(given)
        call.arguments.append(text)
        return len(text)

    def _call_for(self, fragment: dict[str, Any]) -> _Call:
        call_id, index = fragment.get("id") or None, fragment.get("index")
        known = self._by_index.get(index) if index is not None else self._without_index(call_id)
        if known is None or (call_id is not None and known.call_id not in (None, call_id)):
            known = _Call(call_id)
            self.all.append(known)
        known.call_id = known.call_id or call_id
        if index is not None:
            self._by_index[index] = known
        return known

    def _without_index(self, call_id: str | None) -> _Call | None:
        if call_id is None:
            return self.all[-1] if self.all else None
        return next((call for call in self.all if call.call_id == call_id), None)


class ChatDecoder(Decoder):
    """Reads the chunks of one completion."""

    def __init__(self, failures: FailureReader, step: int, currency: str | None = None) -> None:
        super().__init__(failures)
        self._step = step
        self._currency = currency
        self._usage: Usage | None = None
        self._calls = _Calls()
        self._id: str | None = None
        self._model: str | None = None
        self._provider: str | None = None
        self._reason: str | None = None
        self._is_reasoning = False
        self._is_refusal = False

    @property
    def usage(self) -> Usage | None:
        return self._usage

    def feed(self, event: dict[str, Any]) -> Iterator[StreamPart]:
        if event.get("error") or event.get("type") == "error":
            raise self.failed(self.failures.of_stream_error(event))
        if self._id is None and event.get("id"):
            self._id, self._model = event["id"], event.get("model")
            yield ResponseStarted(response_id=self._id)
        self._provider = self._provider or _named(event.get("provider"))
        if event.get("usage"):
            self._usage = openai_usage(event["usage"], side=("prompt", "completion"), cost=self._cost(event["usage"]))
            self.raw_usage = counters_of(event["usage"])
        for choice in event.get("choices") or ():
            if not choice.get("index"):
                yield from self._choice(choice)

    def end(self) -> Iterable[StreamPart]:
        """Settle a completion that gave its finish reason; without one it was cut, `[DONE]` or not."""
        if self._reason is None:
            raise self.failed(self.failures.stream_cut())
        yield from self._end_reasoning()
        for place, call in enumerate(self._calls.all):
            call_id = call.call_id or f"call_{self._step}_{place}"
            yield ToolCall(call_id=call_id, name=call.name, arguments="".join(call.arguments))
        reason = FinishReason.CONTENT_FILTER if self._is_refusal else _REASONS.get(self._reason, FinishReason.OTHER)
        yield Finish(
            reason,
            raw_reason="refusal" if self._is_refusal else self._reason,
            usage=self._usage,
            response_id=self._id,
            model=self._model,
            provider=self._provider,
            raw_usage=self.raw_usage,
        )

    def _choice(self, choice: dict[str, Any]) -> Iterator[StreamPart]:
        if choice.get("error"):
            raise self.failed(self.failures.of_stream_error(choice))
        delta = choice.get("delta") or {}
        yield from self._reasoning(delta)
        refusal = delta.get("refusal")
        self._is_refusal = self._is_refusal or bool(refusal)
        for text in (_text(delta.get("content")), refusal):
            if text:
                yield from self._end_reasoning()
                yield TextDelta(text)
        for fragment in delta.get("tool_calls") or ():
            yield from self._end_reasoning()
            yield ToolArguments(size=self._calls.take(fragment))
        self._reason = choice.get("finish_reason") or self._reason

    def _reasoning(self, delta: dict[str, Any]) -> Iterator[StreamPart]:
        text = next((delta[name] for name in _REASONING_FIELDS if delta.get(name)), None)
        if text is None:
            return
        if not self._is_reasoning:
            self._is_reasoning = True
            yield ReasoningStart()
        yield ReasoningDelta(text)

    def _end_reasoning(self) -> Iterator[StreamPart]:
        """Nothing of it goes back: this protocol has no place for reasoning."""
        if self._is_reasoning:
            self._is_reasoning = False
            yield ReasoningEnd()

    def _cost(self, raw: dict[str, Any]) -> CostValue | None:
        cost = raw.get("cost")
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not (math.isfinite(cost) and cost >= 0):
            return None
        return CostValue(value=float(cost), currency=self._currency, provenance=Provenance.PROVIDER_REPORTED)


def _named(provider: Any) -> str | None:
    """The name of the provider behind a router, as its answers give it."""
    return clean_text(provider)[:128] if isinstance(provider, str) and provider.strip() else None


def _text(content: Any) -> str:
    """The text of a delta: a string, or with some servers a list of typed pieces."""
    if isinstance(content, list):
        return "".join(piece["text"] for piece in content if piece.get("type") == "text")
    return content or ""
