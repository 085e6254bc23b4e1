"""Spending: what a conversation cost in all, and what of that nobody knows."""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Annotated

from pydantic import Field

from turnlane.records.base import Record, RecordId
from turnlane.records.usage import CostValue, Provenance, Usage, add_usage, stated

Count = Annotated[int, Field(ge=0)]


class Tally(Record):
    """A running total. `missing` counts the entries whose cost nobody knows: any makes the total's cost unavailable.

    `costs` is what is known of it all the same, one figure a currency: a floor.
    """

    entries: Count = 0
    missing: Count = 0
    usage: Usage | None = None
    costs: tuple[CostValue, ...] = ()

    def plus(self, usage: Usage) -> Tally:
        """The total with one more entry."""
        cost = stated(usage).cost
        known = cost is not None and cost.value is not None
        return Tally(
            entries=self.entries + 1,
            missing=self.missing + (0 if known else 1),
            usage=add_usage(self.usage, stated(usage)),
            costs=_added(self.costs, cost) if cost is not None and known else self.costs,
        )


def _added(costs: tuple[CostValue, ...], cost: CostValue) -> tuple[CostValue, ...]:
    others = tuple(known for known in costs if known.currency != cost.currency)
    own = [known.value or 0.0 for known in (*costs, cost) if known.currency == cost.currency]
    total = float(sum((Decimal(repr(value)) for value in own), Decimal(0)))
    if not isfinite(total):
        return costs
    return (*others, CostValue(value=total, currency=cost.currency, provenance=Provenance.COMPUTED))


class ConversationSpend(Record):
    """What a conversation spent: its ended runs in `total`, each model call counted once, and the run in flight.

    `runs` counts what stands in the total (a compaction without a run counts as one), `missing` those of them
    whose cost nobody knows. `costs` is the known part of the cost by currency, a floor. `active` is what the run
    in flight spent so far, and is not in the total yet.
    """

    conversation_id: RecordId
    runs: Count = 0
    missing: Count = 0
    total: Usage
    costs: tuple[CostValue, ...] = ()
    active_run_id: RecordId | None = None
    active: Usage | None = None
