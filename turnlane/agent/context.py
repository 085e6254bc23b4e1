"""The context budget: what of a model's window is taken, what is left for the history, and what that decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turnlane.agent.given import one_of, whole_number
from turnlane.agent.tokens import CountGiven, TokenCounter, as_count
from turnlane.records.tokens import UNKNOWN_COUNT, TokenCount, add_counts, computed_count
from turnlane.records.turns import ContextDecision

Oversize = Literal["compact", "refuse", "select"]
PromptOversize = Literal["compact", "refuse"]


@dataclass(frozen=True, kw_only=True)
class PromptBudget:
    """A window and what is taken of it, in tokens. Raises TypeError or ValueError for what is no whole number from 0.

    `history` is what the history comes to; `oversize` says whether one that is too long asks for a compaction.
    """

    context_window: int
    reserved_output: int
    tool_schemas: CountGiven = 0
    attachments: CountGiven = 0
    provider_overhead: CountGiven = 0
    history: TokenCount = UNKNOWN_COUNT
    oversize: PromptOversize = "compact"

    def __post_init__(self) -> None:
        whole_number("context_window", self.context_window)
        whole_number("reserved_output", self.reserved_output)
        one_of("oversize", self.oversize, PromptOversize)

    def available_history(self, instructions: TokenCount) -> int | None:
        """What is left for the history: signed, and None where a figure is unknown."""
        taken = add_counts([instructions, *self.taken])
        return None if taken.known is None else self.context_window - taken.known

    @property
    def taken(self) -> tuple[TokenCount, ...]:
        """What is taken beside the instructions: output, tool schemas, attachments, overhead."""
        given = (self.tool_schemas, self.attachments, self.provider_overhead)
        return (computed_count(self.reserved_output), *(as_count(figure) for figure in given))


def decide_context(available: int | None, history: TokenCount, *, compacts: bool) -> ContextDecision:
    """Decide whether a history fits what is left for it. A negative rest is too little for any history."""
    if available is None or history.known is None:
        return ContextDecision.UNAVAILABLE
    if available < 0:
        return ContextDecision.OVERSIZED
    if history.known <= available:
        return ContextDecision.FITS
    return ContextDecision.REQUIRES_COMPACTION if compacts else ContextDecision.OVERSIZED


@dataclass(frozen=True, kw_only=True)
class ContextBudget:
    """How much of a model's context an agent's prompts may take, and what happens to a history that is too long.

    Without `context_window` the model's descriptor says it; without `reserved_output`, the model's
    `max_output_tokens`. A figure that nobody gives is counted by `counter`; one that cannot be counted is
    unknown, and then nothing is decided and the call is made. `oversize`: `compact` and `refuse` end the run
    with `context_overflow` before any call (after a compaction, if the agent compacts); `select` leaves whole
    turns out, the oldest first, except the last `keep_recent_turns`. Raises TypeError or ValueError for
    figures that are no whole numbers from 0.
    """

    context_window: int | None = None
    reserved_output: int | None = None
    tool_schemas: CountGiven | None = None
    attachments: CountGiven | None = None
    provider_overhead: CountGiven = 0
    oversize: Oversize = "compact"
    keep_recent_turns: int = 1
    counter: TokenCounter | None = None

    def __post_init__(self) -> None:
        for name in ("context_window", "reserved_output"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        whole_number("keep_recent_turns", self.keep_recent_turns)
        one_of("oversize", self.oversize, Oversize)
        for figure in (self.tool_schemas, self.attachments, self.provider_overhead):
            if figure is not None:
                as_count(figure)
