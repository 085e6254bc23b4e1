"""Catalogs of tools: what a search answers the model, and what the ledger keeps of searches and steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import ValidationError, model_validator

from turnlane.records.base import Count, Json, Name, Record, RecordId, canonical_json

SELECTION_KIND: Literal["turnlane.tool-selection"] = "turnlane.tool-selection"


class SelectionStatus(StrEnum):
    """What a search came to. `SEARCH_REQUIRED`: the tool was called before it was on offer, and is from now on."""

    SELECTED = "SELECTED"
    SEARCH_REQUIRED = "SEARCH_REQUIRED"
    NO_MATCH = "NO_MATCH"
    SELECTION_REFUSED = "SELECTION_REFUSED"

    @property
    def selects(self) -> bool:
        """Whether tools are on offer because of it."""
        return self in (SelectionStatus.SELECTED, SelectionStatus.SEARCH_REQUIRED)


class ToolMatch(Record):
    """A tool that a search found, for the model to read."""

    name: str
    description: str


class ToolSelection(Record):
    """The receipt of a search: the model reads it, and the next step takes from it which tools are on offer.

    `selected` replaces what an earlier search of the run selected; it is empty unless the status selects.
    `matches` tells what was found, as far as there was room: `truncated` says that something was left out.
    """

    schema_version: Literal[1] = 1
    kind: Literal["turnlane.tool-selection"] = SELECTION_KIND
    status: SelectionStatus
    run_id: RecordId
    surface_key: Name
    selected: tuple[str, ...] = ()
    matches: tuple[ToolMatch, ...] = ()
    truncated: bool = False

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ToolSelection:
        if bool(self.selected) is not self.status.selects:
            raise ValueError("tools are selected exactly under a status that selects")
        if len(set(self.selected)) != len(self.selected):
            raise ValueError("a tool is selected once")
        return self

    @property
    def size(self) -> int:
        """Bytes of its JSON."""
        return len(canonical_json(self.model_dump(mode="json")).encode())


def selection_in(output: Json) -> ToolSelection | None:
    """The receipt that a tool's output holds; None if it holds none, or one that does not agree with itself."""
    try:
        return ToolSelection.model_validate_json(canonical_json(output))
    except ValidationError:
        return None


SelectionSource = Literal["current", "durable", "catalog"]


class CatalogEvidence(Record):
    """Counts of one search, or of what one step offered. Never a query, and nothing of a run's context.

    `source` says where a step's selection comes from: the step directly before it (`current`), an earlier one
    (`durable`), or nowhere (`catalog`). `replacement_tools` counts the selected tools that an earlier selection
    of the run did not have; `rejected_names` what a selector proposed beyond known, distinct names.
    """

    schema_version: Literal[1] = 1
    type: Literal["search", "step"]
    run_id: RecordId
    surface_key: Name
    catalog_tools: Count
    base_tools: Count
    pinned_tools: Count = 0
    selected_tools: Count = 0
    active_tools: Count
    active_schema_bytes: Count
    rejected_names: Count = 0
    replacement_tools: Count = 0
    source: SelectionSource
