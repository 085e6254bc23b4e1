"""Usage: what is unknown stays unknown, what is known adds up, and each figure says where it is from."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnlane.records.usage import (
    MAX_COUNT,
    TOKEN_FIELDS,
    UNAVAILABLE,
    UNAVAILABLE_COST,
    UNREPORTED,
    CostValue,
    Provenance,
    Usage,
    UsageValue,
    add_usage,
    computed,
    counters_of,
    cut_short,
    stated,
)

REPORTED, COMPUTED = Provenance.PROVIDER_REPORTED, Provenance.COMPUTED


def tokens(value: int, provenance: Provenance = REPORTED) -> UsageValue:
    return UsageValue(value=value, provenance=provenance)


def cost(value: float, currency: str | None = "USD", provenance: Provenance = REPORTED) -> CostValue:
    return CostValue(value=value, currency=currency, provenance=provenance)


def step(value: int, spent: CostValue | None = None) -> Usage:
    return Usage(input_tokens=tokens(value), output_tokens=tokens(value), cost=spent)


def total(*steps: Usage | None) -> Usage:
    spent: Usage | None = None
    for one in steps:
        spent = add_usage(spent, one)
    assert spent is not None
    return spent


def test_three_steps_add_up_and_are_computed() -> None:
    spent = total(step(1, cost(0.5)), step(2, cost(1.0)), step(3, cost(1.5)))

    assert (tokens(6, COMPUTED), cost(3.0, provenance=COMPUTED)) == (spent.input_tokens, spent.cost)


def test_another_currency_makes_the_cost_unavailable_for_good() -> None:
    spent = total(step(1, cost(1.0)), step(2, cost(2.0, "EUR")), step(3, cost(4.0)))

    assert (tokens(6, COMPUTED), UNAVAILABLE_COST) == (spent.output_tokens, spent.cost)


def test_a_labelled_and_an_unlabelled_cost_do_not_add_up() -> None:
    assert UNAVAILABLE_COST == total(step(1, cost(1.0)), step(1, cost(1.0, None))).cost


@pytest.mark.parametrize("steps", [(Usage(), step(5, cost(1.0))), (step(5, cost(1.0)), Usage())])
def test_an_unknown_step_makes_tokens_a_floor_and_the_cost_unavailable(steps: tuple[Usage, Usage]) -> None:
    spent = total(*steps)

    assert (tokens(5, COMPUTED), UNAVAILABLE_COST) == (spent.input_tokens, spent.cost)


def test_one_step_alone_keeps_its_own_provenance() -> None:
    only = step(5, cost(1.0))

    assert only is add_usage(None, only) is add_usage(only, None)
    assert add_usage(None, None) is None


def test_nothing_reported_states_all_six_as_unavailable() -> None:
    full = stated(None)

    assert [UNAVAILABLE] * 5 == [getattr(full, name) for name in TOKEN_FIELDS]
    assert UNAVAILABLE_COST == full.cost


def test_stated_keeps_what_was_reported() -> None:
    given = Usage(input_tokens=tokens(0), reasoning_tokens=tokens(3), cost=cost(0.0))

    full = stated(given)

    assert (tokens(0), tokens(3), UNAVAILABLE, cost(0.0)) == (
        full.input_tokens,
        full.reasoning_tokens,
        full.cache_read_tokens,
        full.cost,
    )


def test_a_terminal_labels_every_known_figure_computed_and_invents_none() -> None:
    full = computed(Usage(input_tokens=tokens(4), cost=cost(1.0)))

    assert (tokens(4, COMPUTED), UNAVAILABLE, cost(1.0, provenance=COMPUTED)) == (
        full.input_tokens,
        full.output_tokens,
        full.cost,
    )


@pytest.mark.parametrize("raw", [1.5, -1, MAX_COUNT + 1, True, "7", None, float("nan")])
def test_a_count_no_provider_may_report_is_unavailable_and_fails_nothing(raw: Any) -> None:
    assert UNAVAILABLE == UsageValue.reported(raw)


@pytest.mark.parametrize("raw", [0, 7, MAX_COUNT])
def test_a_sound_count_is_reported(raw: int) -> None:
    assert tokens(raw) == UsageValue.reported(raw)


@pytest.mark.parametrize("broken", [{"value": 1}, {"provenance": REPORTED}, {"value": -1, "provenance": REPORTED}])
def test_a_figure_is_unavailable_exactly_without_a_value(broken: dict[str, Any]) -> None:
    for kind in (UsageValue, CostValue):
        with pytest.raises(ValidationError):
            kind(**broken)


@pytest.mark.parametrize("currency", ["usd", "US", "DOLLAR"])
def test_a_currency_has_three_capital_letters(currency: str) -> None:
    with pytest.raises(ValidationError):
        cost(1.0, currency)


def test_sums_beyond_what_a_number_holds_fail_nothing() -> None:
    spent = total(step(MAX_COUNT, cost(1.7e308)), step(MAX_COUNT, cost(1.7e308)))

    assert (tokens(MAX_COUNT, COMPUTED), UNAVAILABLE_COST) == (spent.input_tokens, spent.cost)


def test_amounts_add_up_as_decimals() -> None:
    spent = total(step(1, cost(0.1)), step(1, cost(0.2)), step(1, cost(0.000001)))

    assert cost(0.300001, provenance=COMPUTED) == spent.cost


def test_a_partial_attempt_makes_the_sum_partial_and_has_no_cost() -> None:
    early = cut_short(step(1200, cost(1.0)))
    spent = computed(stated(total(early, step(3, cost(1.0)))))

    assert (True, tokens(1203, COMPUTED), UNAVAILABLE_COST) == (spent.partial, spent.input_tokens, spent.cost)


def test_an_attempt_that_never_reported_is_partial_and_unavailable() -> None:
    assert UNREPORTED == cut_short(None)
    assert total(step(1), UNREPORTED).partial


def test_usage_that_is_whole_does_not_say_so() -> None:
    told = stated(step(1)).model_dump(mode="json")

    assert {*TOKEN_FIELDS, "cost"} == set(told)
    assert UNREPORTED == Usage.model_validate_json(UNREPORTED.model_dump_json())


def test_raw_counters_are_the_providers_numbers_and_nothing_else() -> None:
    raw = {"input": 3, "tier": "priority", "cost": 0.25, "flag": True, "nan": float("nan"), "none": None}

    counted = counters_of({**raw, "details": {"cached": 0, "name": "x"}, "empty": {"why": "no"}})

    assert {"input": 3, "cost": 0.25, "details": {"cached": 0}} == counted


def test_currencies_that_differ_lack_no_price_in_whichever_order_they_come() -> None:
    orders = [(0.25, "USD"), (0.25, "USD"), (1.0, "EUR")], [(0.25, "USD"), (1.0, "EUR"), (0.25, "USD")]
    one, two = (total(*(step(1, cost(*each)) for each in order)) for order in orders)

    assert one == two
    assert (False, [("EUR", 1.0), ("USD", 0.5)]) == (
        one.lacks_price,
        [(known.currency, known.value) for known in one.known_costs],
    )


FIGURES = st.none() | st.just(UNAVAILABLE) | st.integers(0, 1000).map(tokens)
USAGES = st.builds(
    Usage,
    input_tokens=st.just(UNAVAILABLE) | st.integers(0, 1000).map(tokens),
    reasoning_tokens=FIGURES,
    cache_read_tokens=FIGURES,
    cost=st.none() | st.sampled_from([cost(0.25), cost(1.0, "EUR"), cost(2.0, None)]),
)


@given(st.lists(USAGES, min_size=1, max_size=6).flatmap(lambda one: st.tuples(st.just(one), st.permutations(one))))
def test_the_order_of_steps_does_not_matter(orders: tuple[list[Usage], list[Usage]]) -> None:
    one, two = (computed(total(*order)) for order in orders)

    assert one == two
