"""Step overrides: what an application's `prepare_step` changes in a prompt, and what of it later steps keep.

An attempt of a step starts from what the steps before it changed, so an attempt that failed leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnlane.activities.asking import asked
from turnlane.activities.failing import failing_as
from turnlane.activities.providers.base import ProviderFailure
from turnlane.agent.agent import Agent
from turnlane.agent.models import Model
from turnlane.agent.step_input import ContextOverflowError, StepInput, StepOverrides
from turnlane.agent.stopping import StepResult
from turnlane.records.prompt import Prompt, PromptMessage, SystemText
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import StepRequest
from turnlane.records.turns import PreparedTurn, StepOverride
from turnlane.store.payloads import HistoryMessage, RunContext

PREPARE_STEP_FAILED = "PREPARE_STEP_FAILED"


@dataclass(frozen=True, kw_only=True)
class Overridden:
    """A step as it is sent. `turn` is set when it has to be stored, `active` where not all tools are on offer."""

    model: Model
    prompt: Prompt
    turn: PreparedTurn | None = None
    active: frozenset[str] | None = None


def instructions_of(turn: PreparedTurn, step: int) -> tuple[SystemText, ...]:
    """The instructions of a step: the turn's, or those that an earlier step put in their place."""
    found = [past.instructions for past in turn.overrides if past.step < step and past.instructions is not None]
    return found[-1] if found else turn.instructions


def carried(turn: PreparedTurn, step: int, prompt: Prompt) -> Prompt:
    """The prompt of a step with the messages that an earlier step put in place of older ones."""
    found = [past for past in turn.overrides if past.step < step and past.messages is not None]
    if not found or found[-1].messages is None:
        return prompt
    messages = (*found[-1].messages, *prompt.messages[found[-1].stands_for :])
    return prompt.model_copy(update={"messages": messages})


class StepOverriding:
    """Lets an agent's `prepare_step` have its say about one attempt of a step."""

    def __init__(self, agent: Agent, request: StepRequest, run: RunContext, turn: PreparedTurn) -> None:
        self._agent = agent
        self._request = request
        self._run = run
        self._turn = turn
        self._step = request.fence.step

    async def apply(self, model: Model, projected: Prompt, history: Sequence[HistoryMessage]) -> Overridden:
        """Return the step as the application wants it. `projected` is what would be sent if no step changed anything.

        Raises ApplicationFailedError when the application's code fails, or asks for what cannot be.
        """
        prompt = carried(self._turn, self._step, projected)
        step = self._input(model, prompt, history)
        agent = self._agent.name
        try:
            with failing_as(PREPARE_STEP_FAILED, "prepare_step of agent %s", agent, passing=(ContextOverflowError,)):
                given = _checked(await self._asked(step))
                return self._overridden(given, model, prompt, len(projected.messages))
        except ContextOverflowError:
            raise ProviderFailure(Failure(failure_class=FailureClass.CONTEXT_OVERFLOW, code="PREPARE_STEP")) from None

    def _input(self, model: Model, prompt: Prompt, history: Sequence[HistoryMessage]) -> StepInput:
        run = self._run.run
        return StepInput(
            conversation_id=run.conversation_id,
            run_id=run.id,
            steps=_finished(history, self._request),
            step_number=self._step,
            messages=prompt.messages,
            instructions=instructions_of(self._turn, self._step),
            model=model,
            tools=tuple(tool.name for tool in prompt.tools),
            context=self._run.context,
            metadata=self._run.metadata,
            tenant=self._run.tenant,
            context_usage=self._request.used_tokens,
        )

    async def _asked(self, step: StepInput) -> StepOverrides | None:
        prepare = self._agent.prepare_step
        return None if prepare is None else await asked(lambda: prepare(step))

    def _overridden(self, given: StepOverrides, model: Model, prompt: Prompt, projected: int) -> Overridden:
        made = StepOverride(
            step=self._step,
            instructions=None if given.instructions is None else _texts(given.instructions),
            messages=None if given.messages is None else _messages(given.messages),
            stands_for=projected,
        )
        old = instructions_of(self._turn, self._step)
        system = prompt.system if made.instructions is None else _replaced(prompt.system, old, made.instructions)
        sent = prompt.model_copy(
            update={"system": system, "messages": prompt.messages if made.messages is None else made.messages}
        )
        active = None if given.active_tools is None else _active(given.active_tools, prompt)
        if active is not None:
            sent = sent.model_copy(update={"tools": tuple(tool for tool in sent.tools if tool.name in active)})
        # A fallback took over because the models before it fail: nothing hands the step back to them.
        chosen = model if given.model is None or self._request.model > 0 else given.model
        return Overridden(model=chosen, prompt=sent, turn=self._kept(made), active=active)

    def _kept(self, made: StepOverride) -> PreparedTurn | None:
        """The turn with this step's overrides, or None if it is as it was."""
        before = [past for past in self._turn.overrides if past.step < self._step]
        is_new = made.instructions is not None or made.messages is not None
        if not is_new and len(before) == len(self._turn.overrides):
            return None
        overrides = (*_latest(before), *((made,) if is_new else ()))
        return self._turn.model_copy(update={"overrides": overrides})


def _latest(past: Sequence[StepOverride]) -> list[StepOverride]:
    """What later steps still need: the last instructions and the last messages, with what they were made with."""
    spoken = [each for each in past if each.instructions is not None][-1:]
    heard = [each for each in past if each.messages is not None][-1:]
    return sorted({each.step: each for each in (*spoken, *heard)}.values(), key=lambda each: each.step)


def _finished(history: Sequence[HistoryMessage], request: StepRequest) -> tuple[StepResult, ...]:
    own = next((item for item in history if item.message.id == request.assistant_message_id), None)
    past = own.steps if own is not None else ()
    return tuple(StepResult(each.step, each.parts, each.results) for each in past if each.step < request.fence.step)


def _checked(given: object) -> StepOverrides:
    if given is None:
        return StepOverrides()
    if not isinstance(given, StepOverrides):
        raise TypeError("prepare_step returns StepOverrides, or None")
    if given.model is not None and not isinstance(given.model, Model):
        raise TypeError("a model is a Model")
    return given


def _texts(given: str | Sequence[str | SystemText]) -> tuple[SystemText, ...]:
    texts = [given] if isinstance(given, str) else given
    return tuple(text if isinstance(text, SystemText) else SystemText(text=text) for text in texts)


def _messages(given: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
    if not all(isinstance(message, PromptMessage) for message in given):
        raise TypeError("messages are PromptMessages")
    return tuple(given)


def _active(given: Sequence[str], prompt: Prompt) -> frozenset[str]:
    active = frozenset([given] if isinstance(given, str) else given)
    if not active <= {tool.name for tool in prompt.tools}:
        raise ValueError("a tool that is not on offer cannot be active")
    return active


def spoken(texts: Sequence[SystemText]) -> tuple[str | SystemText, ...]:
    """System texts as a prompt has them: blank ones left out, one without options plain."""
    return tuple(given if given.options else given.text for given in texts if given.text.strip())


def _replaced(
    system: tuple[str | SystemText, ...], old: Sequence[SystemText], new: Sequence[SystemText]
) -> tuple[str | SystemText, ...]:
    """The system messages with other instructions; what the history carries stays behind them."""
    return (*spoken(new), *system[len(spoken(old)) :])
