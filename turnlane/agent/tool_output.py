"""What a tool returns, as clean JSON, and cut to a size a model can be shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, cast

from pydantic_core import to_jsonable_python

from turnlane.records.base import Json, canonical_json, clean_json
from turnlane.records.files import blob_id_of, blob_reference

TEXT: Final = "text/plain"
JSON: Final = "application/json"


class BytesOutputError(ValueError):
    """A tool's result holds bytes."""


def json_output(value: Any) -> Json:
    """Return a tool's result as clean JSON: models, dataclasses, dates, sets and the like are serialised.

    Raises BytesOutputError for bytes in plain containers and ValueError for what JSON cannot say.
    """
    plain = _plain(value)  # first, because it refuses cycles
    if _holds_bytes(value):
        raise BytesOutputError("bytes")
    cleaned = clean_json(plain)
    canonical_json(cleaned)
    return cast(Json, cleaned)


def _plain(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except UnicodeEncodeError:
        # Lone surrogates are cleaned like any other, but pydantic does not take them in the keys of a dictionary.
        return to_jsonable_python(clean_json(value))


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_bytes(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds_bytes(item) for item in value)
    return isinstance(value, bytes | bytearray | memoryview)


class Shown(NamedTuple):
    """What a model is shown of an output, and the whole of it in bytes if that is more."""

    output: Json
    spilled: bytes | None = None
    media_type: str = ""


def shown_output(output: Json, limit_bytes: int) -> Shown:
    """Return `output` if its JSON has at most `limit_bytes` bytes, else its head and tail within the limit.

    A text is cut as text, anything else as its JSON; `bytes` is the size of what was cut, `reference` names the
    blob that all of it is to be kept as. No character is split. A limit too small for even the frame gives the
    frame with nothing in it.
    """
    encoded = canonical_json(output)
    if len(encoded.encode()) <= limit_bytes:
        return Shown(output)
    text, media_type = (output, TEXT) if isinstance(output, str) else (encoded, JSON)
    whole = text.encode()
    reference = blob_reference(blob_id_of(whole))
    frame: dict[str, Any] = {"truncated": True, "bytes": len(whole), "reference": reference, "head": "", "tail": ""}
    half = max(0, limit_bytes - len(canonical_json(frame).encode())) // 2
    head = _fitting(text, half)
    tail = _fitting(reversed(text), half)
    return Shown(frame | {"head": text[:head], "tail": text[len(text) - tail :]}, whole, media_type)


def _fitting(text: Iterable[str], budget: int) -> int:
    """How many of these characters fit into `budget` bytes of a JSON string."""
    count = 0
    for character in text:
        budget -= len(canonical_json(character).encode()) - 2
        if budget < 0:
            break
        count += 1
    return count
