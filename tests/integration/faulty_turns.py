"""What the tests of whole turns that went wrong ask of them: how they ended, what they did, what was told of them."""

from __future__ import annotations

from typing import Any

from tests.conftest import Bench
from tests.integration.talks import Talk
from tests.integration.watching import Watch
from turnlane.agent import tool
from turnlane.client import Result
from turnlane.records.events import Event
from turnlane.records.lane import RetryFacts
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolResultPart
from turnlane.records.runs import FailureClass, TerminalReason

TWICE = RetryFacts(max_tries=2, initial_seconds=0.01)


class Effects:
    """A tool whose executions are counted."""

    def __init__(self) -> None:
        self.made: list[str] = []

        @tool
        def write(path: str) -> str:
            """Write a file."""
            self.made.append(path)
            return f"wrote {path}"

        self.write = write


def failed(result: Result) -> tuple[TerminalReason | None, FailureClass | None]:
    return result.reason, result.failure.failure_class if result.failure else None


def results(result: Result) -> list[ToolResultPart]:
    assert result.message is not None
    return [part for part in result.message.parts if isinstance(part, ToolResultPart)]


async def ledger(talk: Talk, bench: Bench, kind: LedgerKind) -> list[dict[str, Any]]:
    events = (await bench.store.read_events(talk.conversation)).items
    return [event.payload for event in events if event.kind == kind]


async def heard_until_end(talk: Talk) -> tuple[Result, list[Event]]:
    """One turn, and everything that was told of it."""
    watch = Watch(talk.client.events(talk.conversation, from_seq=0))
    result = await talk.turn()
    return result, await watch.finished()
