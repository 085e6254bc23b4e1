"""The seam to model providers: neutral stream parts, and the protocol every adapter fulfils."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from turnlane.agent.models import Model
from turnlane.records.base import JsonObject, ProviderEnvelope
from turnlane.records.prompt import Prompt
from turnlane.records.runs import Failure
from turnlane.records.steps import FinishReason
from turnlane.records.tokens import TokenCount
from turnlane.records.usage import Usage

_CODE: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class ProviderRequest:
    """One model call, and which step and attempt of which run it is (for scripts and trace headers)."""

    model: Model
    prompt: Prompt
    conversation_id: str
    run_id: str
    step: int
    attempt: int


@dataclass(frozen=True)
class TextDelta:
    """More text of the answer."""

    text: str


@dataclass(frozen=True)
class ReasoningStart:
    """A reasoning part begins."""


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True)
class ReasoningEnd:
    """Ends the reasoning part; `provider` is what must be sent back with it, byte for byte."""

    provider: ProviderEnvelope | None = None


@dataclass(frozen=True)
class ToolArguments:
    """Arguments of a call are still arriving: a sign of life, nothing to record."""

    size: int


@dataclass(frozen=True)
class ToolCall:
    """A complete tool call. `arguments` is the raw JSON text as the model sent it ("" means {})."""

    call_id: str
    name: str
    arguments: str
    provider: ProviderEnvelope | None = None


@dataclass(frozen=True)
class Source:
    """A source that the model quotes."""

    source_id: str
    url: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class Opaque:
    """Provider output that must be kept and sent back, but means nothing to us."""

    envelope: ProviderEnvelope


@dataclass(frozen=True)
class GeneratedFile:
    """A file the model made, by its bytes. It is kept outside the history, which has a reference to it."""

    data: bytes
    media_type: str
    filename: str | None = None


@dataclass(frozen=True)
class ResponseStarted:
    """The provider answered: the identity of the response, and usage known this early, if any.

    Early usage is `partial`: what the answer itself comes to is not known yet. `raw_usage` are the provider's numbers.
    """

    response_id: str | None = None
    usage: Usage | None = None
    raw_usage: JsonObject | None = None


@dataclass(frozen=True)
class Heartbeat:
    """The connection lives but nothing was said (a ping). It does not feed the idle deadline."""


@dataclass(frozen=True)
class Finish:
    """The protocol's own end marker was seen. A stream that ends without one was cut.

    `provider` is who answered, where the answer itself says so: a router names the provider behind it.
    """

    reason: FinishReason
    raw_reason: str | None = None
    usage: Usage | None = None
    response_id: str | None = None
    model: str | None = None
    evidence: JsonObject | None = None
    provider: str | None = None
    raw_usage: JsonObject | None = None

    @property
    def code(self) -> str | None:
        """Why, in the provider's own word: the category of a refusal, or else its name for the reason."""
        category = (self.evidence or {}).get("refusal_category")
        word = category if isinstance(category, str) else self.raw_reason
        return word if word is not None and _CODE.fullmatch(word) else None


StreamPart = (
    TextDelta
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolArguments
    | ToolCall
    | Source
    | Opaque
    | GeneratedFile
    | ResponseStarted
    | Heartbeat
    | Finish
)


class ProviderFailure(Exception):
    """A model call failed. `failure` is codes only; `usage` is what the provider had reported by then, `raw_usage`
    its own numbers."""

    def __init__(self, failure: Failure, usage: Usage | None = None, raw_usage: JsonObject | None = None) -> None:
        super().__init__(failure.failure_class.value)
        self.failure = failure
        self.usage = usage
        self.raw_usage = raw_usage


@runtime_checkable
class CountsTokens(Protocol):
    """An adapter whose provider counts tokens."""

    async def count_tokens(self, model: Model, prompt: Prompt) -> TokenCount:
        """Return how many tokens a prompt has, or a part of one; unknown when the provider does not say."""
        ...


class Provider(Protocol):
    """An adapter to one wire protocol. One instance serves every call of a worker process."""

    def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        """Make the call once (no retries of its own) and yield neutral parts as they arrive.

        Ends after exactly one `Finish`, or raises `ProviderFailure` and nothing else; a stream that ends
        without the protocol's end marker raises one of class `stream_cut`. Closing the iterator, or
        cancelling the task that reads it, aborts the HTTP request.
        """
        ...

    async def aclose(self) -> None:
        """Close the HTTP clients."""
        ...


@asynccontextmanager
async def closing(stream: AsyncIterator[StreamPart]) -> AsyncIterator[AsyncIterator[StreamPart]]:
    """Close a provider's stream once it is left, early or at its end. Not every adapter's is a generator."""
    parts = aiter(stream)
    try:
        yield parts
    finally:
        close = getattr(parts, "aclose", None)
        if close is not None:
            await close()
