"""Lossless JSON: values that come back from JSON as exactly what they were, and nothing else.

null, booleans, strings, integers, finite floats except -0.0, lists, and dictionaries with string keys; at
most 100 containers deep, without cycles. A tuple, a set, a date or an instance of a subclass would come
back as something else, so it is refused. Text is kept to the character, lone surrogates included.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 100

_PLAIN = (str, bool, int, type(None))


class NotLosslessError(ValueError):
    """A value would not come back from JSON as it is. Says where and of which type, never the value."""


def encode_lossless(value: Any) -> str:
    """Return a value as JSON text in ASCII. Raises NotLosslessError."""
    _check(value, "$", ())
    try:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except ValueError:
        # Python refuses to write integers of more than a few thousand digits.
        raise NotLosslessError("a number is too long for JSON") from None


def decode_lossless(text: str) -> Any:
    """Return the value a text was made of, as a copy of its own. Raises ValueError for anything else."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check(value: Any, place: str, above: tuple[int, ...]) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is float:
        _check_float(value, place)
    elif kind is list:
        inside = _inside(value, place, above)
        for number, item in enumerate(value):
            _check(item, f"{place}[{number}]", inside)
    elif kind is dict:
        inside = _inside(value, place, above)
        for key, item in value.items():
            if type(key) is not str:
                raise NotLosslessError(f"{place}: a key is a {type(key).__name__} and not a string")
            _check(item, f"{place}.*", inside)
    else:
        raise NotLosslessError(f"{place}: a {kind.__name__} does not come back from JSON as it is")


def _check_float(value: float, place: str) -> None:
    if not math.isfinite(value):
        raise NotLosslessError(f"{place}: a number is not finite")
    if value == 0 and math.copysign(1, value) < 0:
        raise NotLosslessError(f"{place}: -0.0 does not come back from JSON everywhere")


def _inside(value: Any, place: str, above: tuple[int, ...]) -> tuple[int, ...]:
    if id(value) in above:
        raise NotLosslessError(f"{place}: a container holds itself")
    if len(above) >= MAX_DEPTH:
        raise NotLosslessError(f"nested more than {MAX_DEPTH} containers deep")
    return (*above, id(value))
