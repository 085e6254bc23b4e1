"""Plans of the fault server: what it answers, step by step, whatever the wire protocol.

A plain step is a complete answer (`Pass`, `ToolCalls`, `Length`, `Refusal`, `Paused`) or a failure without one
(`HttpError`, `HangUp`, `Silent`, `PingsOnly`). A wrapping step plays the answer of another step and
disturbs it (`CutAfter`, `Slow`, `Gate`, `BadJson`, `UsageMissing`, `StreamError`, `DataOnly`). Events are
counted from 0, as they stand on the wire.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Token counts an answer reports. `input_tokens` counts all input, cached included.

    OpenAI's wire reports it so; on Anthropic's wire the cached ones stand apart. `cost` is in US dollars and
    reported as OpenRouter does, to requests that ask for it.
    """

    input_tokens: int = 11
    output_tokens: int = 7
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True)
class Reasoning:
    """Thinking before the answer. `redacted` sends Anthropic's redacted block in place of the text.

    Where a protocol protects thinking, it is signed with `seal` and the seal is checked when it returns.
    """

    text: str
    chunks: int = 2
    redacted: str | None = None


@dataclass(frozen=True)
class ToolUse:
    """One call. `arguments` may be a raw string, to send what a broken model would."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    call_id: str | None = None


class Ending(StrEnum):
    """How a complete answer ends; every protocol has its own word for it."""

    STOP = "stop"
    TOOLS = "tools"
    LENGTH = "length"
    REFUSAL = "refusal"
    PAUSED = "paused"


@dataclass(frozen=True, kw_only=True)
class Content:
    """A complete answer in neutral terms: what a wire protocol turns into events."""

    text: str = ""
    chunks: int = 1
    reasoning: Reasoning | None = None
    calls: tuple[ToolUse, ...] = ()
    between: Reasoning | None = None
    fragments: int = 2
    interleaved: bool = False
    same_index: bool = False
    cut_call: bool = False
    searches: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    refusal: str = ""
    category: str | None = None
    ending: Ending = Ending.STOP
    usage: Figures | None = field(default_factory=Figures)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    reasoning: Reasoning | str | None = None
    usage: Figures = field(default_factory=Figures)

    def _thinking(self) -> Reasoning | None:
        return Reasoning(self.reasoning) if isinstance(self.reasoning, str) else self.reasoning


@dataclass(frozen=True)
class Pass(_Answer):
    """Say `text` in `chunks` pieces and stop. `found` are searches of a `Paused` step, told before the text."""

    text: str = "ok"
    chunks: int = 1
    found: Sequence[str] = ()

    def content(self) -> Content:
        return Content(
            text=self.text,
            chunks=self.chunks,
            reasoning=self._thinking(),
            found=tuple(self.found),
            usage=self.usage,
        )


@dataclass(frozen=True)
class Paused(_Answer):
    """Say `text`, search the web with the tool of the provider's own, and pause (Anthropic's; others just stop).

    `searches` and `found` name calls of that tool: those that are made, and those whose result is told.
    """

    text: str = ""
    searches: Sequence[str] = ("srvtoolu_1",)
    found: Sequence[str] = ()

    def content(self) -> Content:
        return Content(
            text=self.text,
            reasoning=self._thinking(),
            searches=tuple(self.searches),
            found=tuple(self.found),
            ending=Ending.PAUSED,
            usage=self.usage,
        )


@dataclass(frozen=True)
class ToolCalls(_Answer):
    """Ask for tool calls, each call's arguments in `fragments` pieces.

    `interleaved` mixes the fragments of parallel calls; `same_index` gives every call index 0, as some
    Chat Completions gateways do (the other protocols ignore it). `between` is thought before each call but the
    first, where a protocol has that (Anthropic's), and `searches` are begun before them, as those of `Paused`.
    """

    calls: Sequence[ToolUse]
    text: str = ""
    chunks: int = 1
    fragments: int = 2
    interleaved: bool = False
    same_index: bool = False
    between: str | None = None
    searches: Sequence[str] = ()

    def content(self) -> Content:
        return Content(
            text=self.text,
            chunks=self.chunks,
            reasoning=self._thinking(),
            calls=tuple(self.calls),
            fragments=self.fragments,
            interleaved=self.interleaved,
            same_index=self.same_index,
            between=None if self.between is None else Reasoning(self.between),
            searches=tuple(self.searches),
            ending=Ending.TOOLS,
            usage=self.usage,
        )


@dataclass(frozen=True)
class Length(_Answer):
    """Reach the output limit: after `text`, or in the middle of the arguments of the last of `calls`."""

    text: str = ""
    calls: Sequence[ToolUse] = ()
    chunks: int = 1

    def content(self) -> Content:
        return Content(
            text=self.text,
            chunks=self.chunks,
            reasoning=self._thinking(),
            calls=tuple(self.calls),
            cut_call=bool(self.calls),
            ending=Ending.LENGTH,
            usage=self.usage,
        )


@dataclass(frozen=True)
class Refusal(_Answer):
    """Decline. With `text` the model says so itself (OpenAI's refusal part); without, a filter stopped it."""

    text: str = ""
    category: str = "cyber"

    def content(self) -> Content:
        return Content(
            refusal=self.text,
            category=self.category,
            reasoning=self._thinking(),
            ending=Ending.REFUSAL,
            usage=self.usage,
        )


@dataclass(frozen=True)
class HttpError:
    """Answer with an error status. Without `body`, the protocol's own error object with `code`."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    code: str | None = None


@dataclass(frozen=True)
class HangUp:
    """Close the connection without a byte."""


@dataclass(frozen=True)
class Silent:
    """Accept the request and say nothing, not even a status, until `release` is set; then play `before`."""

    before: Step = field(default_factory=Pass)
    release: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class PingsOnly:
    """Answer 200 and send the protocol's keep-alive every `every` seconds, and nothing else."""

    every: float = 0.02


@dataclass(frozen=True)
class CutAfter:
    """Play `of`, then close after `events` events or `body_bytes` bytes of the body.

    The connection drops in the middle of the body; a `clean` cut ends the body properly, only too early.
    """

    events: int | None = None
    body_bytes: int | None = None
    of: Step = field(default_factory=Pass)
    clean: bool = False

    def __post_init__(self) -> None:
        if (self.events is None) is (self.body_bytes is None):
            raise ValueError("cut after a number of events or of bytes")


@dataclass(frozen=True)
class Slow:
    """Play `of`, waiting `delay` seconds before each event."""

    delay: float
    of: Step = field(default_factory=Pass)


@dataclass(frozen=True)
class Gate:
    """Play `of`, and after `after` events set `reached` and wait for `event`.

    The status and the first `after` events are on their way when `reached` is set.
    """

    event: asyncio.Event = field(default_factory=asyncio.Event)
    of: Step = field(default_factory=Pass)
    after: int = 1
    reached: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class BadJson:
    """Play `of`, with the data of event `at` broken off so that it is no JSON."""

    of: Step = field(default_factory=Pass)
    at: int = 1


@dataclass(frozen=True)
class UsageMissing:
    """Play `of` without usage figures."""

    of: Step = field(default_factory=Pass)


@dataclass(frozen=True)
class StreamError:
    """Play `after` events of `of`, then the protocol's error event, then end the body.

    With `as_failed_response`, Responses says `response.failed` rather than `error`.
    """

    code: str = "overloaded_error"
    after: int = 1
    of: Step = field(default_factory=Pass)
    as_failed_response: bool = False


@dataclass(frozen=True)
class DataOnly:
    """Play `of` without `event:` lines, as some gateways do."""

    of: Step = field(default_factory=Pass)


ContentStep = Pass | ToolCalls | Length | Refusal | Paused
Step = (
    ContentStep
    | HttpError
    | HangUp
    | Silent
    | PingsOnly
    | CutAfter
    | Slow
    | Gate
    | BadJson
    | UsageMissing
    | StreamError
    | DataOnly
)


def seal(*sealed: str) -> str:
    """Return the signature under which thinking is given out: it fits this text and no other."""
    return hashlib.sha256("\x00".join(("seal", *sealed)).encode()).hexdigest()


def pieces(text: str, count: int) -> list[str]:
    """Cut a text into at most `count` pieces of nearly equal length, none of them empty."""
    size = max(1, -(-len(text) // max(1, count)))
    return [text[start : start + size] for start in range(0, len(text), size)]


def mixed(streams: Sequence[Sequence[Any]], interleaved: bool) -> list[Any]:
    """Put several sequences behind one another, or `interleaved` by turns."""
    if not interleaved:
        return [item for stream in streams for item in stream]
    longest = max((len(stream) for stream in streams), default=0)
    return [stream[turn] for turn in range(longest) for stream in streams if turn < len(stream)]
