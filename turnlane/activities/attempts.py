"""Attempts: one model call under audit, what of its answer is kept as evidence, and which one code runs in."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextvars import ContextVar
from typing import Any

from turnlane.activities.providers.base import Finish, Heartbeat, ProviderRequest, ResponseStarted, StreamPart, closing
from turnlane.activities.sealing import canonical_bytes
from turnlane.records.base import JsonObject
from turnlane.records.invocations import EffectiveIdentity, InvocationAttempt

_CURRENT: ContextVar[InvocationAttempt | None] = ContextVar("turnlane_invocation_attempt", default=None)


def current_attempt() -> InvocationAttempt | None:
    """The attempt on whose behalf this code runs: inside a provider's call and its reads; None elsewhere.

    For HTTP hooks, custom providers and the like, which are told nothing else.
    """
    attempt = _CURRENT.get()
    return None if attempt is None else attempt.model_copy()


async def audited(
    stream: AsyncIterator[StreamPart], attempt: InvocationAttempt, evidence: ResponseEvidence
) -> AsyncGenerator[StreamPart, None]:
    """Yield a provider's parts unchanged, each read made as `attempt`, and give each to `evidence`."""
    async with closing(stream) as parts:
        while (part := await _read(parts, attempt)) is not None:
            evidence.take(part)
            yield part


async def _read(iterator: AsyncIterator[StreamPart], attempt: InvocationAttempt) -> StreamPart | None:
    # Set and reset within one read: a generator is resumed in whatever context asks it for more.
    token = _CURRENT.set(attempt)
    try:
        return await anext(iterator, None)
    finally:
        _CURRENT.reset(token)


class ResponseEvidence:
    """What is kept of an answer: its parts until the first that does not fit in `limit` bytes, then only a count
    and a digest of all of them. The answer itself is not touched."""

    def __init__(self, limit: int) -> None:
        self._room = limit
        self._kept: list[Any] = []
        self._parts = 0
        self._digest = hashlib.sha256()
        self._is_full = False
        self._response_id: str | None = None
        self._model: str | None = None
        self._provider: str | None = None

    def take(self, part: StreamPart) -> None:
        """Note one part."""
        if isinstance(part, Heartbeat):
            return
        self._identify(part)
        told = {"type": type(part).__name__, "part": part}
        data = canonical_bytes(told)
        self._parts += 1
        self._digest.update(data)
        self._room -= len(data)
        self._is_full = self._is_full or self._room < 0
        if not self._is_full:
            self._kept.append(told)

    @property
    def has_begun(self) -> bool:
        """Whether anything was answered."""
        return self._parts > 0

    def _identify(self, part: StreamPart) -> None:
        if isinstance(part, ResponseStarted | Finish):
            self._response_id = part.response_id or self._response_id
        if isinstance(part, Finish):
            self._model, self._provider = part.model, part.provider

    @property
    def effective(self) -> EffectiveIdentity:
        """Who answered, by the answer's own word."""
        return EffectiveIdentity(provider=self._provider, model_id=self._model, response_id=self._response_id)

    @property
    def payload(self) -> dict[str, Any]:
        """The evidence, as it is encrypted."""
        if not self._is_full:
            return {"parts": self._kept}
        return {"parts": self._kept, "truncated": {"parts": self._parts, "sha256": self._digest.hexdigest()}}


def request_payload(request: ProviderRequest) -> JsonObject:
    """What is asked of the provider: model, options and prompt. Keys, headers and addresses stay out."""
    model = request.model
    payload: JsonObject = {
        "provider": model.reported_provider,
        "model": model.name,
        "max_output_tokens": model.max_output_tokens,
        "extra": dict(model.extra),
        "prompt": request.prompt.model_dump(mode="json", exclude_none=True),
    }
    return payload
