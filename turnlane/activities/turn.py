"""Making a run's turn: what its agent says before the conversation, put together once for the whole run."""

from __future__ import annotations

import inspect
import logging

from turnlane.activities.failing import ApplicationFailedError, place_of
from turnlane.activities.resolving import resolve_model
from turnlane.agent.agent import Agent, PromptContext
from turnlane.records.base import clean_text
from turnlane.records.prompt import SystemText
from turnlane.records.turns import PreparedTurn
from turnlane.store.protocol import RunContext

logger = logging.getLogger(__name__)


def plain_turn(agent: Agent) -> PreparedTurn:
    """Return the turn of an agent whose instructions are a constant: the same for every run, so never stored."""
    given = agent.instructions
    return PreparedTurn(instructions=(SystemText(text=given),) if isinstance(given, str) else ())


async def make_turn(agent: Agent, run: RunContext) -> PreparedTurn:
    """Make the turn of a run. Raises ApplicationFailedError for what the agent's functions do wrong."""
    model = await resolve_model(agent, run)
    return PreparedTurn(instructions=(SystemText(text=await _instructions(agent, run)),), model=model)


async def _instructions(agent: Agent, run: RunContext) -> str:
    given = agent.instructions
    if isinstance(given, str):
        return given
    context = PromptContext(run.run.conversation_id, run.run.id, run.context, run.metadata)
    try:
        text = given(context)
        return clean_text(await text if inspect.isawaitable(text) else text)
    except Exception as error:
        failed = "instructions of agent %s failed with %s at %s"
        logger.error(failed, agent.name, type(error).__name__, place_of(error))
        raise ApplicationFailedError("INSTRUCTIONS_FAILED") from None
