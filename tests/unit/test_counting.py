"""Counting for a budget: what a provider cannot say, or not soon, holds up no turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from turnlane.activities.counting import Counting
from turnlane.activities.providers.base import ProviderFailure, ProviderRequest, StreamPart
from turnlane.activities.providers.registry import Providers
from turnlane.agent import AnthropicModel, ContextBudget, CountSource, ProviderCounter, TokenCount
from turnlane.agent.models import Model
from turnlane.records.prompt import Prompt
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.tokens import UNKNOWN_COUNT

MODEL = AnthropicModel(name="m")
FIVE = TokenCount(value=5, source=CountSource.MEASURED)


class Abacus:
    """A provider that counts as it is told, and for ever when it is told nothing more."""

    def __init__(self, *counts: TokenCount | Exception) -> None:
        self.asked = 0
        self._counts = list(counts)

    async def count_tokens(self, model: Model, prompt: Prompt) -> TokenCount:
        self.asked += 1
        if not self._counts:
            await asyncio.Event().wait()
        count = self._counts.pop(0)
        if isinstance(count, Exception):
            raise count
        return count

    def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        raise AssertionError("it is asked to count, and for nothing else")

    async def aclose(self) -> None:
        """Nothing is open."""


async def counted(abacus: Abacus, *texts: str, seconds: float = 60.0) -> list[TokenCount]:
    budget = ContextBudget(counter=ProviderCounter())
    counting = Counting(budget, MODEL, Providers({"anthropic": lambda: abacus}), seconds=seconds)
    return [await counting.text(text) for text in texts]


async def test_each_count_is_asked_for() -> None:
    abacus = Abacus(FIVE, FIVE)

    assert [FIVE, FIVE] == await counted(abacus, "a", "b")
    assert 2 == abacus.asked


async def test_what_cannot_be_counted_is_not_asked_for_again_in_the_same_turn() -> None:
    no_key = ProviderFailure(Failure(failure_class=FailureClass.AUTHENTICATION))
    for first in (UNKNOWN_COUNT, no_key):
        abacus = Abacus(first, FIVE)

        assert [UNKNOWN_COUNT, UNKNOWN_COUNT] == await counted(abacus, "a", "b")
        assert 1 == abacus.asked


async def test_a_provider_that_does_not_answer_is_waited_for_once() -> None:
    abacus = Abacus(FIVE)

    assert [FIVE, UNKNOWN_COUNT, UNKNOWN_COUNT] == await counted(abacus, "a", "b", "c", seconds=0.05)
    assert 2 == abacus.asked
