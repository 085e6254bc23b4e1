"""The search of a catalog: what a query selects, within which limits, and the receipt that says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from turnlane.agent.answered import answered
from turnlane.agent.tool_context import ToolContext
from turnlane.agent.tool_ranking import ranked
from turnlane.agent.tools import Tool, tool
from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.catalog import CatalogEvidence, SelectionStatus, ToolMatch, ToolSelection
from turnlane.records.prompt import ToolSpec

INACTIVE_CALL: Literal["inactive_call"] = "inactive_call"

SEARCH_DESCRIPTION = (
    "Find tools that are not shown here, and make them available. The query is taken as a phrase first: an exact "
    "tool name wins, then names and descriptions that contain the phrase. If nothing has the phrase, tools are "
    "found by its words, those with most of them first. What is selected can be called from the next step on, "
    "and replaces what an earlier search selected."
)

Query = Annotated[
    str,
    Field(min_length=1, description="A tool's name, or words for what it should do: a phrase first, then its words."),
]
Reason = Annotated[
    Literal["inactive_call"] | None,
    Field(description="Set when a tool was called that is not available yet; the query is then its exact name."),
]
Look = Callable[[ToolContext, str, str | None], Awaitable[JsonObject]]


@dataclass(frozen=True, kw_only=True)
class SelectQuestion:
    """What a selector of an application's own sees."""

    query: str
    manifest: tuple[ToolSpec, ...]
    context: JsonObject | None
    run_id: str
    surface: str


Select = Callable[[SelectQuestion], Iterable[str] | Awaitable[Iterable[str]]]


class _Limits:
    """Limits are whole numbers above zero."""

    def __post_init__(self) -> None:
        for limit in fields(self):  # type: ignore[arg-type]
            value = getattr(self, limit.name)
            if limit.name.startswith("max_") and (type(value) is not int or value < 1):
                raise ValueError(f"{limit.name} is a whole number, at least 1")


@dataclass(frozen=True, kw_only=True)
class SearchTool(_Limits):
    """The search tool: its name, how long a query and an answer may be, and a ranking of the application's own.

    `select` returns names, best first; without it the built-in ranking finds them.
    """

    name: str = "tool_search"
    max_query_bytes: int = 1024
    max_results: int = 8
    max_result_bytes: int = 16 * 1024
    select: Select | None = None

    def as_tool(self, look: Look) -> Tool:
        """The tool that a model calls, which answers with what `look` finds."""

        async def search(ctx: ToolContext, query: Query, reason: Reason = None) -> JsonObject:
            return await look(ctx, query, reason)

        return tool(name=self.name, read_only=True, description=SEARCH_DESCRIPTION)(search)


@dataclass(frozen=True, kw_only=True)
class Activation(_Limits):
    """How many tools one search may select, how many a step may offer, and how large their schemas may be."""

    max_selected_tools: int = 8
    max_active_tools: int = 32
    max_schema_bytes: int = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The tools of one surface, in the order in which they were given."""

    key: str
    manifest: tuple[ToolSpec, ...]
    always_on: tuple[str, ...]
    search: ToolSpec

    @cached_property
    def by_name(self) -> dict[str, ToolSpec]:
        """The tools by name, without the search tool."""
        return {spec.name: spec for spec in self.manifest}

    @property
    def base(self) -> tuple[str, ...]:
        """What every step offers."""
        return (self.search.name, *self.always_on)

    def active(self, *more: Iterable[str]) -> tuple[str, ...]:
        """The base and more names, each once, in order."""
        return tuple(dict.fromkeys([*self.base, *(name for names in more for name in names)]))

    def spec(self, name: str) -> ToolSpec:
        """The tool of this name, or the search tool."""
        return self.search if name == self.search.name else self.by_name[name]

    @cached_property
    def _bytes(self) -> dict[str, int]:
        return {spec.name: schema_bytes(spec) for spec in (*self.manifest, self.search)}

    def bytes_of(self, names: Iterable[str]) -> int:
        """How large the schemas of these tools are together."""
        return sum(self._bytes[name] for name in names)

    def fits(self, names: Sequence[str], activation: Activation) -> bool:
        """Whether a step may offer these tools."""
        return len(names) <= activation.max_active_tools and self.bytes_of(names) <= activation.max_schema_bytes

    def check(self, search: SearchTool, activation: Activation) -> None:
        """Raise ValueError for a surface that cannot work with these limits."""
        if not self.manifest:
            raise ValueError(f"surface {self.key!r} has no tools")
        if len(self.by_name) < len(self.manifest) or search.name in self.by_name:
            raise ValueError(f"surface {self.key!r} has two tools of one name, the search tool counted")
        if len(set(self.always_on)) < len(self.always_on) or not self.by_name.keys() >= set(self.always_on):
            raise ValueError(f"always_on of surface {self.key!r} names tools of it, each once")
        if not self.fits(self.base, activation):
            raise ValueError(f"what is always on in surface {self.key!r} is over the limits of the activation")
        longest = _refused("x" * 256, self.key)
        if longest.size > search.max_result_bytes:
            raise ValueError(f"max_result_bytes is at least {longest.size}: the shortest answer must fit")


class Searched(NamedTuple):
    """What a search answers, and what is kept of it."""

    selection: ToolSelection
    evidence: CatalogEvidence


def schema_bytes(spec: ToolSpec) -> int:
    """How large a tool is for a model: UTF-8 bytes of its compact JSON."""
    entry = {"name": spec.name, "description": spec.description, "inputSchema": spec.parameters}
    return len(canonical_json(entry).encode())


async def run_search(
    shelf: Shelf, search: SearchTool, activation: Activation, ctx: ToolContext, query: str, reason: str | None
) -> Searched:
    """Search a surface. Raises what a selector of the application's own raises."""
    if len(query.encode()) > search.max_query_bytes:
        return _searched(shelf, _refused(ctx.run_id, shelf.key), rejected=0)
    proposed = [query] if reason == INACTIVE_CALL else await _proposed(shelf, search, ctx, query)
    known = list(dict.fromkeys(name for name in proposed if isinstance(name, str) and name in shelf.by_name))
    cut = tuple(known[: search.max_results])
    status = _status(shelf, activation, cut, reason)
    selection = _receipt(shelf, search, ctx.run_id, status, cut, truncated=len(cut) < len(known))
    return _searched(shelf, selection, rejected=len(proposed) - len(known))


async def _proposed(shelf: Shelf, search: SearchTool, ctx: ToolContext, query: str) -> list[str]:
    if search.select is None:
        return ranked(query, shelf.manifest)
    question = SelectQuestion(
        query=query, manifest=shelf.manifest, context=ctx.context, run_id=ctx.run_id, surface=shelf.key
    )
    names = await answered(search.select(question))
    if isinstance(names, str):
        raise TypeError("a selector returns names, not one name")
    return list(names)


def _status(shelf: Shelf, activation: Activation, cut: tuple[str, ...], reason: str | None) -> SelectionStatus:
    """What the names come to. Too many are refused as a whole: a part of them would be another choice."""
    if len(cut) > activation.max_selected_tools or not shelf.fits(shelf.active(cut), activation):
        return SelectionStatus.SELECTION_REFUSED
    if not cut:
        return SelectionStatus.NO_MATCH
    return SelectionStatus.SEARCH_REQUIRED if reason == INACTIVE_CALL else SelectionStatus.SELECTED


def _receipt(
    shelf: Shelf, search: SearchTool, run_id: str, status: SelectionStatus, cut: tuple[str, ...], *, truncated: bool
) -> ToolSelection:
    """The receipt, with as many matches as there is room for; one without room for its names is a refusal."""
    receipt = ToolSelection(
        status=status,
        run_id=run_id,
        surface_key=shelf.key,
        selected=cut if status.selects else (),
        truncated=truncated,
    )
    for name in cut:
        match = ToolMatch(name=name, description=shelf.by_name[name].description)
        longer = receipt.model_copy(update={"matches": (*receipt.matches, match)})
        if longer.size > search.max_result_bytes:
            receipt = receipt.model_copy(update={"truncated": True})
            break
        receipt = longer
    if receipt.size > search.max_result_bytes:
        return _refused(run_id, shelf.key, truncated=True)
    return receipt


def _refused(run_id: str, surface: str, *, truncated: bool = False) -> ToolSelection:
    return ToolSelection(
        status=SelectionStatus.SELECTION_REFUSED, run_id=run_id, surface_key=surface, truncated=truncated
    )


def _searched(shelf: Shelf, selection: ToolSelection, *, rejected: int) -> Searched:
    active = shelf.active(selection.selected)
    evidence = CatalogEvidence(
        type="search",
        run_id=selection.run_id,
        surface_key=shelf.key,
        catalog_tools=len(shelf.manifest),
        base_tools=len(shelf.base),
        selected_tools=len(selection.selected),
        active_tools=len(active),
        active_schema_bytes=shelf.bytes_of(active),
        rejected_names=rejected,
        replacement_tools=len(selection.selected),
        source="current",
    )
    return Searched(selection, evidence)
