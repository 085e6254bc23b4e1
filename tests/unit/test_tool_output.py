"""The bound on a tool's output: what fits is left alone, what does not is cut where a reader loses least."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlane.agent.tool_output import shown_output
from turnlane.records.files import blob_id_of, blob_reference


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_an_output_within_the_limit_is_left_alone(output: Any) -> None:
    size = len(json.dumps(output, ensure_ascii=False, separators=(",", ":")).encode())

    assert output == shown_output(output, size).output


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=240), st.integers(120, 260))
def test_a_cut_output_fits_and_splits_no_character(text: str, limit: int) -> None:
    cut = shown_output(text, limit).output

    if cut == text:
        assert len(json.dumps(text, ensure_ascii=False).encode()) <= limit
        return
    assert isinstance(cut, dict)
    assert len(json.dumps(cut, ensure_ascii=False, separators=(",", ":")).encode()) <= limit
    assert text.startswith(str(cut["head"])) and text.endswith(str(cut["tail"]))
    assert {"truncated": True, "bytes": len(text.encode())} == {key: cut[key] for key in ("truncated", "bytes")}


def test_a_cut_output_keeps_as_much_as_fits() -> None:
    cut = shown_output("é" * 10_000, 1000).output

    assert isinstance(cut, dict)
    assert 980 <= len(json.dumps(cut, ensure_ascii=False, separators=(",", ":")).encode()) <= 1000


def test_a_limit_below_the_frame_leaves_the_frame() -> None:
    shown = shown_output("x" * 100, 3)

    reference = blob_reference(blob_id_of(b"x" * 100))
    frame = {"truncated": True, "bytes": 100, "reference": reference, "head": "", "tail": ""}
    assert frame == shown.output


@pytest.mark.parametrize(
    ("output", "whole", "media_type"),
    [
        ("é" * 500, ("é" * 500).encode(), "text/plain"),
        (["é"] * 300, json.dumps(["é"] * 300, ensure_ascii=False, separators=(",", ":")).encode(), "application/json"),
    ],
)
def test_all_of_a_cut_output_is_to_be_kept_under_the_reference_in_it(
    output: Any, whole: bytes, media_type: str
) -> None:
    shown = shown_output(output, 1000)

    assert (whole, media_type) == (shown.spilled, shown.media_type)
    assert isinstance(shown.output, dict)
    assert blob_reference(blob_id_of(whole)) == shown.output["reference"]


def test_an_output_is_measured_in_bytes_and_not_in_characters() -> None:
    assert shown_output("é" * 499, 1000).spilled is None
    assert shown_output("é" * 500, 1000).spilled is not None
