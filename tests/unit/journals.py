"""Journals for tests: one of a call, over a notebook; bodies that count; entries of any text."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from turnlane.activities.durable import Journal
from turnlane.agent.tools import Cancellation, ToolContext, ToolError
from turnlane.records.durable import DurableEntry, EntryKind
from turnlane.testing.durable import Notebook

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Counter:
    """A body that counts how often it was run."""

    value: Any = None
    count: int = 0

    async def __call__(self) -> Any:
        self.count += 1
        await asyncio.sleep(0)
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def journal(book: Notebook, now: datetime = NOW, *, is_cancelled: bool = False) -> Journal:
    cancelled = Cancellation()
    if is_cancelled:
        cancelled.set()
    context = ToolContext(
        conversation_id="c", run_id="r", step_number=0, call_id="call-1", agent="a", attempt=3, cancelled=cancelled
    )
    return book.journal(context, now)


def put(book: Notebook, kind: EntryKind, name: str, text: str) -> None:
    """Have an entry with any text in the book."""
    book.entries[kind, name] = DurableEntry(kind=kind, name=name, entry=text)


def code_of(raised: pytest.ExceptionInfo[ToolError]) -> str:
    return raised.value.code
