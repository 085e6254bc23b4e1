"""What travels between the event bus's hub and its clients: messages, and the queue before each connection.

Every message is two frames, each a 4-byte big-endian length and its bytes: a JSON header that says what
it is and for which conversation, and a body, which is an event as JSON or the number of a subscription.
The hub routes by the header and passes the body on as it came.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

MAX_FRAME = 16 * 1024 * 1024
MAX_PENDING = 4096
MAX_PENDING_BYTES = 32 * 1024 * 1024
CLOSE_SECONDS = 0.5


class Op(StrEnum):
    """What a message is. `subscribed` is the hub's; events and resyncs go both ways, the rest is a client's."""

    EVENT = "event"
    RESYNC = "resync"
    SUBSCRIBE = "subscribe"
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBE = "unsubscribe"


@dataclass(frozen=True)
class Packet:
    """One message. Without a conversation a resync is for everyone."""

    op: Op
    conversation_id: str | None = None
    body: bytes = b""

    def encode(self) -> bytes:
        """The message as it stands on the wire."""
        header = json.dumps([self.op, self.conversation_id]).encode()
        return b"".join((len(header).to_bytes(4, "big"), header, len(self.body).to_bytes(4, "big"), self.body))


async def _read_frame(reader: StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_FRAME:
        raise ValueError("a frame is over the limit")
    return await reader.readexactly(size)


async def read_packet(reader: StreamReader) -> Packet | None:
    """Read the next message; None when the other side is gone or does not speak this protocol."""
    try:
        op, conversation_id = json.loads(await _read_frame(reader))
        if not isinstance(conversation_id, str | None):
            return None
        return Packet(Op(op), conversation_id, await _read_frame(reader))
    except (OSError, EOFError, ValueError, TypeError):
        return None


class Outbox:
    """What waits to be written to one connection: bounded, so that a slow reader costs its events and no more.

    Control messages are few and always kept; over the limit the queued events become one resync for all.
    """

    def __init__(self) -> None:
        self._control: deque[Packet] = deque()
        self._events: deque[Packet] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()

    def put_control(self, packet: Packet) -> None:
        """Queue a message that goes ahead of the events."""
        self._control.append(packet)
        self._wake.set()

    def put_event(self, packet: Packet) -> None:
        """Queue an event or a resync."""
        if len(self._events) >= MAX_PENDING or self._bytes + len(packet.body) > MAX_PENDING_BYTES:
            self.lose_events()
        else:
            self._events.append(packet)
            self._bytes += len(packet.body)
        self._wake.set()

    def lose_events(self) -> None:
        """Put one resync for everyone in the place of the queued events."""
        self._events.clear()
        self._bytes = 0
        self._events.append(Packet(Op.RESYNC))
        self._wake.set()

    def drop_control(self) -> None:
        """Forget control messages: the connection they were for is gone."""
        self._control.clear()

    async def write_to(self, writer: StreamWriter) -> None:
        """Write what is queued, as it comes, until cancelled or the connection breaks (OSError)."""
        while True:
            while self._control or self._events:
                writer.write(self._next().encode())
                await writer.drain()
            self._flushed.set()
            self._wake.clear()
            await self._wake.wait()
            self._flushed.clear()

    async def flush(self) -> None:
        """Return when nothing is queued any more."""
        while self._control or self._events:
            self._flushed.clear()
            await self._flushed.wait()

    def _next(self) -> Packet:
        if self._control:
            return self._control.popleft()
        packet = self._events.popleft()
        self._bytes -= len(packet.body)
        return packet


async def close_writer(writer: StreamWriter) -> None:
    """Close a connection: what was written goes out if the other side takes it soon, else it is cut."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    except OSError:  # gone already, or too slow (TimeoutError)
        writer.transport.abort()
