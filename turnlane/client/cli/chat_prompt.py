"""The chat's prompt at a terminal: it stays at the bottom while answers stream above it."""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent

from turnlane.client.cli.output import Output, printable


class PromptOutput(Output):
    """Prints above a prompt. The line that is still streaming is kept in `partial`, for the prompt to show."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self.partial = ""
        self._style = ""
        self._changed = changed

    def stream(self, text: str, style: str = "") -> None:
        """Print the lines that are complete, or as wide as the terminal, and keep the rest."""
        if style != self._style:
            self.end_line()
        self._style = style
        *complete, self.partial = (self.partial + printable(text)).split("\n")
        for line in complete:
            super().say(line, style)
        while len(self.partial) >= self.console.width:
            cut = self.partial.rfind(" ", 1, self.console.width)
            cut = cut if cut > 0 else self.console.width - 1
            super().say(self.partial[:cut], style)
            self.partial = self.partial[cut:].lstrip(" ")
        self._changed()

    def end_line(self) -> None:
        """Print what was kept."""
        if self.partial:
            super().say(self.partial, self._style)
            self.partial = ""
            self._changed()

    def say(self, text: str, style: str = "") -> None:
        """Print a line, after what was kept."""
        self.end_line()
        super().say(text, style)


class TerminalLines:
    """Lines typed at a prompt that stays at the bottom while answers stream above it."""

    is_pipe = False

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        bindings = KeyBindings()

        @bindings.add("c-c")
        def _(event: KeyPressEvent) -> None:
            on_interrupt()

        self._prompt: PromptSession[str] = PromptSession(key_bindings=bindings)
        self.out: Output = PromptOutput(self._prompt.app.invalidate)

    async def next_line(self) -> str | None:
        """Return the line that was entered; None for Ctrl-D."""
        try:
            # SIGINT is the chat's business, so that it cannot end the program between two prompts.
            return await self._prompt.prompt_async(self._message, handle_sigint=False)
        except EOFError:
            return None

    def end(self) -> None:
        """Nothing: at a terminal only Ctrl-D and /quit leave."""

    def _message(self) -> StyleAndTextTuples:
        partial = self.out.partial if isinstance(self.out, PromptOutput) else ""
        return [("", f"{partial}\n" if partial else ""), ("bold", "> ")]
