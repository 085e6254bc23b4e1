"""Usage: what a run spent, each figure with where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from functools import reduce
from math import isfinite
from typing import Annotated

from pydantic import Field, model_validator

from turnlane.records.base import UNSAID, JsonObject, Record

MAX_COUNT = 2**53 - 1


class Provenance(StrEnum):
    """Where a figure comes from."""

    PROVIDER_REPORTED = "provider-reported"
    COMPUTED = "computed"
    ESTIMATED = "estimated"
    UNAVAILABLE = "unavailable"


class UsageValue(Record):
    """A token count, or the statement that it is unknown. Unknown is never zero."""

    value: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = None
    provenance: Provenance = Provenance.UNAVAILABLE

    @model_validator(mode="after")
    def _value_and_provenance_agree(self) -> UsageValue:
        if (self.value is None) is not (self.provenance is Provenance.UNAVAILABLE):
            raise ValueError("a figure is unavailable exactly when it has no value")
        return self

    @classmethod
    def reported(cls, raw: object) -> UsageValue:
        """Take a provider's raw count; anything but a safe non-negative integer is unavailable."""
        if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= MAX_COUNT:
            return cls(value=raw, provenance=Provenance.PROVIDER_REPORTED)
        return UNAVAILABLE


class CostValue(Record):
    """A cost in one currency, or the statement that it is unknown."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] | None = None
    provenance: Provenance = Provenance.UNAVAILABLE

    @model_validator(mode="after")
    def _value_and_provenance_agree(self) -> CostValue:
        if (self.value is None) is not (self.provenance is Provenance.UNAVAILABLE):
            raise ValueError("a figure is unavailable exactly when it has no value")
        return self


UNAVAILABLE = UsageValue()
UNAVAILABLE_COST = CostValue()


class Usage(Record):
    """What was spent. A field left out was never reported; `stated()` says so for all six.

    `input_tokens` is all input, cached or not; the cache figures are parts of it. `partial` says that the figures
    are floors: an attempt ended before its provider told what it came to, or told nothing at all.
    `known_costs` is what is known of a cost that is unavailable as a whole, one figure a currency: a floor.
    `unpriced` and `uncounted` say of partial figures that not only cut attempts are missing in them: of a model, no
    price is known, or it answered to the end without a count.
    """

    input_tokens: UsageValue = UNAVAILABLE
    output_tokens: UsageValue = UNAVAILABLE
    reasoning_tokens: UsageValue | None = None
    cache_read_tokens: UsageValue | None = None
    cache_write_tokens: UsageValue | None = None
    cost: CostValue | None = None
    partial: Annotated[bool, UNSAID] = False
    known_costs: Annotated[tuple[CostValue, ...], UNSAID] = ()
    unpriced: Annotated[bool, UNSAID] = False
    uncounted: Annotated[bool, UNSAID] = False

    @property
    def cost_floor(self) -> tuple[CostValue, ...]:
        """What is known of the cost: all of it, or a part."""
        return self.known_costs if self.cost is None or self.cost.value is None else (self.cost,)

    @property
    def lacks_price(self) -> bool:
        """Whether the cost is unknown for another reason than that an attempt was cut, or that currencies differ."""
        is_known = self.cost is not None and self.cost.value is not None
        return not is_known and (self.unpriced or not (self.partial or self.known_costs))

    @property
    def lacks_count(self) -> bool:
        """Whether a token count is unknown for another reason than that an attempt was cut."""
        is_known = self.input_tokens.value is not None and self.output_tokens.value is not None
        return not is_known and (self.uncounted or not self.partial)


UNREPORTED = Usage(partial=True)
"""What an attempt spent that ended early without a word of it: something, and nobody knows how much."""

UNCOUNTED = Usage(partial=True, unpriced=True, uncounted=True)
"""What an attempt spent that was heard to its end, and whose provider never told what it came to."""

TOKEN_FIELDS = ("input_tokens", "output_tokens", "reasoning_tokens", "cache_read_tokens", "cache_write_tokens")


def _sum_tokens(one: UsageValue | None, two: UsageValue | None) -> UsageValue:
    known = [side.value for side in (one, two) if side is not None and side.value is not None]
    if not known:
        return UNAVAILABLE
    return UsageValue(value=min(sum(known), MAX_COUNT), provenance=Provenance.COMPUTED)


def _sum_cost(one: CostValue | None, two: CostValue | None) -> CostValue:
    if one is None or two is None or one.value is None or two.value is None:
        return UNAVAILABLE_COST
    if one.currency != two.currency:
        return UNAVAILABLE_COST
    # As decimals: a third of a cent added three times is a cent, and budgets compare sums with limits.
    total = float(Decimal(repr(one.value)) + Decimal(repr(two.value)))
    if not isfinite(total):
        return UNAVAILABLE_COST
    return CostValue(value=total, currency=one.currency, provenance=Provenance.COMPUTED)


def add_cost(costs: tuple[CostValue, ...], cost: CostValue) -> tuple[CostValue, ...]:
    """Add a cost to sums that are kept apart by currency, in the order of their names."""
    others = tuple(known for known in costs if known.currency != cost.currency)
    own = [known.value or 0.0 for known in (*costs, cost) if known.currency == cost.currency]
    total = float(sum((Decimal(repr(value)) for value in own), Decimal(0)))
    if not isfinite(total):
        return costs
    summed = CostValue(value=total, currency=cost.currency, provenance=Provenance.COMPUTED)
    return tuple(sorted((*others, summed), key=lambda known: known.currency or ""))


def add_usage(total: Usage | None, step: Usage | None) -> Usage | None:
    """Add what one step spent to a running total.

    With one side absent the other passes through unchanged. Tokens: a side that is unknown makes
    the sum a floor, labelled computed. Cost: a side that is unknown, or another currency, makes the
    sum unavailable, and that sticks: a later step cannot revive it. What was known of it stays known.
    """
    if total is None:
        return step
    if step is None:
        return total
    tokens = {name: _sum_tokens(getattr(total, name), getattr(step, name)) for name in TOKEN_FIELDS}
    cost = _sum_cost(total.cost, step.cost)
    return Usage(
        **tokens,
        cost=cost,
        partial=total.partial or step.partial,
        known_costs=reduce(add_cost, (*total.cost_floor, *step.cost_floor), ()) if cost.value is None else (),
        unpriced=total.lacks_price or step.lacks_price,
        uncounted=total.uncounted or step.uncounted,
    )


def stated(usage: Usage | None) -> Usage:
    """Return usage with all six fields present; what nobody reported is stated as unavailable."""
    given = usage or Usage()
    tokens = {name: getattr(given, name) or UNAVAILABLE for name in TOKEN_FIELDS}
    return given.model_copy(update={**tokens, "cost": given.cost or UNAVAILABLE_COST})


def computed(usage: Usage | None) -> Usage:
    """Return stated usage with every known figure labelled computed, as terminal records carry it."""
    full = stated(usage)
    figures = {name: getattr(full, name) for name in (*TOKEN_FIELDS, "cost")}
    return full.model_copy(
        update={
            name: figure if figure.value is None else figure.model_copy(update={"provenance": Provenance.COMPUTED})
            for name, figure in figures.items()
        }
    )


def cut_short(usage: Usage | None) -> Usage:
    """Return what an attempt spent that ended early: what was reported by then, as floors, and no cost made of it."""
    if usage is None:
        return UNREPORTED
    return usage.model_copy(update={"cost": None, "partial": True})


def counters_of(raw: Mapping[str, object]) -> JsonObject:
    """Return the numbers of a provider's raw usage, under their own names; whatever is no number is left out."""
    counters: JsonObject = {}
    for name, value in raw.items():
        if isinstance(value, Mapping):
            counters[name] = counters_of(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            counters[name] = value
    return {name: value for name, value in counters.items() if value != {}}
