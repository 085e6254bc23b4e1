"""A link to a PostgreSQL server that can break at the worst moment: the order has arrived, its answer is lost."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

SOCKET = ".s.PGSQL.5432"


@dataclass
class Link:
    """Forwards connections to a server's socket."""

    target: URL
    folder: Path
    order: bytes
    _loses: bool = False

    @property
    def url(self) -> URL:
        return self.target.update_query_dict({"host": str(self.folder)})

    def lose_next_answer(self) -> None:
        """Break the connection that next gives the order, when the server has answered and before that is told."""
        self._loses = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, both ways, until one end closes it."""
        answers, orders = await asyncio.open_unix_connection(f"{self.target.query['host']}/{SOCKET}")
        lost = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forward(reader, orders, lost))
            group.create_task(self._answer(answers, writer, lost))

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while data := await _read(source):
            if self._loses and self.order in data:
                self._loses = False
                lost.set()
            target.write(data)
        target.close()

    async def _answer(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while data := await _read(source):
            if lost.is_set():
                target.transport.abort()
                return
            target.write(data)
        target.close()


async def _read(source: asyncio.StreamReader) -> bytes:
    try:
        return await source.read(65536)
    except ConnectionError:
        return b""


@contextlib.asynccontextmanager
async def losing_link(target: URL, order: bytes) -> AsyncIterator[Link]:
    """A link to a server that listens on a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="turnlane-link-") as folder:
        link = Link(target, Path(folder), order)
        server = await asyncio.start_unix_server(link.serve, str(link.folder / SOCKET))
        async with server:
            yield link
