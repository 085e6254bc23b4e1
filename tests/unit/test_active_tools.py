"""Active tools: which receipts hold, what they add up to, and what a step may offer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_tool_search import RUN, catalog
from turnlane.agent.active_tools import CatalogOverflowError, Selection, activate, selection_of
from turnlane.agent.tool_search import Activation, schema_bytes
from turnlane.records.base import Json, canonical_json
from turnlane.records.catalog import SelectionStatus, ToolSelection
from turnlane.records.messages import TextPart, ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.records.prompt import PromptMessage, Speaker

SHELF = catalog(always_on=["fourth"]).shelf(None)
LIMITS = Activation()


def receipt(*selected: str, **changes: Any) -> Json:
    """The output of a search that selected these."""
    status = SelectionStatus.SELECTED if selected else SelectionStatus.NO_MATCH
    facts = {"status": status, "run_id": RUN, "surface_key": "default", "selected": selected, **changes}
    return ToolSelection(**facts).model_dump(mode="json")


def results(*outputs: Json, tool: str = "tool_search", outcome: ToolOutcome = ToolOutcome.SUCCESS) -> PromptMessage:
    """A message of results."""
    parts = tuple(
        ToolResultPart(call_id=str(number), tool_name=tool, outcome=outcome, output=output)
        for number, output in enumerate(outputs)
    )
    return PromptMessage(speaker=Speaker.TOOL, parts=parts)


ASKS = PromptMessage(
    speaker=Speaker.ASSISTANT, parts=(ToolCallPart(call_id="0", tool_name="tool_search", input={"query": "x"}),)
)
SAYS = PromptMessage(speaker=Speaker.USER, parts=(TextPart(text="go on"),))


def selected(*messages: PromptMessage, activation: Activation = LIMITS) -> Selection:
    return selection_of(messages, SHELF, RUN, activation)


def test_nothing_searched_selects_nothing() -> None:
    assert Selection() == selected(SAYS)


def test_receipts_of_one_message_add_up_in_order() -> None:
    chosen = selected(ASKS, results(receipt("other", "target"), receipt("third", "target")))

    assert ("other", "target", "third") == chosen.names


def test_a_later_message_replaces_an_earlier_one() -> None:
    chosen = selected(ASKS, results(receipt("target"), receipt("other")), ASKS, results(receipt("third")))

    assert (("third",), ("target", "other")) == (chosen.names, chosen.before)


@pytest.mark.parametrize("status", [SelectionStatus.NO_MATCH, SelectionStatus.SELECTION_REFUSED])
def test_a_later_search_that_selects_nothing_takes_the_selection_back(status: SelectionStatus) -> None:
    later = results(receipt(status=status))

    assert () == selected(ASKS, results(receipt("target")), ASKS, later).names


def test_a_receipt_stored_as_text_does_not_hold() -> None:
    assert () == selected(ASKS, results(canonical_json(receipt("target")))).names


@pytest.mark.parametrize(
    "message",
    [
        results(receipt("missing")),
        results(receipt("target", run_id="another")),
        results(receipt("target", surface_key="another")),
        results(receipt("target"), tool="other"),
        results(receipt("target"), outcome=ToolOutcome.ERROR),
        results("a text"),
        results({"selected": ["target"]}),
        results({**receipt("target"), "selected": ["target", "target"]}),  # type: ignore[dict-item]
        results({**receipt("target"), "status": "NO_MATCH"}),  # type: ignore[dict-item]
        results({**receipt("target"), "kind": "another"}),  # type: ignore[dict-item]
        results({**receipt("target"), "schema_version": 2}),  # type: ignore[dict-item]
    ],
    ids=[
        "unknown tool",
        "another run",
        "another surface",
        "another tool's result",
        "an error",
        "not an object",
        "half a receipt",
        "a name twice",
        "a status that selects nothing",
        "another kind",
        "another version",
    ],
)
def test_a_receipt_that_does_not_hold_leaves_the_selection_as_it_was(message: PromptMessage) -> None:
    assert ("third",) == selected(ASKS, results(receipt("third")), ASKS, message).names


def test_an_invalid_receipt_beside_a_valid_one_is_left_out() -> None:
    assert ("target",) == selected(ASKS, results(receipt("missing"), receipt("target"))).names


def test_a_message_that_selects_too_much_is_as_if_it_was_not_there() -> None:
    few = Activation(max_selected_tools=1)
    chosen = selected(
        ASKS, results(receipt("third")), ASKS, results(receipt("target"), receipt("other")), activation=few
    )

    assert ("third",) == chosen.names


@pytest.mark.parametrize(
    ("messages", "source"),
    [
        ([], "catalog"),
        ([ASKS, results(receipt("target"))], "current"),
        ([ASKS, results(receipt("target")), SAYS], "current"),
        ([ASKS, results(receipt("target")), ASKS, results("x", tool="other")], "durable"),
    ],
    ids=["never", "just now", "just now, and an input joined", "earlier"],
)
def test_a_selection_says_where_it_comes_from(messages: list[PromptMessage], source: str) -> None:
    assert source == selected(*messages).source


def test_a_step_offers_search_base_pins_and_selection_in_that_order() -> None:
    offer = activate(SHELF, LIMITS, Selection(("target", "fourth")), ["other", "target"], RUN)

    assert ["tool_search", "fourth", "other", "target"] == [tool.name for tool in offer.tools]


def test_counts_say_what_a_step_offers() -> None:
    chosen = Selection(("target", "third"), ("target",), "durable")
    evidence = activate(SHELF, LIMITS, chosen, ["other"], RUN).evidence
    size = sum(schema_bytes(SHELF.spec(name)) for name in ("tool_search", "fourth", "other", "target", "third"))

    assert ("step", 4, 2, 1, 2, 5, size, 0, 1, "durable") == (
        evidence.type,
        evidence.catalog_tools,
        evidence.base_tools,
        evidence.pinned_tools,
        evidence.selected_tools,
        evidence.active_tools,
        evidence.active_schema_bytes,
        evidence.rejected_names,
        evidence.replacement_tools,
        evidence.source,
    )


@pytest.mark.parametrize(
    ("pins", "activation"),
    [
        (["nobody"], LIMITS),
        (["tool_search"], LIMITS),
        (["other", "other"], LIMITS),
        (["other"], Activation(max_active_tools=2)),
        (["other"], Activation(max_schema_bytes=SHELF.bytes_of(SHELF.base) + 1)),
    ],
    ids=["unknown", "the search", "twice", "too many", "too large"],
)
def test_pins_that_do_not_fit_are_an_overflow(pins: list[str], activation: Activation) -> None:
    with pytest.raises(CatalogOverflowError):
        activate(SHELF, activation, Selection(), pins, RUN)


def test_a_pin_beside_a_selection_may_be_one_too_many() -> None:
    with pytest.raises(CatalogOverflowError):
        activate(SHELF, Activation(max_active_tools=3), Selection(("target",)), ["other"], RUN)
