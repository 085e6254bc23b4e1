"""Choosing models: what an agent's functions are asked, and what an input needs of a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from turnlane.agent.models import Model
from turnlane.agent.registry import Capability, ModelRegistry
from turnlane.records.base import JsonObject
from turnlane.records.messages import FilePart, InputPart


@dataclass(frozen=True, kw_only=True)
class ModelQuestion:
    """What a preflight sees of an input that is about to be admitted.

    `chosen` is the key that the conversation chose, None for the agent's own model.
    """

    conversation_id: str
    context: JsonObject | None
    metadata: JsonObject | None
    tenant: str | None
    chosen: str | None


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """What decides on the model of a run, once for all its steps. `chosen` as in `ModelQuestion`."""

    conversation_id: str
    run_id: str
    context: JsonObject | None
    metadata: JsonObject | None
    tenant: str | None
    chosen: str | None


Preflight = Callable[[ModelQuestion], Awaitable[None] | None]
"""Raises to refuse an input before it is admitted: then nothing of it is stored."""

ResolveModel = Callable[[ModelContext], str | Model | Awaitable[str | Model]]
"""Names the model of a run: a key of the agent's registry, or one of its models."""


def check_choice(model: Model | str, models: ModelRegistry | None, resolve: ResolveModel | None) -> None:
    """Raise ValueError for an agent's model, registry and function that cannot work together."""
    if models is not None and (model if isinstance(model, str) else models.key_of(model)) not in models:
        raise ValueError("an agent with a registry of models has one of them as its own: give its key")
    if models is None and isinstance(model, str):
        raise ValueError("a key of a model needs a registry: give models=ModelRegistry(...)")
    if models is None and resolve is not None:
        raise ValueError("resolve_model names models of a registry: give models=ModelRegistry(...)")


def check_fallbacks(
    fallbacks: Sequence[Model | str], models: ModelRegistry | None, required: Collection[Capability]
) -> None:
    """Raise ValueError for a fallback by key that could never take over. One that is not available now may be later."""
    for key in (each for each in fallbacks if isinstance(each, str)):
        if models is None or key not in models:
            raise ValueError(f"the fallback {key!r} is a key of no model: give models=ModelRegistry(...) that has it")
        missing = models.descriptor(key).missing(required)
        if missing:
            raise ValueError(f"the fallback {key!r} lacks {', '.join(missing)}")


def needed_by(parts: Iterable[InputPart]) -> tuple[Capability, ...]:
    """What a model must be able to do to read an input: images take vision, other files take files."""
    types = {part.media_type.lower() for part in parts if isinstance(part, FilePart)}
    images = {name for name in types if name.startswith("image/")}
    needed: list[Capability] = []
    if images:
        needed.append("vision")
    if types - images:
        needed.append("files")
    return tuple(needed)
