"""Preparing a step: what an application may change before each model call of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from turnlane.agent.models import Model
from turnlane.agent.stopping import StepResult
from turnlane.records.base import JsonObject
from turnlane.records.prompt import PromptMessage, SystemText


class ContextOverflowError(Exception):
    """Raised by a `prepare_step` for a conversation that does not fit: the run ends `context_overflow`."""


@dataclass(frozen=True, kw_only=True)
class StepInput:
    """A step before its model call.

    `steps` are the finished ones, `step_number` counts from 0. `messages` and `instructions` are what would be
    sent, `model` is who would be asked, `tools` names what would be on offer. `context_usage` is how many input
    tokens the provider reported for the step just finished, cached ones included: None before the first step,
    and where it reported nothing.
    """

    conversation_id: str
    run_id: str
    steps: tuple[StepResult, ...]
    step_number: int
    messages: tuple[PromptMessage, ...]
    instructions: tuple[SystemText, ...]
    model: Model
    tools: tuple[str, ...]
    context: JsonObject | None
    metadata: JsonObject | None
    tenant: str | None
    context_usage: int | None


@dataclass(frozen=True, kw_only=True)
class StepOverrides:
    """What a step changes; None leaves as it is.

    `model` and `active_tools` hold for this step alone. `instructions` and `messages` hold for the later steps of
    the run as well: behind `messages` stands what the run says and hears from this step on.
    """

    model: Model | None = None
    active_tools: Sequence[str] | None = None
    instructions: str | Sequence[str | SystemText] | None = None
    messages: Sequence[PromptMessage] | None = None


PrepareStep = Callable[[StepInput], StepOverrides | Awaitable[StepOverrides | None] | None]
