"""Counting for a budget: the figures that an agent does not give, by the counter that it names."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from turnlane.activities.failing import failing_as
from turnlane.activities.providers.base import CountsTokens, ProviderFailure
from turnlane.activities.providers.registry import Providers
from turnlane.agent.context import ContextBudget
from turnlane.agent.models import Model
from turnlane.agent.tokens import ProviderCounter, TokenCounter, as_count
from turnlane.records.messages import ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnlane.records.prompt import Prompt, PromptMessage, ToolSpec
from turnlane.records.tokens import UNKNOWN_COUNT, TokenCount, computed_count

logger = logging.getLogger(__name__)

COUNTING_SECONDS: Final = 15.0
"""How long a turn waits for its provider to count, all counts together."""

_NO_FILES = (TextPart, ReasoningPart, ToolCallPart, ToolResultPart)


class Counting:
    """Counts for one turn: one model under one budget. A counter that raises is the application's failure."""

    def __init__(
        self, budget: ContextBudget, model: Model, providers: Providers, *, seconds: float = COUNTING_SECONDS
    ) -> None:
        self._budget = budget
        self._model = model
        self._counter = budget.counter
        if isinstance(self._counter, ProviderCounter):
            self._counter = _of_provider(model, providers, seconds)

    async def text(self, text: str) -> TokenCount:
        """The size of a text of the instructions; nothing is 0."""
        return await self._counted(Prompt(system=(text,))) if text.strip() else computed_count(0)

    async def history(self, told: Prompt) -> TokenCount:
        """The size of a conversation, with the system texts that it carries; nothing is 0."""
        return await self._counted(told) if told.messages or told.system else computed_count(0)

    async def tools(self, tools: tuple[ToolSpec, ...]) -> TokenCount:
        """The size of the tools on offer: as the budget says, or counted."""
        if self._budget.tool_schemas is not None:
            return as_count(self._budget.tool_schemas)
        return await self._counted(Prompt(tools=tools)) if tools else computed_count(0)

    def attachments(self, messages: tuple[PromptMessage, ...]) -> TokenCount:
        """The size of what the messages hold beside text: as the budget says, or nothing where nobody need ask."""
        if self._budget.attachments is not None:
            return as_count(self._budget.attachments)
        has_files = any(not isinstance(part, _NO_FILES) for message in messages for part in message.parts)
        in_messages = self._counter is not None and self._counter.counts_files
        return computed_count(0) if in_messages or not has_files else UNKNOWN_COUNT

    async def _counted(self, prompt: Prompt) -> TokenCount:
        if self._counter is None:
            return UNKNOWN_COUNT
        with failing_as("TOKEN_COUNT_FAILED", "counting tokens"):
            return as_count(await self._counter.count(self._model, prompt))


class _OfProvider:
    """The counter of a model's provider, for one turn. All its counts together take no longer than `seconds`, and
    once one could not be had no other is asked for: a turn does not wait for what only helps it."""

    counts_files = True

    def __init__(self, provider: CountsTokens, seconds: float) -> None:
        self._provider = provider
        self._seconds = seconds
        self._until: float | None = None
        self._has_given_up = False

    async def count(self, model: Model, prompt: Prompt) -> TokenCount:
        """Ask the provider. Without its key it cannot be asked, and the call itself will say so."""
        if self._has_given_up:
            return UNKNOWN_COUNT
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._seconds
        count = await self._asked(model, prompt, self._until)
        self._has_given_up = count.known is None
        return count

    async def _asked(self, model: Model, prompt: Prompt, until: float) -> TokenCount:
        try:
            async with asyncio.timeout_at(until):
                return await self._provider.count_tokens(model, prompt)
        except TimeoutError:
            logger.warning("tokens were not counted: the provider took too long")
            return UNKNOWN_COUNT
        except ProviderFailure:
            return UNKNOWN_COUNT


def _of_provider(model: Model, providers: Providers, seconds: float) -> TokenCounter | None:
    """A provider that cannot count, or that there is not, leaves counts unknown: the call itself will say."""
    try:
        provider = providers.of(model)
    except ProviderFailure:
        return None
    return _OfProvider(provider, seconds) if isinstance(provider, CountsTokens) else None
