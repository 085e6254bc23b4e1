"""What the command line prints: JSON lines for programs, text and tables for people."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import to_json, to_jsonable_python
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnlane.records.errors import TurnlaneError

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return text that cannot steer a terminal: control characters but newline and tab become U+FFFD.

    What a model or another person wrote is shown, never obeyed.
    """
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def error_record(error: TurnlaneError) -> dict[str, Any]:
    """The error as a program reads it."""
    facts = to_jsonable_python(error.details, fallback=lambda value: type(value).__name__)
    told = {"code": error.code, "message": error.message, "retryable": error.retryable, "details": facts}
    return {"error": told}


class Output:
    """Where a verb puts its answer. With `as_json` people's text is left out, otherwise the records are."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False)

    def record(self, value: Any) -> None:
        """Print a record as one line of JSON, if programs read this."""
        if self.as_json:
            sys.stdout.write(to_json(value).decode() + "\n")
            sys.stdout.flush()

    def say(self, text: str, style: str = "") -> None:
        """Print a line, if people read this."""
        if not self.as_json:
            self.console.print(Text(printable(text), style=style), soft_wrap=True)
            self.console.file.flush()

    def stream(self, text: str, style: str = "") -> None:
        """Print text as it comes, without ending the line, if people read this."""
        if not self.as_json:
            self.console.print(Text(printable(text), style=style), end="", soft_wrap=True)
            self.console.file.flush()

    def end_line(self) -> None:
        """End the line that `stream` left open."""
        if not self.as_json:
            self.console.print()
            self.console.file.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table, if people read this; None is shown as a dash."""
        if self.as_json:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text("-" if cell is None else printable(str(cell))) for cell in row))
        self.console.print(table)
        self.console.file.flush()
