"""The model registry: what is checked when it is made, what a preflight says, and what is found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from turnlane.activities.providers.registry import Providers
from turnlane.agent import (
    Agent,
    AnthropicModel,
    Model,
    ModelDescriptor,
    ModelRegistry,
    OpenAIChatModel,
    OpenAIModel,
    Prices,
    ScriptedModel,
    tool,
)
from turnlane.agent.registry import BUILT_IN_PROVIDERS, ModelsSnapshot, check_snapshot
from turnlane.records.errors import InvalidInputError, ModelRefusedError, StaleModelsError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SONNET = AnthropicModel(name="claude-sonnet-4-5")


def described(model: Model = SONNET, **facts: Any) -> ModelDescriptor:
    """A descriptor with a context window."""
    return ModelDescriptor(model=model, **{"context_window": 200_000, **facts})


@tool
def noop() -> None:
    """Do nothing."""


class Elsewhere(OpenAIChatModel):
    """A model of a provider that no worker has."""

    provider = "elsewhere"


REGISTRY = ModelRegistry(
    {
        "sonnet": described(capabilities={"tools", "vision"}, title="Claude Sonnet", aliases=["claude-sonnet-4.5"]),
        "mini": described(OpenAIModel(name="gpt-5-mini"), description="Small and quick"),
        "gone": described(OpenAIModel(name="gpt-3"), availability="unavailable"),
        "strange": described(Elsewhere(name="x"), capabilities={"tools"}),
    }
)


@pytest.mark.parametrize(
    "facts",
    [
        {"context_window": 0},
        {"context_window": -1},
        {"context_window": True},
        {"capabilities": {"telepathy"}},
        {"capabilities": "tools"},
        {"availability": "perhaps"},
        {"observed_at": datetime(2026, 1, 1)},
        {"aliases": "one-name"},
    ],
    ids=str,
)
def test_a_descriptor_that_cannot_be_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        described(**facts)


@pytest.mark.parametrize("key", ["", "x" * 129, "tab\tkey"], ids=repr)
def test_a_key_that_is_no_name_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        ModelRegistry({key: described()})


def test_a_registry_has_a_model() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ModelRegistry({})


@pytest.mark.parametrize(
    ("key", "required", "reason"),
    [
        ("nobody", ("vision",), "unknown-model"),
        ("gone", ("vision",), "unavailable"),
        ("strange", ("vision",), "missing-capability"),
        ("strange", ("tools",), "unknown-provider"),
    ],
)
def test_a_preflight_refuses_for_the_first_of_its_reasons(key: str, required: Any, reason: str) -> None:
    with pytest.raises(ModelRefusedError) as refused:
        REGISTRY.preflight(key, required)

    assert reason == refused.value.details["reason"]


def test_a_preflight_says_what_is_missing() -> None:
    with pytest.raises(ModelRefusedError) as refused:
        REGISTRY.preflight("sonnet", ("files", "tools", "reasoning"))

    assert ["files", "reasoning"] == refused.value.details["fields"]


def test_a_preflight_that_passes_returns_the_descriptor() -> None:
    assert REGISTRY["sonnet"] is REGISTRY.preflight("sonnet", ("tools", "vision"))


async def test_every_built_in_provider_has_an_adapter_and_no_other_has() -> None:
    kinds = [ScriptedModel(script=lambda request: ()), OpenAIModel(name="m"), OpenAIChatModel(name="m"), SONNET]
    providers = Providers()
    opened = {model.provider for model in kinds if providers.of(model) is not None}
    await providers.aclose()

    assert opened == BUILT_IN_PROVIDERS


def test_a_provider_of_an_application_is_known_once_it_is_named() -> None:
    registry = ModelRegistry({"strange": described(Elsewhere(name="x"))}, providers={"elsewhere"})

    assert "x" == registry.preflight("strange").model.name


@pytest.mark.parametrize(("required", "expected"), [((), True), (("tools",), True), (("tools", "files"), False)])
def test_a_model_supports_what_it_has_all_of(required: Any, expected: bool) -> None:
    assert expected is REGISTRY.supports("sonnet", required)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ("sonnet", "mini", "gone", "strange")),
        ("CLAUDE", ("sonnet",)),
        ("quick gpt", ("mini",)),
        ("quick claude", ()),
        ("gpt", ("mini", "gone")),
    ],
)
def test_a_search_finds_what_has_all_words(query: str, expected: tuple[str, ...]) -> None:
    assert expected == REGISTRY.search(query).keys


def test_a_search_tells_how_many_it_left_out() -> None:
    page = REGISTRY.search("", limit=3)

    assert (("sonnet", "mini", "gone"), 4, True) == (page.keys, page.total, page.truncated)


@pytest.mark.parametrize(("query", "limit"), [("x" * 257, 10), ("", 0), ("", 201)], ids=["query", "none", "many"])
def test_a_search_out_of_bounds_is_refused(query: str, limit: int) -> None:
    with pytest.raises(InvalidInputError):
        REGISTRY.search(query, limit=limit)


@pytest.mark.parametrize(
    ("observed", "is_refused"),
    [
        (NOON, False),
        (NOON - timedelta(hours=1), False),
        (NOON - timedelta(hours=1, seconds=1), True),
        (NOON + timedelta(seconds=1), True),
    ],
    ids=["now", "just in time", "too old", "from the future"],
)
def test_what_is_known_has_an_age(observed: datetime, is_refused: bool) -> None:
    registry = ModelRegistry({"sonnet": described(observed_at=observed), "mini": described()})
    snapshot = registry.snapshot(source="the price list", observed_at=observed)
    refused = 0
    for check in (registry.check_age, lambda **age: check_snapshot(snapshot, **age)):
        try:
            check(max_age=timedelta(hours=1), now=NOON)
        except StaleModelsError:
            refused += 1

    assert (2 if is_refused else 0) == refused


def test_a_snapshot_survives_json() -> None:
    prices = Prices(input="0.000001", output=15, cache_read=Decimal("1E-7"))
    snapshot = ModelRegistry({"sonnet": described(prices=prices)}).snapshot(source="s", observed_at=NOON)
    again = ModelsSnapshot.model_validate_json(snapshot.model_dump_json())

    assert snapshot == again
    assert again.models[0].prices is not None
    assert ("0.000001", "15", "0.0000001", None) == (
        again.models[0].prices.input,
        again.models[0].prices.output,
        again.models[0].prices.cache_read,
        again.models[0].prices.cache_write,
    )


@pytest.mark.parametrize("name", ["claude-sonnet-4-5", "claude-sonnet-4.5"])
def test_an_answer_names_its_model_by_name_or_alias(name: str) -> None:
    assert REGISTRY["sonnet"] is REGISTRY.named(name)


@pytest.mark.parametrize("name", ["auto", "claude-sonnet", ""])
def test_a_name_that_nobody_has_is_nobodys(name: str) -> None:
    assert REGISTRY.named(name) is None


def test_a_name_with_two_prices_is_nobodys() -> None:
    low = described(prices=Prices(input=1, output=2))
    high = described(prices=Prices(input=2, output=4))

    assert ModelRegistry({"low": low, "high": high}).named(SONNET.name) is None


@pytest.mark.parametrize(
    ("amount", "error"),
    [(0.1, TypeError), (True, TypeError), ("", ValueError), ("-1", ValueError), ("NaN", ValueError), (-3, ValueError)],
)
def test_a_price_is_exact_or_refused(amount: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Prices(input=amount, output=0)


@pytest.mark.parametrize("currency", ["usd", "US", "DOLLAR", ""])
def test_a_currency_is_three_letters(currency: str) -> None:
    with pytest.raises(ValueError, match="currency"):
        Prices(input=0, output=0, currency=currency)


def test_prices_are_what_was_written() -> None:
    prices = Prices(input="0.10", output=Decimal("2.5"), cache_read=0)

    assert (Decimal("0.10"), Decimal("2.5"), Decimal(0), None) == (
        prices.input,
        prices.output,
        prices.cache_read,
        prices.cache_write,
    )


@pytest.mark.parametrize("name", ["", "Open Router", "x" * 65, "-x"])
def test_a_providers_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        OpenAIChatModel(name="x", provider_name=name)


@pytest.mark.parametrize(("name", "expected"), [(None, "openai-chat"), ("openrouter", "openrouter")])
def test_a_compatible_server_is_reported_under_its_name(name: str | None, expected: str) -> None:
    assert expected == OpenAIChatModel(name="x", provider_name=name).reported_provider


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fallbacks": ["mini"]}, "registry|models="),
        ({"models": REGISTRY, "model": "sonnet", "fallbacks": ["nothing"]}, "nothing"),
        ({"models": REGISTRY, "model": "sonnet", "fallbacks": ["mini"], "tools": [noop]}, "lacks tools"),
    ],
)
def test_a_fallback_by_key_that_could_never_take_over_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Agent(**{"name": "a", "model": SONNET, **options})


def test_a_fallback_that_is_not_available_now_may_be_later() -> None:
    agent = Agent(name="a", model="sonnet", models=REGISTRY, fallbacks=["gone", SONNET])

    assert ("gone", "claude-sonnet-4-5") == agent.facts.fallbacks
