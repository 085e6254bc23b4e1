"""A small HTTP/1.1 server on the loopback, one request a connection: just enough for a model's API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

HEAD_BYTES = 64 * 1024
BODY_BYTES = 64 * 1024 * 1024
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class MalformedRequest(Exception):
    """What arrived is not an HTTP request this server reads."""


@dataclass(frozen=True)
class HttpRequest:
    """A request: header names in lower case, the path without its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """Read one request, or None when the peer closed without sending any. Raises MalformedRequest."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise MalformedRequest("the head broke off") from None
    except asyncio.LimitOverrunError:
        raise MalformedRequest("the head is too large") from None
    lines = head.decode("latin-1").split("\r\n")
    method, target = _request_line(lines[0])
    headers = dict(_header(line) for line in lines[1:] if line)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    return HttpRequest(method, target.partition("?")[0], headers, await _read_body(reader, headers))


def _request_line(line: str) -> tuple[str, str]:
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise MalformedRequest("not an HTTP/1 request line")
    return words[0], words[1]


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise MalformedRequest("not a header line")
    return name.lower(), value.strip()


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await _read_chunks(reader)
        size = _size(headers.get("content-length", "0"), 10)
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise MalformedRequest("the body broke off") from None


def _size(text: str, base: int) -> int:
    try:
        size = int(text, base)
    except ValueError:
        raise MalformedRequest("not a length") from None
    if not 0 <= size <= BODY_BYTES:
        raise MalformedRequest("the body is too large")
    return size


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        size = _size(line.split(b";")[0].strip().decode("latin-1"), 16)
        if size == 0:
            await _read_trailers(reader)
            return bytes(body)
        body += await reader.readexactly(size)
        _size(str(len(body)), 10)
        if await reader.readexactly(2) != b"\r\n":
            raise MalformedRequest("a chunk does not end where it said")


async def _read_trailers(reader: asyncio.StreamReader) -> None:
    while await reader.readuntil(b"\r\n") != b"\r\n":
        continue


def head_bytes(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the head of an answer after which the connection is closed."""
    phrase = _PHRASES.get(status, "Fault")
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1")


def chunk_bytes(data: bytes) -> bytes:
    """Return data as one chunk; empty data is the chunk that ends a body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
