"""A model's arguments: bound to a tool's parameters, with JSON in a string taken for what a parameter asks for.

Some models write a nested object or list as a string that holds its JSON. Where such a string does not fit
and what it holds does, that is what was meant.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from turnlane.agent.tool_context import ToolContext
from turnlane.agent.tool_signature import ToolSignature
from turnlane.records.base import JsonObject, canonical_json


def bind_arguments(signature: ToolSignature, ctx: ToolContext, given: JsonObject, *, coerce: bool) -> dict[str, Any]:
    """Return the keyword arguments of a call. Raises pydantic's ValidationError for arguments that do not fit."""
    try:
        return signature.bind(ctx, canonical_json(given))
    except ValidationError as error:
        repaired = _repaired(given, error) if coerce else given
        if repaired is given:
            raise
        try:
            return signature.bind(ctx, canonical_json(repaired))
        except (ValidationError, ValueError):
            raise error from None


def _repaired(given: JsonObject, error: ValidationError) -> JsonObject:
    """Replace the strings that an error complains of by the JSON in them; the same object if there is none."""
    repaired: Any = given
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        repaired = _decoded_at(repaired, detail["loc"])
    found: JsonObject = repaired
    return found


def _decoded_at(value: Any, place: tuple[int | str, ...]) -> Any:
    """Return `value` with the string at a place decoded, copied on the way; `value` itself if it cannot be."""
    if isinstance(value, str):
        return _decoded(value)
    if not place:
        return value
    step, rest = place[0], place[1:]
    if isinstance(value, dict) and step in value:
        inner = _decoded_at(value[step], rest)
        return value if inner is value[step] else value | {step: inner}
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        inner = _decoded_at(value[step], rest)
        return value if inner is value[step] else [*value[:step], inner, *value[step + 1 :]]
    # What is left of the place names a member of a union, not a part of the value.
    return _decoded_at(value, rest)


def _decoded(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(found, str) else found
