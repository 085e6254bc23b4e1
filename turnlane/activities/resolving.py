"""Resolving models: whether an input may be admitted, and which model its run speaks with.

Nothing here opens a connection: what a model cannot do is found before anybody pays for asking it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from turnlane.activities.asking import asked
from turnlane.activities.failing import ApplicationFailedError, failing_as
from turnlane.activities.patience import Patience
from turnlane.activities.providers.base import ProviderFailure
from turnlane.agent.agent import Agent
from turnlane.agent.model_choice import ModelContext, ModelQuestion, Preflight, needed_by
from turnlane.agent.models import Model
from turnlane.records.admissions import Input
from turnlane.records.errors import ModelRefusedError, PreflightFailedError, TurnlaneError
from turnlane.records.messages import InputPart
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import PrepareAdmissions
from turnlane.records.turns import PreparedTurn
from turnlane.store.payloads import RunContext

logger = logging.getLogger(__name__)


async def preflight(
    agent: Agent, request: PrepareAdmissions, item: Input, parts: Sequence[InputPart], patience: Patience
) -> None:
    """Return if the input may be admitted, as far as models go. Raises `ModelRefusedError` where the model that
    would answer it cannot, and what the agent's own preflight raises, as a `TurnlaneError`."""
    if agent.models is not None and agent.resolve_model is None:
        key = request.model or agent.model_key
        agent.models.preflight(key or "", (*agent.required, *needed_by(parts)))
    if agent.preflight is not None:
        await _ask(agent, agent.preflight, request, item, patience)


async def _ask(agent: Agent, ask: Preflight, request: PrepareAdmissions, item: Input, patience: Patience) -> None:
    question = ModelQuestion(
        conversation_id=request.conversation_id,
        context=item.context,
        metadata=item.metadata,
        tenant=request.tenant or item.tenant,
        chosen=request.model,
    )
    try:
        await patience.ask(lambda: ask(question))
    except TurnlaneError:
        raise
    except Exception as error:
        logger.warning("the preflight of agent %s refused with %s", agent.name, type(error).__name__)
        raise PreflightFailedError("the agent's preflight refused the input") from None


async def resolve_model(agent: Agent, run: RunContext) -> str | None:
    """The key of the model that a run speaks with; None for an agent without a registry.

    Raises ApplicationFailedError when the agent's function fails, and for a model that cannot be used.
    """
    if agent.models is None:
        return None
    key = await _resolved(agent, run)
    try:
        agent.models.preflight(key, agent.required)
    except ModelRefusedError as error:
        reason = error.details.get("reason")
        logger.error("run %s: the model of agent %s cannot be used: %s", run.run.id, agent.name, reason)
        raise ApplicationFailedError(error.code) from None
    return key


def model_of(agent: Agent, turn: PreparedTurn) -> Model:
    """The model of a prepared turn. Raises ApplicationFailedError if the agent has none under its key any more."""
    try:
        return agent.model_under(turn.model)
    except ModelRefusedError as error:
        raise ApplicationFailedError(error.code) from None


def fallback_of(agent: Agent, number: int) -> Model:
    """The fallback of this number, from 1. Raises ProviderFailure for one by key that cannot be used: the next one
    takes over, or the run ends as with any model that there is not."""
    given = agent.fallbacks[min(number, len(agent.fallbacks)) - 1]
    if isinstance(given, Model):
        return given
    try:
        if agent.models is None:
            raise ModelRefusedError("the agent has no registry of models", key=given, reason="unknown-model")
        return agent.models.preflight(given, agent.required).model
    except ModelRefusedError as error:
        code = str(error.details.get("reason")).replace("-", "_")
        raise ProviderFailure(Failure(failure_class=FailureClass.MODEL_UNAVAILABLE, code=code)) from None


def window_of(agent: Agent, turn: PreparedTurn, number: int) -> int | None:
    """How many tokens the model takes that speaks: the turn's, or with a number that fallback. None if nobody says.

    What the budget says is about the agent's models; a fallback may take less than that.
    """
    told = agent.budget.context_window if agent.budget is not None else None
    if not number or not agent.fallbacks:
        described = agent.described(turn.model)
        return told if told is not None or described is None else described.context_window
    given = agent.fallbacks[min(number, len(agent.fallbacks)) - 1]
    key = given if isinstance(given, str) else agent.models.key_of(given) if agent.models is not None else None
    described = agent.described(key) if key is not None else None
    known = [size for size in (told, described.context_window if described else None) if size is not None]
    return min(known, default=None)


async def _resolved(agent: Agent, run: RunContext) -> str:
    resolve = agent.resolve_model
    if resolve is None:
        return run.model or agent.model_key or ""
    context = ModelContext(
        conversation_id=run.run.conversation_id,
        run_id=run.run.id,
        context=run.context,
        metadata=run.metadata,
        tenant=run.tenant,
        chosen=run.model,
    )
    with failing_as("RESOLVE_MODEL_FAILED", "resolve_model of agent %s", agent.name):
        return _key_of(agent, await asked(lambda: resolve(context)))


def _key_of(agent: Agent, answer: str | Model) -> str:
    key = answer if isinstance(answer, str) or agent.models is None else agent.models.key_of(answer)
    if not isinstance(key, str):
        raise TypeError("resolve_model names a key, or a model of the registry")
    return key
