"""Spending: what a conversation cost in all, and what of that nobody knows."""

from __future__ import annotations

from functools import reduce

from turnlane.records.base import Count, Record, RecordId
from turnlane.records.usage import CostValue, Usage, add_cost, add_usage, stated


class Tally(Record):
    """A running total. `missing` counts the entries whose cost nobody knows: any makes the total's cost unavailable.

    `unpriced` are those of them that are not merely cut short. `costs` is what is known of it all the same, one figure
    a currency: a floor.
    """

    entries: Count = 0
    missing: Count = 0
    usage: Usage | None = None
    costs: tuple[CostValue, ...] = ()
    unpriced: Count = 0

    def plus(self, usage: Usage) -> Tally:
        """The total with one more entry."""
        known = usage.cost is not None and usage.cost.value is not None
        return Tally(
            entries=self.entries + 1,
            missing=self.missing + (0 if known else 1),
            usage=add_usage(self.usage, stated(usage)),
            costs=reduce(add_cost, usage.cost_floor, self.costs),
            unpriced=self.unpriced + (1 if usage.lacks_price else 0),
        )


class ConversationSpend(Record):
    """What a conversation spent: its ended runs in `total`, each model call counted once, and the run in flight.

    `runs` counts what stands in the total (a compaction without a run, and each model call of a completion, counts
    as one), `missing` those of them whose cost nobody knows, and `unpriced` those of `missing` that are not merely
    cut short. `costs` is the known part of the cost by currency, a floor. `active` is what the run in flight spent
    so far, and is not in the total yet.
    """

    conversation_id: RecordId
    runs: Count = 0
    missing: Count = 0
    total: Usage
    costs: tuple[CostValue, ...] = ()
    active_run_id: RecordId | None = None
    active: Usage | None = None
    unpriced: Count = 0
