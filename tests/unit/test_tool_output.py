"""The bound on a tool's output: what fits is left alone, what does not is cut where a reader loses least."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnlane.agent.tool_output import bounded_output


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_an_output_within_the_limit_is_left_alone(output: Any) -> None:
    size = len(json.dumps(output, ensure_ascii=False, separators=(",", ":")).encode())

    assert output == bounded_output(output, size)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=120), st.integers(60, 140))
def test_a_cut_output_fits_and_splits_no_character(text: str, limit: int) -> None:
    cut = bounded_output(text, limit)

    if cut == text:
        assert len(json.dumps(text, ensure_ascii=False).encode()) <= limit
        return
    assert isinstance(cut, dict)
    assert len(json.dumps(cut, ensure_ascii=False, separators=(",", ":")).encode()) <= limit
    assert text.startswith(str(cut["head"])) and text.endswith(str(cut["tail"]))
    assert {"truncated": True, "bytes": len(text.encode())} == {key: cut[key] for key in ("truncated", "bytes")}


def test_a_cut_output_keeps_as_much_as_fits() -> None:
    cut = bounded_output("é" * 10_000, 1000)

    assert isinstance(cut, dict)
    assert 980 <= len(json.dumps(cut, ensure_ascii=False, separators=(",", ":")).encode()) <= 1000


def test_a_limit_below_the_frame_leaves_the_frame() -> None:
    assert {"truncated": True, "bytes": 100, "head": "", "tail": ""} == bounded_output("x" * 100, 3)
