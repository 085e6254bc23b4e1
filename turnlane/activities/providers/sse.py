"""Server-sent events: bytes in, events out.

The SDKs' own readers hide keep-alives, and one of them drops events without an `event:` line, which
some gateways send. Lines end at CR, LF or CRLF only: JSON may hold the other separators of Unicode.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class SseEvent:
    """One event. `data` is None for a comment, which says only that the connection lives."""

    name: str | None
    data: str | None


@dataclass
class SseParser:
    """Takes a byte stream in chunks, whatever their borders, and gives its events as they complete.

    An event that the end of the stream cuts off never completes.
    """

    _rest: bytes = b""
    _name: str | None = None
    _data: list[str] = field(default_factory=list)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that this chunk completes. Raises UnicodeDecodeError for what is not UTF-8."""
        events = [self._take(line.decode()) for line in self._lines(chunk)]
        return [event for event in events if event is not None]

    def _lines(self, chunk: bytes) -> list[bytes]:
        whole = self._rest + chunk
        # A CR at the very end may be half of a CRLF: keep it until the next byte tells.
        held = b"\r" if whole.endswith(b"\r") else b""
        lines = _LINE_END.split(whole.removesuffix(held))
        self._rest = lines.pop() + held
        return lines

    def _take(self, line: str) -> SseEvent | None:
        if not line:
            return self._complete()
        if line.startswith(":"):
            return SseEvent(name=None, data=None)
        key, _, value = line.partition(":")
        if key == "data":
            self._data.append(value.removeprefix(" "))
        elif key == "event":
            self._name = value.removeprefix(" ")
        return None

    def _complete(self) -> SseEvent | None:
        event = SseEvent(self._name, "\n".join(self._data)) if self._data else None
        self._name, self._data = None, []
        return event
