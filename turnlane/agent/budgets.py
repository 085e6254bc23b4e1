"""Budgets: how much a run and a conversation may spend, and whether they still may."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from turnlane.agent.given import one_of
from turnlane.agent.prices import Amount, exact_amount
from turnlane.records.spending import ConversationSpend
from turnlane.records.usage import CostValue, Usage

OnUnknown = Literal["refuse", "warn"]

BUDGET_RUN = "budget-run"
BUDGET_CONVERSATION = "budget-conversation"
BUDGET_UNENFORCEABLE = "budget-unenforceable"


@dataclass(frozen=True, kw_only=True)
class SpendLimits:
    """What an agent's runs, and the conversations that they belong to, may spend. None is no limit.

    Costs are decimal text, whole numbers or `Decimal`, in `currency`; tokens are input and output together. What
    is spent when a limit is reached stays spent: the next model call is not made. Of an answer that was cut, what is
    known of it counts. `on_unknown` says what happens when a limit cannot be enforced since a model has no price, or
    tells no counts: `refuse` goes no further, `warn` goes on and says so in the log. Raises ValueError for limits that
    are none.
    """

    run_cost: Amount | None = None
    run_tokens: int | None = None
    conversation_cost: Amount | None = None
    conversation_tokens: int | None = None
    currency: str = "USD"
    on_unknown: OnUnknown = "refuse"

    def __post_init__(self) -> None:
        for name in ("run_cost", "conversation_cost"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, exact_amount(name.replace("_", " "), given))
        limits = (self.run_cost, self.run_tokens, self.conversation_cost, self.conversation_tokens)
        if all(limit is None for limit in limits):
            raise ValueError("spend limits limit something")
        if any(limit is not None and Decimal(limit) <= 0 for limit in limits):
            raise ValueError("a spend limit is more than zero")
        one_of("on_unknown", self.on_unknown, OnUnknown)

    @property
    def of_conversation(self) -> bool:
        """Whether the conversation as a whole has a limit."""
        return self.conversation_cost is not None or self.conversation_tokens is not None


class Standing(StrEnum):
    """How spending stands to its limits."""

    WITHIN = "within"
    REACHED = "reached"
    UNKNOWN = "unknown"


def run_standing(limits: SpendLimits, spent: Usage | None) -> Standing:
    """How one run stands, given what it spent so far (None: it called nobody yet)."""
    if spent is None:
        return Standing.WITHIN
    return _worst(
        _cost_standing(limits.run_cost, limits.currency, spent.cost_floor, is_known=not spent.lacks_price),
        _token_standing(limits.run_tokens, [spent]),
    )


def conversation_standing(limits: SpendLimits, spend: ConversationSpend) -> Standing:
    """How a conversation stands, the run in flight included."""
    used = ([spend.total] if spend.runs else []) + ([spend.active] if spend.active is not None else [])
    active = spend.active.cost_floor if spend.active is not None else ()
    is_known = spend.unpriced == 0 and (spend.active is None or not spend.active.lacks_price)
    return _worst(
        _cost_standing(limits.conversation_cost, limits.currency, [*spend.costs, *active], is_known=is_known),
        _token_standing(limits.conversation_tokens, used),
    )


def stop_name(limits: SpendLimits, spend: ConversationSpend) -> str | None:
    """The name of the policy that stops the run in flight, if one does: a limit that is reached comes first."""
    standings = {
        BUDGET_RUN: run_standing(limits, spend.active),
        BUDGET_CONVERSATION: conversation_standing(limits, spend),
    }
    reached = (name for name, standing in standings.items() if standing is Standing.REACHED)
    unknown = limits.on_unknown == "refuse" and Standing.UNKNOWN in standings.values()
    return next(reached, BUDGET_UNENFORCEABLE if unknown else None)


def is_unenforceable(limits: SpendLimits, spend: ConversationSpend) -> bool:
    """Whether a limit cannot be enforced."""
    return Standing.UNKNOWN in (run_standing(limits, spend.active), conversation_standing(limits, spend))


def _worst(*standings: Standing) -> Standing:
    order = (Standing.REACHED, Standing.UNKNOWN, Standing.WITHIN)
    return min(standings, key=order.index)


def _cost_standing(limit: Amount | None, currency: str, costs: Iterable[CostValue], *, is_known: bool) -> Standing:
    """A floor over the limit has reached it, whatever else is unknown; what was cut counts as what is known of it."""
    if limit is None:
        return Standing.WITHIN
    known = [cost for cost in costs if cost.value is not None]
    own = [Decimal(repr(cost.value)) for cost in known if cost.currency == currency]
    if sum(own, Decimal(0)) >= Decimal(limit):
        return Standing.REACHED
    return Standing.WITHIN if is_known and len(own) == len(known) else Standing.UNKNOWN


def _token_standing(limit: int | None, used: Iterable[Usage]) -> Standing:
    """Floors count as what is known of them: an answer that was cut short has used at least so much."""
    if limit is None:
        return Standing.WITHIN
    used = list(used)
    figures = [figure.value for usage in used for figure in (usage.input_tokens, usage.output_tokens)]
    if sum(figure for figure in figures if figure is not None) >= limit:
        return Standing.REACHED
    return Standing.UNKNOWN if any(usage.lacks_count for usage in used) else Standing.WITHIN
