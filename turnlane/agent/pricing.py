"""Pricing: what a model call cost, exactly, or the statement that nobody knows.

A cost is right or absent: a price or a count that is unknown makes it unavailable, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite

from turnlane.agent.prices import Prices
from turnlane.agent.registry import ModelRegistry
from turnlane.records.usage import (
    UNAVAILABLE_COST,
    UNCOUNTED,
    UNREPORTED,
    CostValue,
    Provenance,
    Usage,
    UsageValue,
)

_MILLION = Decimal(1_000_000)
_DATED = re.compile(r"[-@](\d{8}|\d{6}|\d{4}-\d{2}-\d{2})$")
"""How providers name one day's version of a model: `gpt-5-2025-08-07`, `claude-opus-4-1-20250805`."""


class PriceList:
    """Prices by the name under which a model answers. `prices` outranks the registry."""

    def __init__(self, prices: Mapping[str, Prices], models: ModelRegistry | None = None) -> None:
        self._prices = prices
        self._models = models

    def of(self, asked: str, answered: str | None) -> Prices | None:
        """The prices of the model that answered; None if they are not known.

        `answered` is the name in the provider's answer, which settles what an alias stood for; one day's
        version of a model has the prices of the model. Without it the model that was asked is taken.
        """
        name = answered or asked
        return self._named(name) or self._named(_DATED.sub("", name))

    def _named(self, name: str) -> Prices | None:
        if name in self._prices:
            return self._prices[name]
        found = self._models.named(name) if self._models is not None else None
        return None if found is None else found.prices


def with_cost(usage: Usage | None, prices: Prices | None) -> Usage | None:
    """Return usage with the cost computed from it. A cost that the provider reported stands; figures that are
    partial have none, but what they come to at least."""
    if usage is None or (usage.cost is not None and usage.cost.value is not None):
        return usage
    if usage.partial:
        return usage.model_copy(update={"known_costs": _floor_of(usage, prices), "unpriced": prices is None})
    return usage.model_copy(update={"cost": cost_of(usage, prices)})


def unreported(prices: Prices | None, *, is_whole: bool = False) -> Usage:
    """Return what an attempt spent of which nothing was told, though it was heard to its end if `is_whole`."""
    return UNCOUNTED if is_whole else UNREPORTED.model_copy(update={"unpriced": prices is None})


def _floor_of(usage: Usage, prices: Prices | None) -> tuple[CostValue, ...]:
    """What a cut answer cost at least: its input, and as much of its output as was counted by then."""
    counted = UsageValue.reported(usage.output_tokens.value or 0)
    cost = cost_of(usage.model_copy(update={"output_tokens": counted}), prices)
    return () if cost.value is None else (cost,)


def cost_of(usage: Usage, prices: Prices | None) -> CostValue:
    """Return what the tokens cost: all input counts, less what came from a cache or went into one, at the input
    price; the rest at their own. Unavailable if a price or a count that it takes is unknown."""
    if prices is None:
        return UNAVAILABLE_COST
    read = _cached(usage.cache_read_tokens, prices.cache_read, prices.input)
    written = _cached(usage.cache_write_tokens, prices.cache_write, prices.input)
    given, said = usage.input_tokens.value, usage.output_tokens.value
    if read is None or written is None or given is None or said is None or read + written > given:
        return UNAVAILABLE_COST
    parts = (
        (given - read - written, prices.input),
        (read, prices.cache_read),
        (written, prices.cache_write),
        (said, prices.output),
    )
    return _total(parts, prices.currency)


def _cached(count: UsageValue | None, price: Decimal | None, plain: Decimal | None) -> int | None:
    """How many tokens are billed apart from plain input. One that is not known matters only where it has a price
    of its own."""
    if count is not None and count.value is not None:
        return count.value
    return 0 if price is None or price == plain else None


def _total(parts: tuple[tuple[int, Decimal | None], ...], currency: str) -> CostValue:
    total = Decimal(0)
    for count, price in parts:
        if count == 0:
            continue
        if price is None:
            return UNAVAILABLE_COST
        total += count * price / _MILLION
    value = float(total)
    if not isfinite(value):
        return UNAVAILABLE_COST
    return CostValue(value=value, currency=currency, provenance=Provenance.COMPUTED)
