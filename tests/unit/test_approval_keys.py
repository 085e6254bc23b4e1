"""Approval keys: what a signature covers, how keys are rotated, and that nothing shows a key."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from turnlane.agent import ApprovalKeys

OLD, NEW = b"o" * 32, b"n" * 32
CALL: dict[str, Any] = {
    "approval_id": "apr-1",
    "call_id": "c1",
    "tool_name": "pay",
    "arguments": {"to": "ann", "sum": 5},
}
SIGNED = ApprovalKeys({"k1": OLD}).sign(**CALL)


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_what_was_signed_is_verified_whatever_the_order_of_its_arguments() -> None:
    shuffled = CALL | {"arguments": {"sum": 5, "to": "ann"}}

    assert ApprovalKeys({"k1": OLD}).verify(SIGNED, **shuffled)


@pytest.mark.parametrize(
    "changed",
    [
        {"approval_id": "apr-2"},
        {"call_id": "c2"},
        {"tool_name": "refund"},
        {"arguments": {"to": "eve", "sum": 5}},
        {"arguments": {"to": "ann", "sum": 5.5}},
        {"arguments": {"to": "ann", "sum": "5"}},
        {"arguments": {"to": "ann"}},
        {"arguments": {}},
    ],
    ids=str,
)
def test_a_signature_fits_no_other_call(changed: dict[str, Any]) -> None:
    assert not ApprovalKeys({"k1": OLD}).verify(SIGNED, **(CALL | changed))


@pytest.mark.parametrize(
    "forged",
    [None, "", "k1", "k1.", ".", SIGNED[:-1], SIGNED + "A", SIGNED.replace("k1.", "k2."), SIGNED[3:], "k1.\xe9"],
    ids=repr,
)
def test_a_missing_or_altered_signature_is_no_signature(forged: str | None) -> None:
    assert not ApprovalKeys({"k1": OLD}).verify(forged, **CALL)


def test_a_key_of_the_same_id_and_other_bytes_verifies_nothing() -> None:
    assert not ApprovalKeys({"k1": NEW}).verify(SIGNED, **CALL)


def test_after_a_rotation_the_new_key_signs_and_both_verify() -> None:
    keys = ApprovalKeys({"k2": NEW, "k1": OLD})
    signed = keys.sign(**CALL)

    assert signed.startswith("k2.")
    assert keys.verify(SIGNED, **CALL) and keys.verify(signed, **CALL)


def test_keys_come_from_the_environment_in_their_order() -> None:
    keys = ApprovalKeys.from_environment({"TURNLANE_APPROVAL_KEYS": f"k2:{text(NEW)}, k1:{text(OLD)}"})

    assert keys is not None
    assert keys.sign(**CALL).startswith("k2.") and keys.verify(SIGNED, **CALL)


@pytest.mark.parametrize("environment", [{}, {"TURNLANE_APPROVAL_KEYS": ""}, {"TURNLANE_APPROVAL_KEYS": "  "}])
def test_without_the_variable_there_are_no_keys(environment: dict[str, str]) -> None:
    assert ApprovalKeys.from_environment(environment) is None


@pytest.mark.parametrize("given", ["k1", "k1:", "k1:!!", ":" + text(OLD), f"k1:{text(OLD)},k1:{text(NEW)}", "k1:YWJj"])
def test_a_variable_that_names_no_usable_keys_is_refused_without_quoting_it(given: str) -> None:
    with pytest.raises(ValueError) as refused:
        ApprovalKeys.from_environment({"TURNLANE_APPROVAL_KEYS": given})

    assert text(OLD) not in str(refused.value)


@pytest.mark.parametrize("keys", [{}, {"": OLD}, {"a.b": OLD}, {"k1": b"short"}])
def test_keys_that_cannot_work_are_refused(keys: dict[str, bytes]) -> None:
    with pytest.raises(ValueError):
        ApprovalKeys(keys)


def test_keys_show_their_ids_and_nothing_else() -> None:
    assert "ApprovalKeys(k2, k1)" == repr(ApprovalKeys({"k2": NEW, "k1": OLD}))
