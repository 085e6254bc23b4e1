"""Preparing a step: from the stored records to what the provider is asked.

A step is prepared by whichever worker makes it, from the store alone. In this order: the run's turn, prepared
once or loaded; the history; the budget; what the application overrides for this step; the tools on offer; the
check of what is really sent. What the application's own code does wrong here is `ApplicationFailedError` with
the code of the part that failed: never a provider's fault.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from turnlane.activities.attachments import Attachments, without_files
from turnlane.activities.beginnings import found_in
from turnlane.activities.budgeting import Budgeting, OversizedPromptError, Weighing, uncut
from turnlane.activities.catalog_step import CatalogStep, base_tools, offer_tools, surface_of
from turnlane.activities.clock import utc_now
from turnlane.activities.counting import Counting
from turnlane.activities.failing import ApplicationFailedError, persist
from turnlane.activities.hearing import hear
from turnlane.activities.kept_files import KeptFiles
from turnlane.activities.prompt_check import check_prompt
from turnlane.activities.providers.registry import Providers
from turnlane.activities.resolving import fallback_of, model_of, resolve_model, window_of
from turnlane.activities.seeding import Planting, to_plant
from turnlane.activities.step_overrides import Overridden, StepOverriding, instructions_of, spoken
from turnlane.activities.turn import compose_turn, plain_turn, recomposed
from turnlane.agent.agent import Agent
from turnlane.agent.context import ContextBudget
from turnlane.agent.models import Model
from turnlane.agent.prompt import ComposedPrompt
from turnlane.records.errors import StaleFenceError
from turnlane.records.messages import ControlReason
from turnlane.records.prompt import Prompt
from turnlane.records.steps import StepRequest
from turnlane.records.turns import ContextFigures, PreparedTurn, Seed
from turnlane.store.payloads import HistoryMessage, RunContext
from turnlane.store.protocol import Store

__all__ = ["ApplicationFailedError", "OversizedPromptError", "Preparation", "Prepared"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What one attempt of a step asks of which model.

    `run` is there where something depended on it. `turn` is to be stored before the provider is called, and
    `seed` planted then: both None where the store has what there is to have. `active` names the tools that may
    be called, where those are not all. `context` are the figures of the run's budget. `catalog` is what the step
    offers of its agent's catalog.
    """

    model: Model
    prompt: Prompt
    run: RunContext | None = None
    turn: PreparedTurn | None = None
    seed: Seed | None = None
    active: frozenset[str] | None = None
    context: ContextFigures | None = None
    catalog: CatalogStep | None = None


class Preparation:
    """Prepares attempts of steps."""

    def __init__(self, store: Store, agent: Agent, request: StepRequest, providers: Providers) -> None:
        self._store = store
        self._agent = agent
        self._request = request
        self._providers = providers
        self._counts: Counting | None = None
        kept = KeptFiles(store, request.fence.conversation_id, agent.limits.files.text_bytes)
        self._options = without_files(agent.history) if request.without_files else agent.history
        self._files = Attachments(self._options, None if request.without_files else kept)

    async def prepare(self) -> Prepared:
        """Load what the run may see and make the prompt of it. `request.fence` is that of the attempt."""
        run = await self._load_run()
        turn, composed = await self._turn(run)
        planting = await self._planting(composed)
        shown = planting.shown if planting is not None else []
        history = (*shown, *await self._load_history())
        prompt = await self._project(turn, history)
        is_new = composed is not None
        if composed is None and self._is_taken_over(turn):
            turn, composed, is_new = turn.model_copy(update={"context": None}), recomposed(turn), True
            prompt = await self._project(turn, history)
        if composed is not None and self._agent.budget is not None:
            turn, prompt = await self._weighed(turn, composed, history, prompt, len(shown))
        step = await self._override(run, turn, prompt, history)
        catalog = await offer_tools(self._agent, self._request.fence, run, turn, step.prompt)
        prompt = self._marked(step.prompt if catalog is None else catalog.in_prompt(step.prompt))
        self._check(prompt)
        return Prepared(
            model=step.model,
            prompt=prompt,
            run=run,
            turn=step.turn or (turn if is_new else None),
            seed=None if planting is None else planting.seed,
            active=step.active if catalog is None else None,
            context=turn.context,
            catalog=catalog,
        )

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
        if self._request.model and self._agent.fallbacks:
            return fallback_of(self._agent, self._request.model)
        return model_of(self._agent, turn)

    def _is_taken_over(self, turn: PreparedTurn) -> bool:
        """Whether the turn was weighed for another model than the fallback that speaks now."""
        return turn.context is not None and turn.weighed_for != self._request.model

    async def _load_run(self) -> RunContext | None:
        """The run, where something depends on it: what is prepared of it, attempts before this one."""
        fence = self._request.fence
        if not self._agent.reads_run and fence.attempt == 1:
            return None
        run = await persist(lambda: self._store.load_run_context(fence.conversation_id, fence.run_id))
        if run is None:
            raise StaleFenceError("the run is gone", reason=ControlReason.STALE_RUN.value)
        return run

    async def _turn(self, run: RunContext | None) -> tuple[PreparedTurn, ComposedPrompt | None]:
        """The turn, and what it was composed of if it was made just now."""
        if run is not None and run.prepared is not None:
            return run.prepared, None
        if run is None or not self._agent.prepares:
            return plain_turn(self._agent), None
        turn = PreparedTurn(model=await resolve_model(self._agent, run), surface=await surface_of(self._agent, run))
        counting = None if self._agent.budget is None else self._counting(self._agent.budget, turn)
        composed = await compose_turn(self._agent, run, None if counting is None else counting.text)
        return turn.model_copy(update={"instructions": composed.instructions}), composed

    async def _planting(self, composed: ComposedPrompt | None) -> Planting | None:
        texts = () if composed is None else composed.user_instructions
        return await to_plant(self._store, self._request.fence.conversation_id, texts, utc_now())

    # --- the history ------------------------------------------------------------------------------

    async def _load_history(self) -> tuple[HistoryMessage, ...]:
        fence = self._request.fence
        extra = [item.input_id for item in self._request.taken]
        return await persist(lambda: self._store.load_history(fence.conversation_id, fence.run_id, extra))

    async def _project(self, turn: PreparedTurn, history: Sequence[HistoryMessage]) -> Prompt:
        """The prompt: the turn's instructions first, then the system texts that the history carries."""
        prompt = await hear(
            uncut(turn, history),
            self._options,
            taken=self._request.taken,
            tools=base_tools(self._agent, turn),
            step=self._request.fence.step,
            now=utc_now(),
            files=self._files,
        )
        instructions = spoken(instructions_of(turn, self._request.fence.step))
        return prompt.model_copy(update={"system": (*instructions, *prompt.system)})

    # --- the budget -------------------------------------------------------------------------------

    def _counting(self, budget: ContextBudget, turn: PreparedTurn) -> Counting:
        self._counts = self._counts or Counting(budget, self._model(turn), self._providers)
        return self._counts

    async def _weighed(
        self,
        turn: PreparedTurn,
        composed: ComposedPrompt,
        history: Sequence[HistoryMessage],
        prompt: Prompt,
        planted: int,
    ) -> tuple[PreparedTurn, Prompt]:
        """The turn with its figures, and the prompt as it fits. Raises OversizedPromptError if none does."""
        budget = self._agent.budget or ContextBudget()
        budgeting = Budgeting(
            budget,
            self._model(turn),
            self._counting(budget, turn),
            window=window_of(self._agent, turn, self._request.model),
        )

        async def render(left_out: Collection[str]) -> Prompt:
            return await self._project(turn, [item for item in history if item.message.id not in left_out])

        weighing = Weighing(
            composed=composed,
            records=[item.message for item in history],
            prompt=prompt,
            planted=planted,
            own=len(spoken(instructions_of(turn, self._request.fence.step))),
            failed_assistant=self._agent.history.failed_assistant,
        )
        figures, prompt = await budgeting.decide(weighing, render)
        if not figures.may_be_sent:
            raise OversizedPromptError(figures)
        return turn.model_copy(update={"context": figures, "weighed_for": self._request.model}), prompt

    def _marked(self, prompt: Prompt) -> Prompt:
        """The prompt with the marks of the agent's cache."""
        cache = self._agent.cache
        if cache is None:
            return prompt
        options = cache.request_options(self._agent.name, self._request.fence.conversation_id)
        return prompt.model_copy(update={"tools": cache.marked_tools(prompt.tools), "options": options})

    # --- the check --------------------------------------------------------------------------------

    def _check(self, prompt: Prompt) -> None:
        sound = len(found_in(self._request.fence.conversation_id, prompt.messages).messages)
        faults = check_prompt(prompt, sound)
        if faults:
            run_id = self._request.fence.run_id
            logger.error("run %s: the prompt is not legal: %s", run_id, "; ".join(map(str, faults)))
            raise ApplicationFailedError("ILLEGAL_PROMPT", record_id=faults[0].record_id)
