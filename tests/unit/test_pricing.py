"""Pricing: a cost is exact, or it is absent; it is never zero because somebody did not know."""

from __future__ import annotations

from decimal import Decimal

import pytest

from turnlane.activities.providers.anthropic import anthropic_usage
from turnlane.activities.providers.openai_clients import openai_usage
from turnlane.agent import AnthropicModel, ModelDescriptor, ModelRegistry, Prices
from turnlane.agent.pricing import PriceList, cost_of, unreported, with_cost
from turnlane.records.usage import UNAVAILABLE_COST, CostValue, Provenance, Usage, UsageValue, cut_short

OPUS = Prices(input="3", cache_write="3.75", cache_read="0.30", output="15")
GPT = Prices(input="2.50", cache_read="1.25", output="10")


def usage(given: int | None, said: int | None, read: int | None = None, written: int | None = None) -> Usage:
    return Usage(
        input_tokens=UsageValue.reported(given),
        output_tokens=UsageValue.reported(said),
        cache_read_tokens=UsageValue.reported(read),
        cache_write_tokens=UsageValue.reported(written),
    )


def dollars(value: float, provenance: Provenance = Provenance.COMPUTED) -> CostValue:
    return CostValue(value=value, currency="USD", provenance=provenance)


def test_anthropics_cached_tokens_are_billed_once() -> None:
    raw = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12_304,
        "cache_read_input_tokens": 0,
        "output_tokens": 550,
    }

    assert dollars(0.054399) == cost_of(anthropic_usage(raw), OPUS)


def test_openais_cached_tokens_are_not_billed_at_the_full_price_as_well() -> None:
    raw = {"prompt_tokens": 2006, "completion_tokens": 300, "prompt_tokens_details": {"cached_tokens": 1920}}

    assert dollars(0.005615) == cost_of(openai_usage(raw, side=("prompt", "completion")), GPT)


@pytest.mark.parametrize(
    ("spent", "prices", "expected"),
    [
        (usage(1_000_000, 0, 0, 0), OPUS, 3.0),
        (usage(0, 0, 0, 0), OPUS, 0.0),
        (usage(10, 10, 0), Prices(input="0.1", output="0.2"), 0.000003),
        (usage(10, 10, 0), Prices(input="0", output="0"), 0.0),
        (usage(10, 10), Prices(input="1", output="1"), 0.00002),
        (usage(10, 10), Prices(input="1", output="1", cache_read="1"), 0.00002),
        (usage(10, 0, 0, 0), Prices(input="1", output=None), 0.00001),
    ],
    ids=["a million", "nothing", "small", "free", "no cache", "cache at the input price", "an output nobody used"],
)
def test_a_cost_is_exact(spent: Usage, prices: Prices, expected: float) -> None:
    assert dollars(expected) == cost_of(spent, prices)


@pytest.mark.parametrize(
    ("spent", "prices"),
    [
        (usage(10, 10, 0, 0), None),
        (usage(None, 10, 0, 0), OPUS),
        (usage(10, None, 0, 0), OPUS),
        (usage(10, 10, None, 0), OPUS),
        (usage(10, 10, 0, None), OPUS),
        (usage(10, 10, 5, 0), Prices(input="1", output="1")),
        (usage(10, 10, 0, 0), Prices(input=None, output="1")),
        (usage(10, 10, 0, 0), Prices(input="1", output=None)),
        (usage(10, 10, 8, 8), OPUS),
    ],
    ids=[
        "no prices",
        "input unknown",
        "output unknown",
        "cache read unknown",
        "cache write unknown",
        "cached without a price",
        "no input price",
        "no output price",
        "more cached than came in",
    ],
)
def test_what_is_not_known_makes_the_cost_unavailable(spent: Usage, prices: Prices | None) -> None:
    assert UNAVAILABLE_COST == cost_of(spent, prices)


def test_a_cost_that_the_provider_reports_stands() -> None:
    reported = usage(10, 10).model_copy(update={"cost": dollars(0.25, Provenance.PROVIDER_REPORTED)})

    assert reported == with_cost(reported, OPUS)


def test_a_cut_answer_has_no_cost_and_is_known_to_cost_its_input_at_least() -> None:
    early = with_cost(cut_short(usage(1_000_000, 1, 0, 0)), OPUS)

    assert early is not None
    assert (None, [3.000015], False) == (early.cost, [cost.value for cost in early.cost_floor], early.lacks_price)
    assert with_cost(None, OPUS) is None


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (unreported(OPUS), (False, False)),
        (unreported(None), (True, False)),
        (unreported(OPUS, is_whole=True), (True, True)),
        (with_cost(cut_short(usage(10, None)), OPUS), (False, False)),
        (with_cost(cut_short(usage(10, None)), None), (True, False)),
        (with_cost(usage(10, 10, 0, 0), OPUS), (False, False)),
        (with_cost(usage(10, 10, 0, 0), None), (True, False)),
        (with_cost(usage(10, None), OPUS), (True, True)),
    ],
)
def test_what_was_cut_is_told_from_what_has_no_price_or_no_count(usage: Usage, expected: tuple[bool, bool]) -> None:
    assert expected == (usage.lacks_price, usage.lacks_count)


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        ("claude-opus-4-1", None, OPUS),
        ("claude-opus-4-1", "claude-opus-4-1", OPUS),
        ("claude-opus-4.1", "claude-opus-4-1-20250805", OPUS),
        ("claude-opus-4.1", "claude-opus-4.1", OPUS),
        ("auto", "gpt-x", GPT),
        ("auto", "gpt-x-2025-08-07", GPT),
        ("auto", None, None),
        ("auto", "auto", None),
        ("gpt-x", "gpt-y", None),
        ("gpt-x", "gpt-x-mini", None),
    ],
)
def test_an_alias_is_priced_as_the_model_that_answered(
    asked: str, answered: str | None, expected: Prices | None
) -> None:
    described = ModelDescriptor(
        model=AnthropicModel(name="claude-opus-4-1"), context_window=200_000, prices=OPUS, aliases=["claude-opus-4.1"]
    )
    prices = PriceList({"gpt-x": GPT}, ModelRegistry({"deep": described}))

    assert expected == prices.of(asked, answered)


def test_prices_given_by_name_outrank_the_registry() -> None:
    described = ModelDescriptor(model=AnthropicModel(name="m"), context_window=1, prices=OPUS)

    assert Decimal("2.50") == (PriceList({"m": GPT}, ModelRegistry({"m": described})).of("m", None) or OPUS).input
