"""Active tools: which tools of a catalog one step offers, from what its messages say was selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnlane.agent.tool_search import Activation, Shelf
from turnlane.records.catalog import CatalogEvidence, SelectionSource, ToolSelection, selection_in
from turnlane.records.messages import ToolOutcome, ToolResultPart
from turnlane.records.prompt import PromptMessage, Speaker, ToolSpec


class CatalogOverflowError(Exception):
    """What a step would offer is over the limits of its catalog, or names what is not there."""


@dataclass(frozen=True)
class Selection:
    """What the searches of a run selected: the names that hold, those before them, and where they stand."""

    names: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    source: SelectionSource = "catalog"


@dataclass(frozen=True)
class ActiveTools:
    """What a step offers, in order, and its counts for the ledger."""

    tools: tuple[ToolSpec, ...]
    evidence: CatalogEvidence

    @property
    def names(self) -> frozenset[str]:
        """The names on offer."""
        return frozenset(tool.name for tool in self.tools)


def selection_of(messages: Sequence[PromptMessage], shelf: Shelf, run_id: str, activation: Activation) -> Selection:
    """The selection that holds behind these messages.

    The last message of results with a valid receipt of this run and surface decides; several receipts in it add
    up, and one that selects nothing takes the earlier selection back. More tools than one search may select are
    as if the message was not there.
    """
    found = Selection()
    for message in messages:
        if message.speaker is Speaker.ASSISTANT and found.source == "current":
            found = Selection(found.names, found.before, "durable")
        receipts = _receipts(message, shelf, run_id)
        names = tuple(dict.fromkeys(name for receipt in receipts for name in receipt.selected))
        if receipts and len(names) <= activation.max_selected_tools:
            found = Selection(names, found.names, "current")
    return found


def _receipts(message: PromptMessage, shelf: Shelf, run_id: str) -> list[ToolSelection]:
    """The valid receipts among the results of a message."""
    if message.speaker is not Speaker.TOOL:
        return []
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    read = [selection_in(part.output) for part in results if _is_of_the_search(part, shelf)]
    return [receipt for receipt in read if receipt is not None and _is_valid(receipt, shelf, run_id)]


def _is_of_the_search(result: ToolResultPart, shelf: Shelf) -> bool:
    return result.tool_name == shelf.search.name and result.outcome is ToolOutcome.SUCCESS


def _is_valid(receipt: ToolSelection, shelf: Shelf, run_id: str) -> bool:
    here = (receipt.run_id, receipt.surface_key) == (run_id, shelf.key)
    return here and all(name in shelf.by_name for name in receipt.selected)


def activate(
    shelf: Shelf, activation: Activation, selection: Selection, pins: Sequence[str], run_id: str
) -> ActiveTools:
    """What a step offers: the search, what is always on, the pins and the selection, each once, in that order.

    Raises CatalogOverflowError for a pin that is unknown or there twice, and for more than the limits allow.
    """
    if len(set(pins)) < len(pins) or any(name not in shelf.by_name for name in pins):
        raise CatalogOverflowError("a pin names a tool of the surface, once")
    names = shelf.active(pins, selection.names)
    if not shelf.fits(names, activation):
        raise CatalogOverflowError("a step would offer more than the limits of the activation allow")
    evidence = CatalogEvidence(
        type="step",
        run_id=run_id,
        surface_key=shelf.key,
        catalog_tools=len(shelf.manifest),
        base_tools=len(shelf.base),
        pinned_tools=len(pins),
        selected_tools=len(selection.names),
        active_tools=len(names),
        active_schema_bytes=shelf.bytes_of(names),
        replacement_tools=len(set(selection.names) - set(selection.before)) if selection.before else 0,
        source=selection.source,
    )
    return ActiveTools(tuple(shelf.spec(name) for name in names), evidence)
