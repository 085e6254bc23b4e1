"""Text and JSON: cleaned once, always alike, and never something a database or a provider refuses."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from turnlane.records.base import (
    Json,
    JsonObject,
    Text,
    canonical_json,
    clean_json,
    clean_text,
    derived_id,
    digest,
)

ADAPTER: TypeAdapter[Any] = TypeAdapter(Json)
OBJECTS: TypeAdapter[Any] = TypeAdapter(JsonObject)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain", "plain"),
        ("a\x00b", "a\ufffdb"),
        ("\ud83d", "\ufffd"),
        ("\ud83d\ude00", "\ufffd\ufffd"),
        ("\U0001f600 \t\n\x01", "\U0001f600 \t\n\x01"),
        ("", ""),
    ],
)
def test_what_cannot_be_stored_becomes_the_replacement_character(text: str, cleaned: str) -> None:
    assert cleaned == clean_text(text) == TypeAdapter(Text).validate_python(text)


@given(st.text(st.characters() | st.sampled_from("\x00\ud800\udfff")))
def test_cleaning_is_done_once(text: str) -> None:
    cleaned = clean_text(text)

    assert cleaned == clean_text(cleaned)
    assert len(text) == len(cleaned)
    assert "\x00" not in cleaned and cleaned == cleaned.encode().decode()


def test_cleaning_reaches_keys_and_depths() -> None:
    dirty = {"k\x00": ({"x": ["\ud83d", 1, None, True]},)}

    assert {"k\ufffd": [{"x": ["\ufffd", 1, None, True]}]} == clean_json(dirty) == ADAPTER.validate_python(dirty)


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {"a": {"b": -float("inf")}}, {1: "x"}, object(), b"x", {"a": {1, 2}}]
)
def test_what_json_cannot_say_is_a_validation_error(value: Any) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(value)


@pytest.mark.parametrize("value", [[], "x", None, 1])
def test_an_object_is_an_object(value: Any) -> None:
    with pytest.raises(ValidationError):
        OBJECTS.validate_python(value)


@given(VALUES)
def test_json_is_kept_as_it_is(value: Any) -> None:
    assert clean_json(value) == ADAPTER.validate_python(value)


@given(VALUES.map(clean_json))
def test_canonical_json_reads_back_and_does_not_see_the_order_of_keys(value: Any) -> None:
    text = canonical_json(value)

    assert value == json.loads(text)
    assert text == canonical_json(json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs))))


def test_canonical_json_refuses_what_is_not_json() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(float("nan"))


def test_a_digest_is_pinned() -> None:
    assert "44136fa355b3678a1146ad16f7e8649e" == digest({})
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": "2"})


def test_a_derived_id_is_of_its_parts_in_their_order() -> None:
    others = [derived_id("p", "a", "b"), derived_id("p", "b", "a"), derived_id("p", "ab"), derived_id("q", "a", "b")]

    assert 4 == len(set(others))
    assert derived_id("p", "a", "b") == others[0]
    assert others[0].startswith("p-") and 26 == len(others[0])
