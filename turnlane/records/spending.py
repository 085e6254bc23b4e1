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


class Spent(Record):
    """A sum of what was spent, each model call counted once.

    `runs` counts what stands in it (a compaction without a run, and each model call of a completion, counts as one),
    `missing` those of them whose cost nobody knows, and `unpriced` those of `missing` that are not merely cut short.
    `costs` is the known part of the cost by currency, a floor.
    """

    runs: Count = 0
    missing: Count = 0
    total: Usage
    costs: tuple[CostValue, ...] = ()
    unpriced: Count = 0


class ConversationSpend(Spent):
    """What a conversation's own ended runs spent, and the run in flight.

    `active` is what the run in flight spent so far, and is not in the total yet. `inherited` is what was spent on the
    history that a branch copied: other conversations have it in their totals, so it is not in this one's.
    """

    conversation_id: RecordId
    active_run_id: RecordId | None = None
    active: Usage | None = None
    inherited: Spent | None = None
