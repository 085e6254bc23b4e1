"""Model feeds: descriptors from lists that others keep, OpenRouter's for one. Fetching is the application's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

from turnlane.agent.answered import answered
from turnlane.agent.models import OpenAIChatModel
from turnlane.agent.prices import Prices
from turnlane.agent.registry import Capability, ModelDescriptor

logger = logging.getLogger(__name__)

Models = Mapping[str, ModelDescriptor]
Feed = Callable[[], Models | Awaitable[Models]]

OPENROUTER_URL: Final = "https://openrouter.ai/api/v1"
OPENROUTER_KEY: Final = "OPENROUTER_API_KEY"

_PER_MILLION: Final = Decimal(1_000_000)
_MODALITIES: Final[Mapping[str, Capability]] = {"image": "vision", "file": "files"}
_PARAMETERS: Final[Mapping[str, Capability]] = {"tools": "tools", "reasoning": "reasoning"}
_ODDITIES = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class GatheredModels:
    """What feeds said of models. `partial` when a feed beside the first failed; `diagnostics` names it."""

    models: dict[str, ModelDescriptor]
    completeness: Literal["complete", "partial"]
    diagnostics: tuple[str, ...] = ()


async def gather_models(primary: Feed, secondary: Mapping[str, Feed] | None = None) -> GatheredModels:
    """Ask the primary feed which models there are, and the others, by name, for what it left open.

    A secondary feed fills in prices, capabilities, title and description that the feeds before it did not give;
    models that only it knows are left out. What the primary raises is raised; a secondary that fails is left out
    and named.
    """
    models = dict(await answered(primary()))
    failed: list[str] = []
    for name, feed in (secondary or {}).items():
        try:
            more = await answered(feed())
        except Exception as error:
            logger.warning("the feed %s of models failed with %s", name, type(error).__name__)
            failed.append(f"{name}: {type(error).__name__}")
            continue
        models = {key: _filled(found, more.get(key)) for key, found in models.items()}
    return GatheredModels(models, "partial" if failed else "complete", tuple(failed))


def _filled(found: ModelDescriptor, more: ModelDescriptor | None) -> ModelDescriptor:
    if more is None:
        return found
    return replace(
        found,
        prices=found.prices or more.prices,
        capabilities=found.capabilities or more.capabilities,
        title=found.title or more.title,
        description=found.description or more.description,
    )


def openrouter_models(
    listing: Any, *, observed_at: datetime, base_url: str = OPENROUTER_URL, api_key_env: str = OPENROUTER_KEY
) -> dict[str, ModelDescriptor]:
    """Descriptors from the JSON of OpenRouter's `/models`, by OpenRouter's ids.

    Its prices are per token and become prices per million; one that is negative says that it varies, and is
    unknown. An entry that does not follow the format is left out. Raises ValueError for a listing without any
    entry that does.
    """
    entries = listing.get("data") if isinstance(listing, dict) else None
    read = [_descriptor(entry, observed_at, base_url, api_key_env) for entry in entries or ()]
    models = {found.model.name: found for found in read if found is not None}
    if not models:
        raise ValueError("the listing holds no model")
    return models


def _descriptor(entry: Any, observed_at: datetime, base_url: str, api_key_env: str) -> ModelDescriptor | None:
    try:
        return ModelDescriptor(
            model=OpenAIChatModel(
                name=_text(entry["id"]), base_url=base_url, api_key_env=api_key_env, provider_name="openrouter"
            ),
            context_window=_count(entry["context_length"]),
            capabilities=_capabilities(entry),
            prices=_prices(entry.get("pricing") or {}),
            observed_at=observed_at,
            source="openrouter",
            aliases=[slug for slug in [entry.get("canonical_slug")] if slug and slug != entry["id"]],
            title=entry.get("name") or "",
            description=entry.get("description") or "",
        )
    except _ODDITIES as error:
        logger.info("an entry of OpenRouter's listing was left out: %s", type(error).__name__)
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("an id is text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("a context length is a whole number")
    return value


def _capabilities(entry: Mapping[str, Any]) -> set[Capability]:
    taken = (entry.get("architecture") or {}).get("input_modalities") or ()
    understood = entry.get("supported_parameters") or ()
    by_input = {_MODALITIES[name] for name in taken if name in _MODALITIES}
    return by_input | {_PARAMETERS[name] for name in understood if name in _PARAMETERS}


def _prices(pricing: Mapping[str, Any]) -> Prices:
    return Prices(
        input=_per_million(pricing.get("prompt")),
        output=_per_million(pricing.get("completion")),
        cache_read=_per_million(pricing.get("input_cache_read")),
        cache_write=_per_million(pricing.get("input_cache_write")),
    )


def _per_million(per_token: Any) -> Decimal | None:
    """A price per token as one per million; None for what is no price."""
    try:
        price = Decimal(per_token) if isinstance(per_token, str) else None
    except InvalidOperation:
        return None
    return None if price is None or not price.is_finite() or price < 0 else price * _PER_MILLION
