"""What a caller asks for, as records. What does not fit is an `InvalidInputError` before anything is sent or read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from turnlane.records.admissions import Input, Policy
from turnlane.records.base import RecordId
from turnlane.records.errors import InvalidInputError
from turnlane.records.messages import InputPart, TextPart
from turnlane.records.misfits import misfits

R = TypeVar("R", bound=BaseModel)

_ID: TypeAdapter[str] = TypeAdapter(RecordId)


def checked_id(name: str, value: str) -> str:
    """The id, if it is one. `name` is what the error calls it."""
    try:
        return _ID.validate_python(value, strict=True)
    except ValidationError:
        raise InvalidInputError(f"{name} needs 1 to 256 characters and no control characters", fields=[name]) from None


def lane_id(conversation_id: str) -> str:
    """The workflow id of a conversation's lane."""
    return f"lane/{checked_id('conversation_id', conversation_id)}"


def request(kind: type[R], **fields: Any) -> R:
    """Make a record of what a caller gave."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise InvalidInputError(_first_message(error), fields=misfits(error)) from None


def input_of(content: str | Sequence[InputPart], policy: Policy | str | None, **fields: Any) -> Input:
    """Make an input of what a caller submits; text is the short form of one text part."""
    parts = (TextPart(text=content),) if isinstance(content, str) else tuple(content)
    return request(Input, parts=parts, policy=_as_policy(policy), **fields)


def _as_policy(policy: Policy | str | None) -> Policy | None:
    if policy is None or isinstance(policy, Policy):
        return policy
    try:
        return Policy(policy)
    except ValueError:
        known = ", ".join(sorted(Policy))
        raise InvalidInputError(f"there is no policy of this name; there are {known}", fields=["policy"]) from None


def _first_message(error: ValidationError) -> str:
    """What is wrong and where, in the words of our own rules; a value never appears in it."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    words = str(first["msg"]).removeprefix("Value error, ")
    return f"{place}: {words}" if place else words
