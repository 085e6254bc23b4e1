"""Usage: what a run spent, each figure with where it came from."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import Annotated

from pydantic import Field, model_validator

from turnlane.records.base import Record

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
    """What was spent. A field left out was never reported; `stated()` says so for all six."""

    input_tokens: UsageValue = UNAVAILABLE
    output_tokens: UsageValue = UNAVAILABLE
    reasoning_tokens: UsageValue | None = None
    cache_read_tokens: UsageValue | None = None
    cache_write_tokens: UsageValue | None = None
    cost: CostValue | None = None


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
    total = one.value + two.value
    if not isfinite(total):
        return UNAVAILABLE_COST
    return CostValue(value=total, currency=one.currency, provenance=Provenance.COMPUTED)


def add_usage(total: Usage | None, step: Usage | None) -> Usage | None:
    """Add what one step spent to a running total.

    With one side absent the other passes through unchanged. Tokens: a side that is unknown makes
    the sum a floor, labelled computed. Cost: a side that is unknown, or another currency, makes the
    sum unavailable, and that sticks: a later step cannot revive it.
    """
    if total is None:
        return step
    if step is None:
        return total
    tokens = {name: _sum_tokens(getattr(total, name), getattr(step, name)) for name in TOKEN_FIELDS}
    return Usage(**tokens, cost=_sum_cost(total.cost, step.cost))


def stated(usage: Usage | None) -> Usage:
    """Return usage with all six fields present; what nobody reported is stated as unavailable."""
    given = usage or Usage()
    tokens = {name: getattr(given, name) or UNAVAILABLE for name in TOKEN_FIELDS}
    return Usage(**tokens, cost=given.cost or UNAVAILABLE_COST)


def computed(usage: Usage | None) -> Usage:
    """Return stated usage with every known figure labelled computed, as terminal records carry it."""
    full = stated(usage)
    figures = {name: getattr(full, name) for name in (*TOKEN_FIELDS, "cost")}
    return Usage(
        **{
            name: figure if figure.value is None else figure.model_copy(update={"provenance": Provenance.COMPUTED})
            for name, figure in figures.items()
        }
    )
