"""Deferred catalogs: many tools, of which a model is shown few, and a search with which it finds the others.

    catalog = DeferredCatalog(tools=[*two_hundred_tools], always_on=["read_page"])
    agent = Agent(name="helper", model=model, catalog=catalog)

Every tool of the catalog can be executed; what is limited is what a step advertises: the search tool, the
tools that are always on, those that the application pins for the step, and those that the last search selected.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from turnlane.agent.tool_context import ToolContext
from turnlane.agent.tool_search import Activation, SearchTool, Shelf, run_search
from turnlane.agent.tools import Tool
from turnlane.records.base import JsonObject
from turnlane.records.catalog import CatalogEvidence
from turnlane.records.ledger import LedgerKind
from turnlane.records.limits import Limits
from turnlane.records.prompt import PromptMessage

logger = logging.getLogger(__name__)

DEFAULT_SURFACE = "default"


@dataclass(frozen=True, kw_only=True)
class SurfaceQuestion:
    """What decides on the surface of a run, once for all its steps."""

    conversation_id: str
    run_id: str
    context: JsonObject | None
    metadata: JsonObject | None
    tenant: str | None


@dataclass(frozen=True, kw_only=True)
class PinQuestion:
    """What decides which tools a step offers whatever was searched for. `messages` is what the model is sent."""

    conversation_id: str
    run_id: str
    step: int
    surface: str
    context: JsonObject | None
    metadata: JsonObject | None
    tenant: str | None
    messages: tuple[PromptMessage, ...]


SelectSurface = Callable[[SurfaceQuestion], str | Awaitable[str]]
Pins = Callable[[PinQuestion], Sequence[str] | Awaitable[Sequence[str]]]
Observe = Callable[[CatalogEvidence], None]


@dataclass(frozen=True, kw_only=True)
class Surface:
    """One set of tools that a run may have, and those of them that every step offers."""

    tools: Sequence[Tool]
    always_on: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class DeferredCatalog:
    """The tools of an agent, most of them out of the model's sight until it looks for them.

    Give `tools` and `always_on`, or several `surfaces` and `select_surface`, which names the one of a run.
    `pins` names more tools for a step. `observe` is told the counts of every search and step; what it raises is
    logged and ignored. Raises ValueError for a catalog that cannot work: without tools, with two of one name,
    a name in `always_on` that is unknown or there twice, or a base that is over the limits already.
    """

    tools: Sequence[Tool] = ()
    always_on: Sequence[str] = ()
    surfaces: Mapping[str, Surface] = field(default_factory=dict)
    select_surface: SelectSurface | None = None
    pins: Pins | None = None
    search: SearchTool = field(default_factory=SearchTool)
    activation: Activation = field(default_factory=Activation)
    observe: Observe | None = None

    def __post_init__(self) -> None:
        if bool(self.surfaces) is bool(self.tools or self.always_on):
            raise ValueError("a catalog has tools, or else surfaces that have them")
        if bool(self.surfaces) is not (self.select_surface is not None):
            raise ValueError("surfaces come with select_surface, which names the one of a run")
        by_name: dict[str, Tool] = {}
        for tool in self._listed():
            if by_name.setdefault(tool.name, tool) is not tool:
                raise ValueError(f"a catalog has two tools of the name {tool.name!r}")
        for shelf in self.shelves.values():
            shelf.check(self.search, self.activation)

    def _listed(self) -> list[Tool]:
        surfaces = self.surfaces.values() or [Surface(tools=self.tools)]
        return [tool for surface in surfaces for tool in surface.tools]

    @cached_property
    def shelves(self) -> dict[str, Shelf]:
        """The tools by surface, as a search sees them."""
        surfaces = self.surfaces or {DEFAULT_SURFACE: Surface(tools=self.tools, always_on=self.always_on)}
        return {
            key: Shelf(
                key=key,
                manifest=tuple(tool.spec for tool in surface.tools),
                always_on=tuple(surface.always_on),
                search=self.search_tool.spec,
            )
            for key, surface in surfaces.items()
        }

    def shelf(self, surface: str | None) -> Shelf:
        """The tools of a surface; None is the only one. Raises KeyError for one that is not there."""
        return self.shelves[DEFAULT_SURFACE if surface is None else surface]

    @cached_property
    def _by_name(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in (*self._listed(), self.search_tool)}

    @property
    def every_tool(self) -> tuple[Tool, ...]:
        """The tools of all surfaces, each once, and the search tool."""
        return tuple(self._by_name.values())

    def tool(self, name: str) -> Tool | None:
        """The tool of this name on any surface, or the search tool."""
        return self._by_name.get(name)

    @cached_property
    def search_tool(self) -> Tool:
        """The tool with which a model searches. It is called as any other, under the name that it was given."""

        async def look(ctx: ToolContext, query: str, reason: str | None) -> JsonObject:
            answer = await run_search(self.shelf(ctx.surface), self.search, self.activation, ctx, query, reason)
            ctx.note(LedgerKind.CATALOG_SEARCH, answer.evidence.model_dump(mode="json"))
            self.tell(answer.evidence)
            return answer.selection.model_dump(mode="json")

        return self.search.as_tool(look)

    def tell(self, evidence: CatalogEvidence) -> None:
        """Tell the observer, if there is one."""
        if self.observe is None:
            return
        try:
            self.observe(evidence)
        except Exception as error:
            logger.warning("the observer of a catalog failed with %s", type(error).__name__)


def check_catalog(catalog: DeferredCatalog, tools: Sequence[Tool], limits: Limits) -> None:
    """Raise ValueError for a catalog that does not go with the rest of its agent."""
    if tools:
        raise ValueError("an agent has tools or a catalog: put the tools into the catalog, always on if need be")
    if catalog.search.max_result_bytes > limits.tool_output_bytes:
        raise ValueError("max_result_bytes of the search is over the agent's tool_output_bytes")
