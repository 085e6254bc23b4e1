"""Prompt sections: what an agent says before the conversation, in named pieces, and what that comes to in tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from turnlane.agent.answered import answered
from turnlane.agent.context import PromptBudget, decide_context
from turnlane.agent.given import one_of
from turnlane.agent.tokens import CountGiven, as_count
from turnlane.records.base import JsonObject, clean_text
from turnlane.records.prompt import SystemText
from turnlane.records.tokens import UNKNOWN_COUNT, TokenCount, add_counts
from turnlane.records.turns import ContextDecision

PromptEvent = Literal["session.started", "turn.started"]
Stability = Literal["stable", "dynamic"]
SectionRole = Literal["system", "user"]


@dataclass(frozen=True, kw_only=True)
class SectionContext:
    """What a section is rendered for. `event` is `session.started` in the first run of a conversation.

    Raises ValueError for an event that there is not.
    """

    conversation_id: str = ""
    run_id: str = ""
    context: JsonObject | None = None
    metadata: JsonObject | None = None
    tenant: str | None = None
    event: PromptEvent = "turn.started"

    def __post_init__(self) -> None:
        one_of("event", self.event, PromptEvent)


Render = Callable[[SectionContext], str | Awaitable[str]]
Estimate = Callable[[str], CountGiven | Awaitable[CountGiven]]


@dataclass(frozen=True, kw_only=True)
class PromptSection:
    """A piece of the prompt.

    `stability` tells a cache what changes from turn to turn; nothing is reordered by it. A `user` section is
    said once in a conversation, as a user message in front of everything, and never rewritten. Raises
    ValueError for an empty name, an unknown stability or role.
    """

    name: str
    render: Render | str
    stability: Stability = "stable"
    role: SectionRole = "system"
    estimate_tokens: Estimate | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= 128:
            raise ValueError("a section's name has 1 to 128 characters")
        one_of("a section's stability", self.stability, Stability)
        one_of("a section's role", self.role, SectionRole)


@dataclass(frozen=True, kw_only=True)
class RenderedSection:
    """A section's text in this turn, and its size."""

    name: str
    stability: Stability
    role: SectionRole
    text: str
    tokens: TokenCount = UNKNOWN_COUNT


@dataclass(frozen=True)
class Instructions:
    """What `adapt_instructions` is given: the whole text, and the system sections that it was joined of."""

    text: str
    sections: tuple[RenderedSection, ...]

    @classmethod
    def constant(cls, text: str) -> Instructions:
        """Instructions that are one text, the same for every run."""
        return cls(text, (RenderedSection(name="instructions", stability="stable", role="system", text=text),))


Adapted = str | SystemText | Sequence[str | SystemText]
AdaptInstructions = Callable[[Instructions], Adapted | Awaitable[Adapted]]


@dataclass(frozen=True, kw_only=True)
class ComposedPrompt:
    """Sections put together: instructions for the system channel, texts for the user's, and what they leave free.

    `available_history_tokens` is signed, and None where a figure is unknown; `decision` follows from it.
    """

    instructions: tuple[SystemText, ...]
    sections: tuple[RenderedSection, ...]
    user_instructions: tuple[str, ...]
    instruction_tokens: TokenCount
    user_instruction_tokens: TokenCount
    available_history_tokens: int | None
    decision: ContextDecision
    budget: PromptBudget | None = None

    def weighed(self, budget: PromptBudget | None) -> ComposedPrompt:
        """Return the prompt under another budget, before any user instructions are reserved for."""
        free = None if budget is None else budget.available_history(self.instruction_tokens)
        return replace(self, budget=budget, available_history_tokens=free, decision=_decision(budget, free))

    def finalize_seed(self, inserted: bool) -> ComposedPrompt:
        """Return the prompt with the user instructions reserved for, if they were written in this turn."""
        if not inserted:
            return self
        seed = self.user_instruction_tokens.known
        free = self.available_history_tokens
        left = None if seed is None or free is None else free - seed
        return replace(self, available_history_tokens=left, decision=_decision(self.budget, left))


async def compose_prompt(
    sections: Sequence[PromptSection],
    context: SectionContext | None = None,
    *,
    adapt_instructions: AdaptInstructions | None = None,
    estimate: Estimate | None = None,
    budget: PromptBudget | None = None,
) -> ComposedPrompt:
    """Render sections one after the other, in order, and join those of the system by one blank line.

    `estimate` counts where a section does not count itself. What a section, an estimator or the adapter
    raises passes through; a text that is none, or a count that is none, is a TypeError.
    """
    given = context or SectionContext()
    rendered = tuple([await _rendered(section, given, estimate) for section in sections])
    system = tuple(section for section in rendered if section.role == "system")
    said = tuple(section for section in rendered if section.role == "user" and section.text.strip())
    tokens = add_counts(section.tokens for section in system)
    composed = ComposedPrompt(
        instructions=await _adapted(system, adapt_instructions),
        sections=rendered,
        user_instructions=tuple(section.text for section in said),
        instruction_tokens=tokens,
        user_instruction_tokens=add_counts(section.tokens for section in said),
        available_history_tokens=None,
        decision=ContextDecision.UNAVAILABLE,
    )
    return composed.weighed(budget)


def _decision(budget: PromptBudget | None, free: int | None) -> ContextDecision:
    if budget is None:
        return ContextDecision.UNAVAILABLE
    return decide_context(free, budget.history, compacts=budget.oversize == "compact")


async def _rendered(section: PromptSection, context: SectionContext, fallback: Estimate | None) -> RenderedSection:
    given = section.render if isinstance(section.render, str) else section.render(context)
    text = clean_text(await answered(given))
    return RenderedSection(
        name=section.name,
        stability=section.stability,
        role=section.role,
        text=text,
        tokens=await _counted(text, section.estimate_tokens or fallback),
    )


async def _counted(text: str, estimate: Estimate | None) -> TokenCount:
    if estimate is None:
        return UNKNOWN_COUNT
    return as_count(await answered(estimate(text)))


async def _adapted(system: tuple[RenderedSection, ...], adapt: AdaptInstructions | None) -> tuple[SystemText, ...]:
    text = "\n\n".join(section.text for section in system)
    if adapt is None:
        return (SystemText(text=text),)
    return _system_texts(await answered(adapt(Instructions(text, system))))


def _system_texts(adapted: Adapted) -> tuple[SystemText, ...]:
    """One text or several, each with its options or without."""
    listed = [adapted] if isinstance(adapted, str | SystemText) else list(adapted)
    return tuple(entry if isinstance(entry, SystemText) else SystemText(text=entry) for entry in listed)
