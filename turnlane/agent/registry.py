"""The model registry: which models an agent may speak with, what they can do, and what they cost.

    models = ModelRegistry({
        "fast": ModelDescriptor(model=OpenAIModel(name="gpt-5-mini"), context_window=400_000, ...),
        "deep": ModelDescriptor(model=AnthropicModel(name="claude-opus-4-1"), context_window=200_000, ...),
    })

Keys are the application's own: they are what a conversation chooses and what a run keeps, so that any
worker goes on with the same model. Nothing here opens a connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from turnlane.agent.given import one_of
from turnlane.agent.models import Model
from turnlane.agent.prices import Prices
from turnlane.records.base import Name, Record, Timestamp
from turnlane.records.errors import InvalidInputError, ModelRefusedError, StaleModelsError

Capability = Literal["tools", "vision", "reasoning", "files"]
Availability = Literal["available", "unavailable"]

CAPABILITIES: Final = frozenset[str](get_args(Capability))
BUILT_IN_PROVIDERS: Final = frozenset({"scripted", "openai", "openai-chat", "anthropic"})
MAX_QUERY_CHARACTERS: Final = 256
MAX_PAGE: Final = 200

_NAME: TypeAdapter[str] = TypeAdapter(Name)


@dataclass(frozen=True, kw_only=True)
class ModelDescriptor:
    """What is known of a model. Raises ValueError for what cannot be.

    `context_window` is in tokens. `aliases` are other names under which a provider's answer may report the
    model (`claude-opus-4.1` for `claude-opus-4-1`). `observed_at` and `source` say when and where this was
    learned; `title` and `description` are for people who choose.
    """

    model: Model
    context_window: int
    capabilities: Collection[Capability] = ()
    prices: Prices | None = None
    observed_at: datetime | None = None
    source: str | None = None
    availability: Availability = "available"
    aliases: Collection[str] = ()
    title: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.context_window, bool) or self.context_window <= 0:
            raise ValueError("a context window has at least one token")
        if isinstance(self.capabilities, str) or set(self.capabilities) - CAPABILITIES:
            raise ValueError(f"capabilities are some of {', '.join(sorted(CAPABILITIES))}")
        one_of("availability", self.availability, Availability)
        if self.observed_at is not None and self.observed_at.tzinfo is None:
            raise ValueError("observed_at has a time zone")
        if isinstance(self.aliases, str):
            raise ValueError("aliases are a collection of names")
        object.__setattr__(self, "capabilities", frozenset(self.capabilities))
        object.__setattr__(self, "aliases", tuple(self.aliases))

    def missing(self, required: Collection[str]) -> tuple[str, ...]:
        """Those of `required` that the model lacks, in their order."""
        return tuple(capability for capability in required if capability not in self.capabilities)

    def answers_to(self, name: str) -> bool:
        """Whether `name` means this model: its own name, or one of its aliases."""
        return name == self.model.name or name in self.aliases


class ModelPrices(Record):
    """Prices in a snapshot, as decimal text per million tokens."""

    input: str | None = None
    output: str | None = None
    cache_read: str | None = None
    cache_write: str | None = None
    currency: str


class ModelEntry(Record):
    """One model of a snapshot."""

    key: Name
    provider: Name
    model: str
    context_window: Annotated[int, Field(gt=0)]
    capabilities: tuple[str, ...] = ()
    availability: Availability = "available"
    aliases: tuple[str, ...] = ()
    prices: ModelPrices | None = None


class ModelsSnapshot(Record):
    """What a registry knew at one moment, as a record that can be kept and compared."""

    schema_version: Literal[1] = 1
    source: str
    observed_at: Timestamp
    models: tuple[ModelEntry, ...]


@dataclass(frozen=True)
class ModelsPage:
    """The keys that a search found, in the order of the registry; `total` counts those left out too."""

    keys: tuple[str, ...]
    total: int
    truncated: bool


class ModelRegistry(Mapping[str, ModelDescriptor]):
    """Descriptors by key. Immutable; every key is checked here, so a mistake shows when it is made.

    `providers` names the adapters that the workers have (`Model.provider`). Raises ValueError for an empty
    registry and for a key that is no name.
    """

    def __init__(
        self, models: Mapping[str, ModelDescriptor], *, providers: Collection[str] = BUILT_IN_PROVIDERS
    ) -> None:
        if not models:
            raise ValueError("a registry has at least one model")
        self._models = {_checked_key(key): descriptor for key, descriptor in models.items()}
        self._providers = frozenset(providers)

    def __getitem__(self, key: str) -> ModelDescriptor:
        return self._models[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def descriptor(self, key: str) -> ModelDescriptor:
        """The descriptor under a key. Raises `ModelRefusedError` for one that is not there."""
        found = self._models.get(key)
        if found is None:
            raise _refused("the agent has no model of this key", key, "unknown-model")
        return found

    def supports(self, key: str, required: Collection[Capability]) -> bool:
        """Whether the model has all of these capabilities."""
        return not self.descriptor(key).missing(required)

    def preflight(self, key: str, required: Collection[Capability] = ()) -> ModelDescriptor:
        """Return the descriptor if the model could be called now for something that needs `required`.

        Opens nothing. Raises `ModelRefusedError` for, in this order: an unknown key, a model that is not
        available, a missing capability, a provider that no worker has. `details['reason']` says which.
        """
        found = self.descriptor(key)
        if found.availability == "unavailable":
            raise _refused("the model is not available", key, "unavailable")
        missing = found.missing(required)
        if missing:
            raise _refused(f"the model lacks {', '.join(missing)}", key, "missing-capability", missing)
        if found.model.provider not in self._providers:
            raise _refused("no worker has the model's provider", key, "unknown-provider")
        return found

    def key_of(self, model: Model) -> str | None:
        """The key of a model, if it stands in the registry as it is given."""
        return next((key for key, descriptor in self._models.items() if descriptor.model == model), None)

    def named(self, name: str) -> ModelDescriptor | None:
        """The descriptor of the model that a provider's answer calls `name`.

        None if no model answers to it, or several whose prices differ: a guess would be worse than no price.
        """
        found = [descriptor for descriptor in self._models.values() if descriptor.answers_to(name)]
        return found[0] if found and all(other.prices == found[0].prices for other in found) else None

    # --- looking --------------------------------------------------------------------------------

    def search(self, query: str, *, limit: int = 50) -> ModelsPage:
        """Find models by words, all of which must stand in key, name, title or description; case does not count.

        An empty query finds all. Raises `InvalidInputError` for more than 256 characters, or a limit outside 1
        to 200.
        """
        if len(query) > MAX_QUERY_CHARACTERS:
            raise InvalidInputError(f"a query has at most {MAX_QUERY_CHARACTERS} characters", fields=["query"])
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInputError(f"a page has 1 to {MAX_PAGE} models", fields=["limit"])
        words = query.lower().split()
        found = [key for key, descriptor in self._models.items() if _mentions(key, descriptor, words)]
        return ModelsPage(keys=tuple(found[:limit]), total=len(found), truncated=len(found) > limit)

    def snapshot(self, *, source: str, observed_at: datetime) -> ModelsSnapshot:
        """What the registry says, as a record."""
        entries = tuple(_entry(key, descriptor) for key, descriptor in self._models.items())
        return ModelsSnapshot(source=source, observed_at=observed_at, models=entries)

    def check_age(self, *, max_age: timedelta, now: datetime) -> None:
        """Raise `StaleModelsError` if a descriptor was observed longer ago than `max_age`, or after `now`.

        Descriptors that do not say when they were observed are not judged.
        """
        stale = [key for key, found in self._models.items() if is_stale(found.observed_at, max_age, now)]
        if stale:
            raise StaleModelsError("what is known of some models is out of date", keys=stale)


def check_snapshot(snapshot: ModelsSnapshot, *, max_age: timedelta, now: datetime) -> None:
    """Raise `StaleModelsError` if a snapshot was observed longer ago than `max_age`, or after `now`."""
    if is_stale(snapshot.observed_at, max_age, now):
        raise StaleModelsError("the snapshot of models is out of date", source=snapshot.source)


def is_stale(observed_at: datetime | None, max_age: timedelta, now: datetime) -> bool:
    """Whether an observation is older than `max_age` or from the future; one without a time is neither."""
    return observed_at is not None and not timedelta(0) <= now - observed_at <= max_age


def _checked_key(key: str) -> str:
    try:
        return _NAME.validate_python(key, strict=True)
    except ValidationError:
        raise ValueError("a model's key is 1 to 128 characters without control characters") from None


def _refused(message: str, key: str, reason: str, missing: tuple[str, ...] = ()) -> ModelRefusedError:
    return ModelRefusedError(message, key=key, reason=reason, fields=list(missing))


def _mentions(key: str, descriptor: ModelDescriptor, words: Collection[str]) -> bool:
    text = " ".join((key, descriptor.model.name, descriptor.title, descriptor.description)).lower()
    return all(word in text for word in words)


def _entry(key: str, descriptor: ModelDescriptor) -> ModelEntry:
    return ModelEntry(
        key=key,
        provider=descriptor.model.reported_provider,
        model=descriptor.model.name,
        context_window=descriptor.context_window,
        capabilities=tuple(sorted(descriptor.capabilities)),
        availability=descriptor.availability,
        aliases=tuple(descriptor.aliases),
        prices=_priced(descriptor.prices),
    )


def _priced(prices: Prices | None) -> ModelPrices | None:
    if prices is None:
        return None
    amounts = {name: getattr(prices, name) for name in ("input", "output", "cache_read", "cache_write")}
    told = {name: None if amount is None else format(amount, "f") for name, amount in amounts.items()}
    return ModelPrices(**told, currency=prices.currency)
