"""Budgets: a limit that is reached stops, one that cannot be enforced says so, and zero is never assumed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from turnlane.activities.budgets import budget_stop
from turnlane.agent import Agent, ScriptedModel, SpendLimits
from turnlane.agent.budgets import (
    BUDGET_CONVERSATION,
    BUDGET_RUN,
    BUDGET_UNENFORCEABLE,
    Standing,
    conversation_standing,
    is_unenforceable,
    run_standing,
    stop_name,
)
from turnlane.records.errors import StoreUnavailableError
from turnlane.records.spending import ConversationSpend, Tally
from turnlane.records.usage import UNCOUNTED, CostValue, Provenance, Usage, UsageValue, add_usage, stated
from turnlane.store.protocol import Store


def spent(cost: float | None, tokens: int | None = 100, currency: str = "USD") -> Usage:
    figure = None if cost is None else CostValue(value=cost, currency=currency, provenance=Provenance.COMPUTED)
    return Usage(input_tokens=UsageValue.reported(tokens), output_tokens=UsageValue.reported(0), cost=figure)


def conversation(*runs: Usage, active: Usage | None = None) -> ConversationSpend:
    tally = Tally()
    for run in runs:
        tally = tally.plus(run)
    return ConversationSpend(
        conversation_id="c",
        runs=tally.entries,
        missing=tally.missing,
        total=stated(tally.usage),
        costs=tally.costs,
        unpriced=tally.unpriced,
        active_run_id=None if active is None else "r",
        active=active,
    )


CUT = Usage(partial=True)
"""An attempt of a priced model that was cut before a word of what it came to."""


def cut(floor: float, tokens: int | None = 100) -> Usage:
    known = CostValue(value=floor, currency="USD", provenance=Provenance.COMPUTED)
    return Usage(input_tokens=UsageValue.reported(tokens), partial=True, known_costs=(known,))


def both(one: Usage, two: Usage) -> Usage:
    total = add_usage(one, two)
    assert total is not None
    return total


WITHIN, REACHED, UNKNOWN = Standing.WITHIN, Standing.REACHED, Standing.UNKNOWN


@pytest.mark.parametrize(
    ("limits", "usage", "expected"),
    [
        ({"run_cost": "1"}, None, WITHIN),
        ({"run_cost": "1"}, spent(0.99), WITHIN),
        ({"run_cost": "1"}, spent(1.0), REACHED),
        ({"run_cost": "1"}, spent(None, 821_452), UNKNOWN),
        ({"run_cost": "1"}, spent(5.0, currency="EUR"), UNKNOWN),
        ({"run_tokens": 100}, spent(None, 99), WITHIN),
        ({"run_tokens": 100}, spent(None, 100), REACHED),
        ({"run_tokens": 100}, spent(0.5, None), UNKNOWN),
        ({"run_tokens": 100, "run_cost": "1"}, spent(None, 100), REACHED),
        ({"conversation_cost": "1"}, spent(None), WITHIN),
        ({"run_cost": "1"}, CUT, WITHIN),
        ({"run_cost": "1"}, cut(0.4), WITHIN),
        ({"run_cost": "1"}, cut(1.0), REACHED),
        ({"run_cost": "1"}, both(both(spent(0.6), CUT), spent(0.3)), WITHIN),
        ({"run_cost": "1"}, both(both(spent(0.6), CUT), spent(0.4)), REACHED),
        ({"run_cost": "1"}, both(CUT, spent(None)), UNKNOWN),
        ({"run_cost": "1"}, both(spent(None), CUT), UNKNOWN),
        ({"run_cost": "1"}, UNCOUNTED, UNKNOWN),
        ({"run_cost": "1"}, both(UNCOUNTED, spent(0.5)), UNKNOWN),
        ({"run_cost": "1"}, both(UNCOUNTED, spent(1.5)), REACHED),
        ({"run_cost": "1"}, both(spent(0.6), spent(0.6, currency="EUR")), UNKNOWN),
        ({"run_tokens": 100}, CUT, WITHIN),
        ({"run_tokens": 100}, UNCOUNTED, UNKNOWN),
        ({"run_tokens": 100}, cut(9.0, 100), REACHED),
    ],
)
def test_a_run_stands_to_its_limits(limits: dict[str, Any], usage: Usage | None, expected: Standing) -> None:
    assert expected == run_standing(SpendLimits(**limits), usage)


@pytest.mark.parametrize(
    ("limits", "spend", "expected"),
    [
        ({"conversation_cost": "1"}, conversation(), WITHIN),
        ({"conversation_cost": "1"}, conversation(spent(0.4), spent(0.4)), WITHIN),
        ({"conversation_cost": "1"}, conversation(spent(0.4), spent(0.4), active=spent(0.2)), REACHED),
        ({"conversation_cost": "1"}, conversation(spent(0.4), spent(None)), UNKNOWN),
        ({"conversation_cost": "1"}, conversation(spent(1.4), spent(None)), REACHED),
        ({"conversation_cost": "1"}, conversation(spent(0.4), active=spent(None)), UNKNOWN),
        ({"conversation_cost": "1"}, conversation(spent(0.4), spent(9.0, currency="EUR")), UNKNOWN),
        ({"conversation_cost": "1", "currency": "EUR"}, conversation(spent(9.0, currency="EUR")), REACHED),
        ({"conversation_tokens": 300}, conversation(spent(None), spent(None)), WITHIN),
        ({"conversation_tokens": 300}, conversation(spent(None), active=spent(None, 200)), REACHED),
        ({"run_cost": "1"}, conversation(spent(None)), WITHIN),
        ({"conversation_cost": "1"}, conversation(CUT), WITHIN),
        ({"conversation_cost": "1"}, conversation(spent(0.4), CUT), WITHIN),
        ({"conversation_cost": "1"}, conversation(both(spent(0.6), CUT), cut(0.4)), REACHED),
        ({"conversation_cost": "1"}, conversation(spent(0.6), active=both(spent(0.4), CUT)), REACHED),
        ({"conversation_cost": "1"}, conversation(CUT, spent(None)), UNKNOWN),
        ({"conversation_cost": "1"}, conversation(CUT, active=UNCOUNTED), UNKNOWN),
        ({"conversation_tokens": 300}, conversation(CUT), WITHIN),
        ({"conversation_tokens": 300}, conversation(UNCOUNTED), UNKNOWN),
    ],
)
def test_a_conversation_stands_to_its_limits(
    limits: dict[str, Any], spend: ConversationSpend, expected: Standing
) -> None:
    assert expected == conversation_standing(SpendLimits(**limits), spend)


@pytest.mark.parametrize(
    ("limits", "spend", "expected"),
    [
        ({"run_cost": "1", "conversation_cost": "1"}, conversation(active=spent(1.0)), BUDGET_RUN),
        ({"run_cost": "2", "conversation_cost": "1"}, conversation(active=spent(1.0)), BUDGET_CONVERSATION),
        ({"run_cost": "2"}, conversation(active=spent(None)), BUDGET_UNENFORCEABLE),
        ({"run_cost": "2", "on_unknown": "warn"}, conversation(active=spent(None)), None),
        ({"run_cost": "2", "run_tokens": 5}, conversation(active=spent(None)), BUDGET_RUN),
        ({"run_cost": "2"}, conversation(spent(None)), None),
    ],
)
def test_the_limit_that_is_reached_names_the_stop(
    limits: dict[str, Any], spend: ConversationSpend, expected: str | None
) -> None:
    assert expected == stop_name(SpendLimits(**limits), spend)


def test_what_cannot_be_enforced_says_so_also_when_it_goes_on() -> None:
    limits = SpendLimits(conversation_cost="10", on_unknown="warn")
    unpriced = conversation(spent(None, 821_452))

    assert (None, 1) == (unpriced.total.cost and unpriced.total.cost.value, unpriced.missing)
    assert is_unenforceable(limits, unpriced)


@pytest.mark.parametrize(
    "limits",
    [{}, {"run_cost": "0"}, {"run_tokens": -1}, {"run_cost": "ten"}, {"run_cost": "1", "on_unknown": "ignore"}],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"limit|decimal|refuse|zero"):
        SpendLimits(**limits)


def test_a_limit_is_no_float() -> None:
    with pytest.raises(TypeError):
        SpendLimits(run_cost=0.1)  # type: ignore[arg-type]


def test_a_tally_counts_what_is_missing_and_keeps_what_is_known() -> None:
    tally = Tally().plus(spent(0.1)).plus(spent(0.2)).plus(spent(None)).plus(spent(4.0, currency="EUR"))

    assert (4, 1) == (tally.entries, tally.missing)
    assert {"USD": 0.3, "EUR": 4.0} == {cost.currency: cost.value for cost in tally.costs}
    assert (1, 1) == (tally.unpriced, tally.plus(CUT).unpriced)
    assert stated(tally.usage).cost == CostValue()
    assert 400 == stated(tally.usage).input_tokens.value


class Away:
    """A store that does not answer."""

    async def conversation_spend(self, conversation_id: str) -> ConversationSpend:
        raise StoreUnavailableError("the store is away")


async def test_a_budget_that_cannot_be_read_now_is_for_the_caller_to_wait_for() -> None:
    agent = Agent(name="a", model=ScriptedModel(script=lambda request: []), spend_limits=SpendLimits(run_tokens=1))

    with pytest.raises(StoreUnavailableError):
        async with asyncio.timeout(5):
            await budget_stop(cast(Store, Away()), agent, "c", "r")
