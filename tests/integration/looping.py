"""An agent whose steps are said beforehand, one turn with it, and how that ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.conftest import Bench, Serve
from tests.integration.stage import BOUND
from turnlane.agent import Agent, tool
from turnlane.agent.models import Action, ScriptedModel
from turnlane.client import Result
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import TerminalReason

MARK = "xq7-never-to-be-seen-9"


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"


@tool(read_only=True)
def leap() -> str:
    """Leap."""
    return "leapt"


def scripted(*steps: Sequence[Action], **options: Any) -> Agent:
    """An agent whose model does this in its steps, and the last of it for ever."""
    model = ScriptedModel(script=lambda request: steps[min(request.step, len(steps) - 1)])
    options.setdefault("tools", [look, leap])
    return Agent(name="scripted", model=model, **options)


async def turn(bench: Bench, serve: Serve, conversation: str, agent: Agent, **options: Any) -> Result:
    """One turn of a conversation with an agent."""
    await serve(agent)
    ticket = await bench.client().submit(conversation, "hi", **options)
    return await ticket.result(BOUND)


async def requests(bench: Bench, conversation: str) -> int:
    """How many model calls the ledger tells of."""
    events = (await bench.store.read_events(conversation)).items
    return sum(event.kind == LedgerKind.PROVIDER_REQUEST for event in events)


def ended(result: Result) -> tuple[TerminalReason | None, str | None]:
    return result.reason, result.policy_name
