"""The seam between fault plans and wire protocols: events, refusals, and what a protocol must offer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from turnlane.testing.fault_plan import Content, ToolUse

_UNSAYABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True)
class SseEvent:
    """One server-sent event; a `comment` is a keep-alive that SDKs skip."""

    data: str = ""
    name: str | None = None
    comment: str | None = None

    def encode(self) -> bytes:
        """The event as it stands on the wire."""
        if self.comment is not None:
            return f": {self.comment}\n\n".encode()
        head = f"event: {self.name}\n" if self.name else ""
        return f"{head}data: {self.data}\n\n".encode()


def event(data: Mapping[str, Any], name: str | None = None) -> SseEvent:
    """Return the event that carries a JSON object."""
    return SseEvent(json.dumps(data, ensure_ascii=False, separators=(",", ":")), name)


@dataclass(frozen=True)
class Asked:
    """A request as a protocol sees it: its number on this server, its headers (lower case) and body."""

    number: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))


class RequestRefused(Exception):
    """A request that the real provider would answer with 400 (or 401). The message holds no content."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class Wire(Protocol):
    """One wire protocol of the fault server."""

    def check(self, asked: Asked) -> None:
        """Raise RequestRefused for a request the provider would not accept."""
        ...

    def events(self, content: Content, asked: Asked) -> Iterator[SseEvent]:
        """Yield a complete answer, the end marker included."""
        ...

    def ping(self) -> SseEvent:
        """The keep-alive."""
        ...

    def failure(self, code: str, as_failed_response: bool, asked: Asked) -> SseEvent:
        """An error event inside a stream."""
        ...

    def error_body(self, status: int, code: str, message: str) -> dict[str, Any]:
        """The body of an error status."""
        ...


def require(condition: object, code: str, message: str) -> None:
    """Raise RequestRefused unless the condition holds."""
    if not condition:
        raise RequestRefused(code, message)


def require_key(headers: Mapping[str, str], *names: str) -> None:
    """Raise RequestRefused, as 401, when none of the headers that may carry the key is there."""
    if not any(headers.get(name, "").strip() for name in names):
        raise RequestRefused("authentication_error", f"the header {' or '.join(names)} is missing", 401)


def require_basics(body: Mapping[str, Any]) -> None:
    """Check what every protocol wants: a model, streaming (all this server does), storable text."""
    require(isinstance(body.get("model"), str) and body["model"], "model_missing", "model is a non-empty string")
    require(body.get("stream") is True, "stream_required", "this server streams only")
    require(not _holds_unsayable(body), "invalid_characters", "a text has NUL or a lone surrogate in it")


def require_said(text: object, where: str) -> None:
    """Check that a text is one and is not blank."""
    require(isinstance(text, str), "text_missing", f"{where} has no text")
    require(str(text).strip(), "blank_text", f"{where} is blank")


def arguments_of(call: ToolUse) -> str:
    """The arguments of a call as JSON text."""
    if isinstance(call.arguments, str):
        return call.arguments
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def is_json_object(text: object) -> bool:
    """Whether a text is JSON of an object."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _holds_unsayable(value: Any) -> bool:
    if isinstance(value, str):
        return _UNSAYABLE.search(value) is not None
    if isinstance(value, dict):
        return any(_holds_unsayable(item) for pair in value.items() for item in pair)
    return isinstance(value, list) and any(_holds_unsayable(item) for item in value)
