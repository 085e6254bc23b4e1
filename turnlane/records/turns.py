"""The prepared turn: what a run is asked with, made once and the same for all its steps, retries and workers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from turnlane.records.base import JsonObject, Name, Payload, RecordId
from turnlane.records.messages import Message
from turnlane.records.prompt import PromptMessage, SystemText
from turnlane.records.tokens import UNKNOWN_COUNT, TokenCount


class ContextDecision(StrEnum):
    """Whether a prompt fits its model's context. Only `fits` and `unavailable` go to the provider."""

    FITS = "fits"
    OVERSIZED = "oversized"
    REQUIRES_COMPACTION = "requires-compaction"
    UNAVAILABLE = "unavailable"


class HistoryCut(Payload):
    """Which of the older turns a run leaves out of its prompts: all up to `last_id` but system texts and `spared`.

    `kept` and `removed` count messages. `spared` are the messages of turns that were open when the cut was made.
    """

    last_id: RecordId
    kept: int
    removed: int
    spared: tuple[RecordId, ...] = ()


class ContextFigures(Payload):
    """What the budget of a run came to, in tokens. `available_history` is signed: it may be negative.

    `history` is what is sent: after the cut, if there was one. Figures that nobody could give are unknown.
    """

    decision: ContextDecision
    context_window: int | None = None
    reserved_output: int | None = None
    instructions: TokenCount = UNKNOWN_COUNT
    user_instructions: TokenCount = UNKNOWN_COUNT
    tool_schemas: TokenCount = UNKNOWN_COUNT
    attachments: TokenCount = UNKNOWN_COUNT
    provider_overhead: TokenCount = UNKNOWN_COUNT
    history: TokenCount = UNKNOWN_COUNT
    available_history: int | None = None
    cut: HistoryCut | None = None

    @property
    def may_be_sent(self) -> bool:
        """Whether the call is made: a prompt of which too little is known is the provider's to judge."""
        return self.decision in (ContextDecision.FITS, ContextDecision.UNAVAILABLE)

    @property
    def evidence(self) -> JsonObject:
        """The figures for the ledger: numbers only, and null for what is unknown."""
        counts: JsonObject = {name: getattr(self, name).known for name in _COUNTS}
        sizes: JsonObject = {name: getattr(self, name) for name in _SIZES}
        cut: JsonObject = {} if self.cut is None else {"kept": self.cut.kept, "removed": self.cut.removed}
        return {"decision": self.decision.value, **sizes, **counts, **cut}


_SIZES = ("context_window", "reserved_output", "available_history")
_COUNTS = ("instructions", "user_instructions", "tool_schemas", "attachments", "provider_overhead", "history")


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
    its steps changed, in their order. `surface` is its set of tools, for an agent that has several. `weighed_for` is
    the fallback that the figures are for, 0 for the run's own model.
    """

    instructions: tuple[SystemText, ...] = ()
    model: Name | None = None
    context: ContextFigures | None = None
    overrides: tuple[StepOverride, ...] = ()
    surface: Name | None = None
    weighed_for: int = 0


class Seed(Payload):
    """Messages to stand in front of everything, planted once under a key."""

    seed_key: RecordId
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
