"""The prepared turn: what a run is asked with, made once and the same for all its steps, retries and workers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from turnlane.records.base import Name, Payload, RecordId
from turnlane.records.messages import Message
from turnlane.records.prompt import PromptMessage, SystemText
from turnlane.records.tokens import TokenCount


class ContextDecision(StrEnum):
    """Whether a prompt fits its model's context. Only `fits` and `unavailable` go to the provider."""

    FITS = "fits"
    OVERSIZED = "oversized"
    REQUIRES_COMPACTION = "requires-compaction"
    UNAVAILABLE = "unavailable"


class HistoryCut(Payload):
    """Which of the older turns a run leaves out of its prompts: all that are complete, up to `last_id`.

    `kept` and `removed` count messages.
    """

    last_id: RecordId
    kept: int
    removed: int


class ContextFigures(Payload):
    """What the budget of a run came to, in tokens. `available_history` is signed: it may be negative.

    `history` is what is sent: after the cut, if there was one.
    """

    decision: ContextDecision
    context_window: int
    reserved_output: int
    instructions: TokenCount
    tool_schemas: TokenCount
    attachments: TokenCount
    provider_overhead: TokenCount
    user_instructions: TokenCount
    history: TokenCount
    available_history: int | None = None
    cut: HistoryCut | None = None


class StepOverride(Payload):
    """What an application changed when a step was prepared, for that step and those behind it.

    `messages` stand in place of the first `stands_for` messages that would have been sent.
    """

    step: int
    instructions: tuple[SystemText, ...] | None = None
    messages: tuple[PromptMessage, ...] | None = None
    stands_for: int = 0


class PreparedTurn(Payload):
    """What was prepared once for a run.

    `instructions` are its system texts, in order; `model` is the key of the model that was resolved for
    it, None for the agent's own; `context` are the figures of its budget, if it has one. `overrides` are what
    its steps changed, in their order.
    """

    instructions: tuple[SystemText, ...] = ()
    model: Name | None = None
    context: ContextFigures | None = None
    overrides: tuple[StepOverride, ...] = ()


class Seed(Payload):
    """Messages to stand in front of everything, planted once under a key."""

    seed_key: RecordId
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
