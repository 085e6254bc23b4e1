"""Sealing: equal values give equal bytes, and a payload opens under its key and at its place only."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from turnlane.activities.sealing import PayloadSeal, canonical_bytes, json_safe
from turnlane.records.errors import InputTooLargeError, PayloadUnreadableError
from turnlane.records.invocations import SealedPayload

KEY = bytes(range(32))
PLACE = ("c", "inv", "art")
MIB = 1024 * 1024


def seal(key: bytes = KEY, max_bytes: int = MIB) -> PayloadSeal:
    return PayloadSeal(key, max_bytes)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        # U+1F600 is two code units from D83D on, so it sorts before U+FF5E; by code point it would not.
        ({"\uff5e": 1, "\U0001f600": 2}, '{"\U0001f600":2,"\uff5e":1}'),
        ({"x": {"z": 1, "y": 2}}, '{"x":{"y":2,"z":1}}'),
        ("lone \ud800", '"lone \ufffd"'),
        ({"data": b"\x00\xff"}, '{"data":{"base64":"AP8="}}'),
    ],
)
def test_json_is_canonical(value: Any, expected: str) -> None:
    assert expected == canonical_bytes(value).decode()


def test_an_error_is_told_with_its_causes_and_a_cycle_ends() -> None:
    inner, outer = KeyError("inner"), ValueError("outer")
    outer.__cause__, inner.__cause__ = inner, outer

    expected = {"name": "ValueError", "message": "outer", "cause": {"name": "KeyError", "message": "'inner'"}}

    assert expected == json_safe(outer)


def test_a_cause_that_was_hidden_stays_hidden() -> None:
    try:
        try:
            raise KeyError("secret")
        except KeyError:
            raise ValueError("outer") from None
    except ValueError as error:
        told = json_safe(error)

    assert {"name": "ValueError", "message": "outer"} == told


def test_what_is_sealed_opens_again() -> None:
    sealed = seal().seal(PLACE, {"prompt": "hello"})

    assert {"prompt": "hello"} == seal().open(sealed).value
    assert "hello" not in sealed.model_dump_json()


def test_a_payload_is_encrypted_anew_each_time() -> None:
    one, two = (seal().seal(PLACE, "hello") for _ in range(2))

    assert one.sha256 == two.sha256
    assert (one.iv, one.ciphertext) != (two.iv, two.ciphertext)


def flipped(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[0] ^= 1
    return base64.b64encode(bytes(data)).decode()


SEALED = seal().seal(PLACE, {"prompt": "hello"})


@pytest.mark.parametrize(
    "changed",
    [
        {"ciphertext": flipped(SEALED.ciphertext)},
        {"iv": flipped(SEALED.iv)},
        {"tag": flipped(SEALED.tag)},
        {"conversation_id": "other"},
        {"invocation_id": "other"},
        {"artifact_id": "other"},
        {"sha256": "0" * 64},
        {"bytes": SEALED.bytes + 1},
        {"bytes": 0},
        {"ciphertext": "not base64!"},
        {"iv": ""},
        {"ciphertext": SEALED.ciphertext + "AAAA"},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_a_payload_that_was_changed_or_moved_does_not_open(changed: dict[str, Any]) -> None:
    tampered = SealedPayload.model_validate({**SEALED.model_dump(), **changed})

    with pytest.raises(PayloadUnreadableError):
        seal().open(tampered)


def test_another_key_does_not_open_it() -> None:
    with pytest.raises(PayloadUnreadableError):
        seal(key=bytes(32)).open(SEALED)


def test_what_is_over_the_limit_is_neither_sealed_nor_opened() -> None:
    with pytest.raises(InputTooLargeError):
        seal(max_bytes=1024).seal(PLACE, "x" * 1025)
    with pytest.raises(InputTooLargeError):
        seal(max_bytes=1024).open(seal().seal(PLACE, "x" * 1025))


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(33)])
def test_a_key_has_32_bytes(key: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        seal(key=key)


@pytest.mark.parametrize("key", [32, "k" * 32, [0] * 32])
def test_a_key_is_bytes_and_a_number_makes_no_key_of_zeros(key: Any) -> None:
    with pytest.raises(TypeError):
        seal(key=key)


def test_a_key_that_its_owner_wipes_is_kept_as_it_was() -> None:
    key = bytearray(b"k" * 32)
    one = PayloadSeal(key, 1024)  # type: ignore[arg-type]
    sealed = one.seal(PLACE, "hello")
    key[:] = bytes(32)

    assert "hello" == one.open(sealed).value
    assert b"k" * 8 not in repr(vars(one)).encode()


@pytest.mark.parametrize("limit", [0, 1023, 64 * MIB + 1])
def test_a_limit_is_bounded(limit: int) -> None:
    with pytest.raises(ValueError, match="max_payload_bytes"):
        seal(max_bytes=limit)
