"""The ground every record stands on: strictness, identifiers, timestamps, JSON and text cleaning."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
)

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Record(BaseModel):
    """A canonical record: frozen, strict, and closed against unknown fields. Its errors quote no content."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)


class Payload(BaseModel):
    """What travels between the lane and its activities.

    Frozen and strict like a record, but unknown fields are ignored, so that during a rolling
    deploy an older worker can still read what a newer one wrote. New fields go last, with defaults.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", hide_input_in_errors=True)


def _says_nothing(value: object) -> bool:
    return value is None or value is False or value == ()


UNSAID = Field(exclude_if=_says_nothing)
"""Marks a field, with a default of None, False or (), that travels only when it says something: requests and outcomes
of steps are in the history of every turn, and what a run spent is in many records."""


def _printable(value: str) -> str:
    found = _UNPRINTABLE.search(value)
    if found is not None:
        kind = "lone surrogates" if found[0] >= "\ud800" else "control characters"
        raise ValueError(f"an id may not contain {kind}")
    return value


def _utc(value: datetime) -> datetime:
    # Most are in UTC already: finding that out costs much less than converting them.
    return value if value.tzinfo is UTC else value.astimezone(UTC)


RecordId = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_printable)]
"""1 to 256 characters, no control characters; compared exactly and never joined into keys."""

Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(_printable)]
Timestamp = Annotated[AwareDatetime, AfterValidator(_utc)]


def elapsed_ms(since: datetime | None, until: datetime | None) -> int | None:
    """Return the whole milliseconds between two moments, if both are known; a clock that went back makes none."""
    if since is None or until is None:
        return None
    return max(0, (until - since) // timedelta(milliseconds=1))


def clean_text(text: str) -> str:
    """Return `text` with NUL and lone surrogates replaced by U+FFFD.

    Done once, at ingestion, before anything is stored, hashed or sent: both databases and both
    provider protocols refuse these characters, and a hash must not depend on who cleaned.
    """
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def clean_json(value: Any) -> Any:
    """Return a JSON value with every string in it (keys included) cleaned by `clean_text`."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_json(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value


_canonical = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical_json(value: Any) -> str:
    """Serialise a JSON value so that equal values give equal text: sorted keys, no spaces, no NaN."""
    return _canonical(value)


def json_bytes(value: str) -> int:
    """How many bytes a string takes as JSON."""
    return len(json.dumps(value, ensure_ascii=False).encode())


def digest(value: Any) -> str:
    """Return 32 hexadecimal characters (128 bits of SHA-256) over the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]


def derived_id(prefix: str, *parts: str) -> str:
    """Return an id that any process derives again from the same parts.

    The parts are hashed as a JSON array, so no two different lists of parts meet in one id.
    """
    return f"{prefix}-{hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:24]}"


def _without_constants(value: Any) -> Any:
    canonical_json(value)
    return value


Text = Annotated[str, BeforeValidator(clean_json)]
"""Text that is clean by construction: see `clean_text`."""

Json = Annotated[JsonValue, BeforeValidator(clean_json), AfterValidator(_without_constants)]
"""Any JSON value, clean by construction and without NaN or infinities."""

JsonObject = Annotated[dict[str, JsonValue], BeforeValidator(clean_json), AfterValidator(_without_constants)]


class ProviderEnvelope(Record):
    """Opaque evidence of one provider, carried back to that provider and to nobody else.

    `origin` tells its accounts and addresses apart, for a provider that reads back only what it gave out there.
    """

    schema_version: Annotated[int, Field(gt=0)] = 1
    provider: Name
    data: JsonObject
    origin: Name | None = None
