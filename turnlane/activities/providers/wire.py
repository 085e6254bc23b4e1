"""The wire: how every adapter runs one streamed call, whatever its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final, Protocol

import httpx2

from turnlane.activities.providers.base import Heartbeat, ProviderFailure, StreamPart
from turnlane.activities.providers.failures import FailureReader
from turnlane.activities.providers.sse import SseEvent, SseParser
from turnlane.records.base import JsonObject
from turnlane.records.runs import Failure
from turnlane.records.usage import Usage

CONNECT_SECONDS: Final = 10.0
_DRAIN_SECONDS: Final = 0.05

TIMEOUT: Final = httpx2.Timeout(None, connect=CONNECT_SECONDS)
"""Only connecting has a deadline: a slow stream that lives is the caller's to judge."""

_ODDITIES = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
"""What reading a body that does not follow its protocol can raise."""


class StreamedResponse(Protocol):
    """What an SDK's `with_streaming_response` gives: the answer's head, its body still to be read."""

    @property
    def http_response(self) -> httpx2.Response: ...


class Decoder(ABC):
    """Turns the events of one response into neutral parts. `usage` is what is known so far, `raw_usage` the
    provider's numbers behind it."""

    def __init__(self, failures: FailureReader) -> None:
        self.failures = failures
        self.is_done = False
        self.raw_usage: JsonObject | None = None

    @property
    @abstractmethod
    def usage(self) -> Usage | None:
        """What the provider has reported by now; None if nothing."""

    @abstractmethod
    def feed(self, event: dict[str, Any]) -> Iterable[StreamPart]:
        """Take one event; set `is_done` when the protocol says that no more will come."""

    @abstractmethod
    def end(self) -> Iterable[StreamPart]:
        """Take the end of the stream: yield `Finish`, or raise the failure that a cut stream is."""

    def failed(self, failure: Failure) -> ProviderFailure:
        """The failure as it is raised, with the usage reported before it."""
        return ProviderFailure(failure, self.usage, self.raw_usage)


async def run_call(
    call: AbstractAsyncContextManager[StreamedResponse], decoder: Decoder
) -> AsyncGenerator[StreamPart, None]:
    """Make the call and yield its parts; whatever goes wrong is raised as `ProviderFailure`.

    The failure carries no cause: an SDK's error holds the request with its key, and the provider's text.
    """
    failure: Failure | None = None
    try:
        async with call as response, aclosing(_parts(response.http_response, decoder)) as parts:
            async for part in parts:
                yield part
    except ProviderFailure:
        raise
    except Exception as error:
        failure = decoder.failures.of(error)
    if failure is not None:
        raise decoder.failed(failure)


async def _parts(response: httpx2.Response, decoder: Decoder) -> AsyncGenerator[StreamPart, None]:
    parser = SseParser()
    async with aclosing(response.aiter_bytes()) as chunks:
        async for chunk in chunks:
            for event in _events(parser, chunk, decoder):
                # A stream may say more after its end marker, and it means nothing.
                for part in () if decoder.is_done else _decoded(event, decoder):
                    yield part
            if decoder.is_done:
                await _drain(chunks)
                break
    for part in decoder.end():
        yield part


def _events(parser: SseParser, chunk: bytes, decoder: Decoder) -> list[SseEvent]:
    with _following_the_protocol(decoder):
        return parser.feed(chunk)


def _decoded(event: SseEvent, decoder: Decoder) -> list[StreamPart]:
    if event.data is None:
        return [Heartbeat()]
    if event.data.startswith("[DONE]"):
        decoder.is_done = True
        return []
    with _following_the_protocol(decoder):
        return list(decoder.feed(_parsed(event)))


@contextlib.contextmanager
def _following_the_protocol(decoder: Decoder) -> Iterator[None]:
    """Turn what reading a garbled answer raises into a failure; `from None`, for the cause would hold content."""
    try:
        yield
    except _ODDITIES:
        raise decoder.failed(decoder.failures.malformed()) from None


def _parsed(event: SseEvent) -> dict[str, Any]:
    parsed = json.loads(event.data or "", parse_constant=_refuse_constant)
    if not isinstance(parsed, dict):
        raise TypeError("an event is an object")
    if event.name is not None:
        parsed.setdefault("type", event.name)
    return parsed


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read what little follows the last event, so that the connection can be used again."""
    with contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in chunks:
                continue
