"""Lossless JSON: what is kept comes back as it was, and what would not is refused."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlane.records.lossless import NotLosslessError, decode_lossless, encode_lossless


class Colour(IntEnum):
    RED = 1


class Words(str):
    pass


@dataclass
class Point:
    x: int


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def looped() -> list[Any]:
    inner: dict[str, Any] = {}
    inner["self"] = inner
    return [inner]


def kinds(value: Any) -> Any:
    """A value as its types, all the way down."""
    if isinstance(value, list):
        return [kinds(item) for item in value]
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    return type(value), value


numbers = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0 or math.copysign(1, x) > 0)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_a_value_comes_back_with_its_types(value: Any) -> None:
    assert kinds(value) == kinds(decode_lossless(encode_lossless(value)))


def test_what_is_kept_is_ascii_and_a_lone_surrogate_comes_back() -> None:
    text = encode_lossless("\ud83d and é")

    assert text.isascii()
    assert "\ud83d and é" == decode_lossless(text)


def test_each_reading_is_a_copy_of_its_own() -> None:
    value = {"list": [1]}
    text = encode_lossless(value)
    value["list"].append(2)

    first = decode_lossless(text)
    first["list"].append(3)

    assert {"list": [1]} == decode_lossless(text)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        (1, 2),
        {1},
        frozenset(),
        b"bytes",
        bytearray(b"x"),
        datetime(2026, 1, 1, tzinfo=UTC),
        Point(1),
        Colour.RED,
        Words("a"),
        OrderedDict(a=1),
        {1: "one"},
        {None: 1},
        {Words("a"): 1},
        [{"deep": [(1,)]}],
        10**5000,
        nested(101),
        looped(),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_would_not_come_back_is_refused(value: Any) -> None:
    with pytest.raises(NotLosslessError):
        encode_lossless(value)


def test_a_hundred_containers_deep_is_kept() -> None:
    assert nested(100) == decode_lossless(encode_lossless(nested(100)))


def test_a_container_that_stands_in_two_places_is_no_cycle() -> None:
    shared = [1]

    assert [[1], [1]] == decode_lossless(encode_lossless([shared, shared]))


def test_a_refusal_names_the_place_and_the_type_and_quotes_nothing() -> None:
    with pytest.raises(NotLosslessError) as refused:
        encode_lossless({"password": [{"hunter2"}]})

    assert "$.*[0]: a set does not come back from JSON as it is" == str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[Infinity]", '{"a": }', "[" * 100_000])
def test_what_is_not_json_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_lossless(text)
