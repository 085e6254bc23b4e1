"""Preparing a step: from the stored records to what the provider is asked.

A step is prepared by whichever worker makes it, from the store alone. In this order: the run's turn, prepared
once or loaded; the history; the budget; what the application overrides for this step; the tools on offer; the
check of what is really sent. What the application's own code does wrong here is `ApplicationFailedError` with
the code of the part that failed: never a provider's fault.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from turnlane.activities.failing import ApplicationFailedError, persist
from turnlane.activities.hearing import hear
from turnlane.activities.lane_work import utc_now
from turnlane.activities.prompt_check import check_prompt
from turnlane.activities.resolving import model_of
from turnlane.activities.step_overrides import Overridden, StepOverriding, instructions_of, spoken
from turnlane.activities.turn import make_turn, plain_turn
from turnlane.agent.agent import Agent
from turnlane.agent.models import Model
from turnlane.records.errors import StaleFenceError
from turnlane.records.messages import ControlReason
from turnlane.records.prompt import Prompt
from turnlane.records.steps import StepRequest
from turnlane.records.turns import PreparedTurn, Seed
from turnlane.store.protocol import HistoryMessage, RunContext, Store

__all__ = ["ApplicationFailedError", "Preparation", "Prepared"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What one attempt of a step asks of which model.

    `run` is there where something depended on it. `turn` is to be stored before the provider is called, and
    `seed` planted then: both None where the store has what there is to have. `active` names the tools that may
    be called, where those are not all.
    """

    model: Model
    prompt: Prompt
    run: RunContext | None = None
    turn: PreparedTurn | None = None
    seed: Seed | None = None
    active: frozenset[str] | None = None


class Preparation:
    """Prepares attempts of steps."""

    def __init__(self, store: Store, agent: Agent, request: StepRequest) -> None:
        self._store = store
        self._agent = agent
        self._request = request

    async def prepare(self) -> Prepared:
        """Load what the run may see and make the prompt of it. `request.fence` is that of the attempt."""
        run = await self._load_run()
        turn, is_new = await self._turn(run)
        history = await self._load_history()
        step = await self._override(run, turn, await self._project(turn, history), history)
        self._check(step.prompt)
        kept = step.turn or (turn if is_new else None)
        return Prepared(model=step.model, prompt=step.prompt, run=run, turn=kept, active=step.active)

    async def _override(
        self, run: RunContext | None, turn: PreparedTurn, prompt: Prompt, history: Sequence[HistoryMessage]
    ) -> Overridden:
        """The step as the application wants it, if it has a say."""
        if run is None or self._agent.prepare_step is None:
            return Overridden(model=self._model(turn), prompt=prompt)
        return await StepOverriding(self._agent, self._request, run, turn).apply(self._model(turn), prompt, history)

    # --- the run's turn ---------------------------------------------------------------------------

    def _model(self, turn: PreparedTurn) -> Model:
        """The model that speaks: the turn's, or the fallback that took the run over."""
        fallbacks = self._agent.fallbacks
        if self._request.model and fallbacks:
            return fallbacks[min(self._request.model, len(fallbacks)) - 1]
        return model_of(self._agent, turn)

    async def _load_run(self) -> RunContext | None:
        """The run, where something depends on it: what is prepared of it, attempts before this one."""
        fence = self._request.fence
        if not self._agent.prepares and fence.attempt == 1:
            return None
        run = await persist(lambda: self._store.load_run_context(fence.conversation_id, fence.run_id))
        if run is None:
            raise StaleFenceError("the run is gone", reason=ControlReason.STALE_RUN.value)
        return run

    async def _turn(self, run: RunContext | None) -> tuple[PreparedTurn, bool]:
        """The turn, and whether it was made just now."""
        if run is not None and run.prepared is not None:
            return run.prepared, False
        if run is None or not self._agent.prepares:
            return plain_turn(self._agent), False
        return await make_turn(self._agent, run), True

    # --- the history ------------------------------------------------------------------------------

    async def _load_history(self) -> tuple[HistoryMessage, ...]:
        fence = self._request.fence
        extra = [item.input_id for item in self._request.taken]
        return await persist(lambda: self._store.load_history(fence.conversation_id, fence.run_id, extra))

    async def _project(self, turn: PreparedTurn, history: Sequence[HistoryMessage]) -> Prompt:
        """The prompt: the turn's instructions first, then the system texts that the history carries."""
        prompt = await hear(
            history,
            self._agent.history,
            taken=self._request.taken,
            tools=[tool.spec for tool in self._agent.tools],
            step=self._request.fence.step,
            now=utc_now(),
        )
        instructions = spoken(instructions_of(turn, self._request.fence.step))
        return prompt.model_copy(update={"system": (*instructions, *prompt.system)})

    # --- the check --------------------------------------------------------------------------------

    def _check(self, prompt: Prompt) -> None:
        faults = check_prompt(prompt)
        if faults:
            run_id = self._request.fence.run_id
            logger.error("run %s: the prompt is not legal: %s", run_id, "; ".join(map(str, faults)))
            raise ApplicationFailedError("ILLEGAL_PROMPT", record_id=faults[0].record_id)
