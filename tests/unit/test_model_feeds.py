"""Feeds of models: what OpenRouter's listing says, and what becomes of a feed that fails."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from turnlane.agent import ModelDescriptor, ModelRegistry, OpenAIModel, Prices
from turnlane.agent.model_feeds import gather_models, openrouter_models

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

ENTRY: dict[str, Any] = {
    "id": "acme/large",
    "canonical_slug": "acme/large-2026-01-01",
    "name": "Acme: Large",
    "description": "Reads pictures.",
    "context_length": 128000,
    "architecture": {"input_modalities": ["text", "image", "file", "audio"]},
    "supported_parameters": ["tools", "reasoning", "temperature"],
    "pricing": {
        "prompt": "0.000003",
        "completion": "0.000015",
        "input_cache_read": "0.0000003",
        "request": "0",
    },
}


def listed(*entries: Any) -> dict[str, ModelDescriptor]:
    return openrouter_models({"data": list(entries)}, observed_at=NOON)


def test_an_entry_of_openrouter_is_a_model_with_all_that_is_said_of_it() -> None:
    found = listed(ENTRY)["acme/large"]

    assert (
        "acme/large",
        "openrouter",
        "https://openrouter.ai/api/v1",
        128000,
        {"tools", "vision", "reasoning", "files"},
        ("acme/large-2026-01-01",),
        ("Acme: Large", "Reads pictures.", NOON, "openrouter"),
    ) == (
        found.model.name,
        found.model.reported_provider,
        found.model.base_url,
        found.context_window,
        found.capabilities,
        found.aliases,
        (found.title, found.description, found.observed_at, found.source),
    )


def test_prices_per_token_become_exact_prices_per_million() -> None:
    prices = listed(ENTRY)["acme/large"].prices

    assert Prices(input=3, output=15, cache_read="0.3") == prices


@pytest.mark.parametrize("price", ["-1", "", "free", None, 0.5, "NaN"], ids=repr)
def test_a_price_that_is_none_is_unknown_and_not_zero(price: Any) -> None:
    prices = listed(ENTRY | {"pricing": {"prompt": price, "completion": "0"}})["acme/large"].prices

    assert prices is not None
    assert (None, Decimal(0)) == (prices.input, prices.output)


@pytest.mark.parametrize(
    "entry",
    [{}, None, "acme", ENTRY | {"id": 7}, ENTRY | {"context_length": None}, ENTRY | {"context_length": 0}],
    ids=["empty", "nothing", "text", "an odd id", "no window", "an empty window"],
)
def test_an_entry_that_does_not_follow_the_format_is_left_out(entry: Any) -> None:
    assert ["acme/large"] == list(listed(entry, ENTRY))


@pytest.mark.parametrize("listing", [{}, {"data": []}, [], None, {"data": [{}]}], ids=repr)
def test_a_listing_without_models_is_refused(listing: Any) -> None:
    with pytest.raises(ValueError, match="no model"):
        openrouter_models(listing, observed_at=NOON)


def test_what_a_feed_says_makes_a_registry() -> None:
    registry = ModelRegistry(listed(ENTRY))

    assert registry["acme/large"] is registry.preflight("acme/large", ("tools", "vision"))
    assert registry["acme/large"] is registry.named("acme/large-2026-01-01")


def described(**facts: Any) -> ModelDescriptor:
    return ModelDescriptor(model=OpenAIModel(name="m"), context_window=1000, **facts)


async def test_a_secondary_feed_fills_in_and_adds_no_model() -> None:
    async def more() -> dict[str, ModelDescriptor]:
        return {"a": described(prices=Prices(input=1, output=2), title="Other"), "b": described()}

    gathered = await gather_models(lambda: {"a": described(title="Own")}, {"more": more})

    assert ({"a": described(prices=Prices(input=1, output=2), title="Own")}, "complete", ()) == (
        gathered.models,
        gathered.completeness,
        gathered.diagnostics,
    )


async def test_a_secondary_feed_that_fails_is_named_and_the_rest_is_there() -> None:
    def broken() -> dict[str, ModelDescriptor]:
        raise TimeoutError("a secret")

    feeds = {"broken": broken, "prices": lambda: {"a": described(prices=Prices(input=1, output=2))}}
    gathered = await gather_models(lambda: {"a": described()}, feeds)

    assert ("partial", ("broken: TimeoutError",)) == (gathered.completeness, gathered.diagnostics)
    assert gathered.models["a"].prices is not None


async def test_a_primary_feed_that_fails_fails_all() -> None:
    def broken() -> dict[str, ModelDescriptor]:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await gather_models(broken)
