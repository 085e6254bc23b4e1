"""What the tests of prompts ask of a play: budgets that are counted in words, and what the ledger has of them."""

from __future__ import annotations

from typing import Any

from tests.integration.play import Play
from turnlane.agent import ContextBudget, CountSource, TextCounter, TokenCount
from turnlane.client import Result
from turnlane.records.base import JsonObject
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import Failure, FailureClass, TerminalReason

BUSY = Failure(failure_class=FailureClass.OVERLOADED, retryable=True, retry_after_seconds=0.01)


def words(text: str) -> TokenCount:
    """One token a word."""
    return TokenCount(value=len(text.split()), source=CountSource.MEASURED)


def by_words(window: int, **options: Any) -> ContextBudget:
    """A budget that is counted in words; whatever is not given takes nothing."""
    given: dict[str, Any] = {"reserved_output": 0, "tool_schemas": 0, "counter": TextCounter(words)}
    return ContextBudget(context_window=window, **(given | options))


async def requests(play: Play) -> list[JsonObject]:
    """What the ledger has of the requests."""
    return [event.payload for event in await play.ledger() if event.kind == LedgerKind.PROVIDER_REQUEST]


async def figures(play: Play) -> Any:
    """The figures of the last request's budget."""
    return (await requests(play))[-1]["context"]


async def tell(play: Play, *names: str) -> list[str]:
    """Have these answered, one after the other; how that ended."""
    play.stage.play()
    return [reason for name in names for reason in await play.reasons(await play.submit(name))]


def ending(result: Result) -> tuple[TerminalReason, str | None]:
    return result.reason, None if result.failure is None else result.failure.code
