"""The demo's page: text that streams and lines in between, without one running into the other."""

from __future__ import annotations

from turnlane.client.cli.output import Output


class Page(Output):
    """An output on which several tell: whoever begins a line ends the one that streaming left open."""

    def __init__(self, *, as_json: bool = False) -> None:
        super().__init__(as_json=as_json)
        self._is_mid_line = False

    def stream(self, text: str, style: str = "") -> None:
        """Print text as it comes, without ending the line."""
        super().stream(text, style)
        self._is_mid_line = not text.endswith("\n")

    def say(self, text: str, style: str = "") -> None:
        """Print a line of its own."""
        self.end_line()
        super().say(text, style)

    def end_line(self) -> None:
        """End the line that streaming left open, if it did."""
        if self._is_mid_line:
            self._is_mid_line = False
            super().end_line()
