"""What of a lane's signals travels to its next history, and how the rest is divided."""

from __future__ import annotations

import pytest

from turnlane.records.admissions import Input
from turnlane.workflows.paging import page_of


def given(key: str, size: int) -> Input:
    """An input of `size` bytes of JSON."""
    bare = len(Input(key=key, text="x").model_dump_json().encode())
    return Input(key=key, text="x" * (size - bare + 1))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], ""), ([400], "a"), ([500, 500], "ab"), ([500, 501], "a"), ([1001, 200], ""), ([600, 600, 200], "a")],
)
def test_a_page_holds_the_first_inputs_that_fit_together(sizes: list[int], expected: str) -> None:
    inputs = [given(key, size) for key, size in zip("abc", sizes, strict=False)]

    assert list(expected) == [item.key for item in page_of(inputs, 1000)]
