"""Preparing a step: from the stored records to what the provider is asked.

A step is prepared anew by whichever worker makes it, from the store alone. What the application's own code
does wrong here is `ApplicationFailedError` with the code of the part that failed: never a provider's fault.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass

from turnlane.activities.failing import persist
from turnlane.activities.projection import project
from turnlane.activities.prompt_check import check_prompt
from turnlane.agent.agent import Agent, PromptContext
from turnlane.agent.models import Model
from turnlane.records.errors import StaleFenceError
from turnlane.records.messages import ControlReason
from turnlane.records.prompt import Prompt
from turnlane.records.steps import StepRequest
from turnlane.store.protocol import RunContext, Store

logger = logging.getLogger(__name__)


class ApplicationFailedError(Exception):
    """The application's own code failed while a step was prepared; `code` says which part of it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What one attempt of a step asks of which model. `run` is there where something depended on it."""

    model: Model
    prompt: Prompt
    run: RunContext | None


class Preparation:
    """Prepares attempts of steps."""

    def __init__(self, store: Store, agent: Agent, request: StepRequest) -> None:
        self._store = store
        self._agent = agent
        self._request = request

    async def prepare(self) -> Prepared:
        """Load what the run may see and make the prompt of it. `request.fence` is that of the attempt."""
        run = await self._load_run()
        return Prepared(model=self._agent.model, prompt=await self._prompt(run), run=run)

    async def _load_run(self) -> RunContext | None:
        """The run, where something depends on it: instructions that are made of it, attempts before this one."""
        fence = self._request.fence
        if isinstance(self._agent.instructions, str) and fence.attempt == 1:
            return None
        run = await persist(lambda: self._store.load_run_context(fence.conversation_id, fence.run_id))
        if run is None:
            raise StaleFenceError("the run is gone", reason=ControlReason.STALE_RUN.value)
        return run

    async def _prompt(self, run: RunContext | None) -> Prompt:
        extra = [item.input_id for item in self._request.taken]
        fence = self._request.fence
        history = await persist(lambda: self._store.load_history(fence.conversation_id, fence.run_id, extra))
        prompt = project(
            history,
            taken=self._request.taken,
            instructions=await self._instructions(run),
            tools=[tool.spec for tool in self._agent.tools],
            step=fence.step,
        )
        faults = check_prompt(prompt)
        if faults:
            logger.error("run %s: the projected prompt is not legal: %s", fence.run_id, "; ".join(faults))
            raise ApplicationFailedError("ILLEGAL_PROMPT")
        return prompt

    async def _instructions(self, run: RunContext | None) -> str:
        given = self._agent.instructions
        if isinstance(given, str):
            return given
        if run is None:
            raise AssertionError("instructions that are made of a run need one")
        fence = self._request.fence
        context = PromptContext(fence.conversation_id, fence.run_id, run.context, run.metadata)
        try:
            text = given(context)
            return await text if inspect.isawaitable(text) else text
        except Exception as error:
            logger.error("instructions of agent %s failed with %s", self._agent.name, type(error).__name__)
            raise ApplicationFailedError("INSTRUCTIONS_FAILED") from None
