"""A catalog in a step: which tools it offers, and what becomes of a call of one that it does not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from turnlane.activities.asking import asked
from turnlane.activities.failing import ApplicationFailedError, failing_as
from turnlane.activities.providers.base import ProviderFailure, ToolCall
from turnlane.agent.active_tools import ActiveTools, CatalogOverflowError, activate, selection_of
from turnlane.agent.agent import Agent
from turnlane.agent.catalog import DeferredCatalog, PinQuestion, SurfaceQuestion
from turnlane.agent.tool_search import INACTIVE_CALL, Shelf
from turnlane.records.base import canonical_json
from turnlane.records.prompt import Prompt, ToolSpec
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import Fence
from turnlane.records.turns import PreparedTurn
from turnlane.store.payloads import RunContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeferredCalls:
    """What a step knows of its surface when calls come in: all names, those on offer, and the search."""

    search: str
    known: frozenset[str]
    active: frozenset[str]

    def rewritten(self, call: ToolCall) -> ToolCall:
        """The call, or a search for its tool under the same id if that is not on offer yet: then it was written
        without having seen the tool's parameters, and is made again with them."""
        if call.name not in self.known or call.name in self.active:
            return call
        query = {"query": call.name, "reason": INACTIVE_CALL}
        return ToolCall(call_id=call.call_id, name=self.search, arguments=canonical_json(query))


@dataclass(frozen=True)
class CatalogStep:
    """What a step offers of its catalog."""

    offer: ActiveTools
    calls: DeferredCalls

    def in_prompt(self, prompt: Prompt) -> Prompt:
        """The prompt with these tools, and no others."""
        return prompt.model_copy(update={"tools": self.offer.tools})


def base_tools(agent: Agent, turn: PreparedTurn) -> list[ToolSpec]:
    """The tools that every step of a run offers: the agent's own, or the base of its catalog."""
    if agent.catalog is None:
        return [tool.spec for tool in agent.tools]
    shelf = _shelf(agent.catalog, turn.surface)
    return [shelf.spec(name) for name in shelf.base]


async def surface_of(agent: Agent, run: RunContext) -> str | None:
    """The surface of a run, for an agent that has several. Raises ApplicationFailedError if there is none."""
    catalog = agent.catalog
    if catalog is None or catalog.select_surface is None:
        return None
    question = SurfaceQuestion(
        conversation_id=run.run.conversation_id,
        run_id=run.run.id,
        context=run.context,
        metadata=run.metadata,
        tenant=run.tenant,
    )
    select = catalog.select_surface
    with failing_as("SELECT_SURFACE_FAILED", "select_surface of agent %s", agent.name):
        key = await asked(lambda: select(question))
    _shelf(catalog, key)
    return key


async def offer_tools(
    agent: Agent, fence: Fence, run: RunContext | None, turn: PreparedTurn, prompt: Prompt
) -> CatalogStep | None:
    """What a step of a run offers; None for an agent without a catalog.

    Raises ProviderFailure of class `context_overflow` when that is over the limits, and ApplicationFailedError
    when the application's own code fails.
    """
    catalog = agent.catalog
    if catalog is None:
        return None
    shelf = _shelf(catalog, turn.surface)
    selection = selection_of(prompt.messages, shelf, fence.run_id, catalog.activation)
    pins = await _pins(agent, catalog, shelf, fence, run, prompt)
    try:
        offer = activate(shelf, catalog.activation, selection, pins, fence.run_id)
    except CatalogOverflowError as error:
        logger.error("run %s: %s", fence.run_id, error)
        raise ProviderFailure(Failure(failure_class=FailureClass.CONTEXT_OVERFLOW, code="CATALOG")) from None
    catalog.tell(offer.evidence)
    known = frozenset(shelf.by_name) | {shelf.search.name}
    return CatalogStep(offer, DeferredCalls(shelf.search.name, known, offer.names))


async def _pins(
    agent: Agent, catalog: DeferredCatalog, shelf: Shelf, fence: Fence, run: RunContext | None, prompt: Prompt
) -> Sequence[str]:
    pins = catalog.pins
    if pins is None or run is None:
        return ()
    question = PinQuestion(
        conversation_id=fence.conversation_id,
        run_id=fence.run_id,
        step=fence.step,
        surface=shelf.key,
        context=run.context,
        metadata=run.metadata,
        tenant=run.tenant,
        messages=prompt.messages,
    )
    with failing_as("PINS_FAILED", "pins of agent %s", agent.name):
        names = await asked(lambda: pins(question))
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ApplicationFailedError("PINS_FAILED")
    return tuple(names)


def _shelf(catalog: DeferredCatalog, surface: str | None) -> Shelf:
    try:
        return catalog.shelf(surface)
    except (KeyError, TypeError):
        raise ApplicationFailedError("UNKNOWN_SURFACE") from None
