"""Where a chat's lines come from: a person at a prompt, or a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from turnlane.client.cli.output import Output


class LineSource(Protocol):
    """Gives one line after another, and says where to print meanwhile."""

    out: Output
    is_pipe: bool

    async def next_line(self) -> str | None:
        """Return the next line, None at the end."""
        ...

    def end(self) -> None:
        """Let the next line be the end."""
        ...


class PipeLines:
    """Lines of standard input, read by a thread, since a file cannot be waited for."""

    is_pipe = True

    def __init__(self, out: Output) -> None:
        self.out = out
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        # A daemon: it may still be waiting for input when the chat is over.
        threading.Thread(target=self._read, name="turnlane-chat-input", daemon=True).start()

    async def next_line(self) -> str | None:
        """Return the next line; None at the end of the input."""
        return await self._lines.get()

    def end(self) -> None:
        """Let the next line be the end."""
        self._lines.put_nowait(None)

    def _read(self) -> None:
        for line in sys.stdin:
            if not self._put(line.rstrip("\n")):
                return
        self._put(None)

    def _put(self, line: str | None) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:
            # The chat ended and took its loop along.
            return False
        return True


@asynccontextmanager
async def open_lines(out: Output, on_interrupt: Callable[[], None]) -> AsyncIterator[LineSource]:
    """The lines of this process: a prompt where a person sits, else standard input as it is."""
    if out.as_json or not _can_prompt():
        yield PipeLines(out)
        return
    # Imported here: only this needs the prompt, and it takes long to load.
    from prompt_toolkit.patch_stdout import patch_stdout

    from turnlane.client.cli.chat_prompt import TerminalLines

    with patch_stdout(raw=True):
        yield TerminalLines(on_interrupt)


def _can_prompt() -> bool:
    """Whether a person sits at a terminal that can hold a prompt in its place."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
