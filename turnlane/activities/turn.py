"""Making a run's turn: what its agent says before the conversation, put together once for the whole run."""

from __future__ import annotations

from turnlane.activities.asking import asked
from turnlane.activities.failing import failing_as
from turnlane.agent.agent import Agent, PromptContext
from turnlane.agent.prompt import (
    ComposedPrompt,
    Estimate,
    Instructions,
    PromptSection,
    SectionContext,
    compose_prompt,
)
from turnlane.records.base import clean_text
from turnlane.records.prompt import SystemText
from turnlane.records.turns import ContextDecision, ContextFigures, PreparedTurn
from turnlane.store.payloads import RunContext


def plain_turn(agent: Agent) -> PreparedTurn:
    """Return the turn of an agent whose instructions are a constant: the same for every run, so never stored."""
    text = agent.instructions if isinstance(agent.instructions, str) else ""
    if agent.cache is None or not text.strip():
        return PreparedTurn(instructions=(SystemText(text=text),))
    return PreparedTurn(instructions=agent.cache.adapt(Instructions.constant(text)))


async def compose_turn(agent: Agent, run: RunContext, estimate: Estimate | None) -> ComposedPrompt:
    """Compose the prompt of a run. Raises ApplicationFailedError for what the agent's functions do wrong."""
    first = await _instructions(agent, run)
    sections = [PromptSection(name="instructions", render=first), *agent.prompt] if first.strip() else agent.prompt
    adapt = agent.adapt_instructions or (agent.cache.adapt if agent.cache is not None else None)
    with failing_as("PROMPT_FAILED", "the prompt of agent %s", agent.name):
        return await asked(lambda: compose_prompt(sections, _context(run), adapt_instructions=adapt, estimate=estimate))


def recomposed(turn: PreparedTurn) -> ComposedPrompt:
    """The prompt of a turn as it was composed, by the figures that were kept of it: enough to weigh it again. Its
    user instructions stand in the history by now."""
    figures = turn.context or ContextFigures(decision=ContextDecision.UNAVAILABLE)
    return ComposedPrompt(
        instructions=turn.instructions,
        sections=(),
        user_instructions=(),
        instruction_tokens=figures.instructions,
        user_instruction_tokens=figures.user_instructions,
        available_history_tokens=None,
        decision=ContextDecision.UNAVAILABLE,
    )


def _context(run: RunContext) -> SectionContext:
    return SectionContext(
        conversation_id=run.run.conversation_id,
        run_id=run.run.id,
        context=run.context,
        metadata=run.metadata,
        tenant=run.tenant,
        event="session.started" if run.run.admission_order == 1 else "turn.started",
    )


async def _instructions(agent: Agent, run: RunContext) -> str:
    given = agent.instructions
    if isinstance(given, str):
        return given
    context = PromptContext(run.run.conversation_id, run.run.id, run.context, run.metadata)
    with failing_as("INSTRUCTIONS_FAILED", "instructions of agent %s", agent.name):
        return clean_text(await asked(lambda: given(context)))
