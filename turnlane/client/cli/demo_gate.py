"""A gate: a tool in a worker process waits at it until the demo lets it pass, so that no timing is left to chance."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Gate:
    """Listens on a free port of this machine while the context is open."""

    def __init__(self) -> None:
        self.port = 0
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._hold, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def open(self) -> None:
        """Let everyone pass who waits, and whoever comes later."""
        self._opened.set()

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.set()
        await self._opened.wait()
        writer.close()


async def pass_gate(port: int) -> None:
    """Go to the gate and return once it is open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.read()
    finally:
        writer.close()
