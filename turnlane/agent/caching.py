"""Prompt caching: what of a prompt a provider is asked to keep, so that the next call need not read it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from turnlane.agent.given import one_of
from turnlane.agent.prompt import Instructions, RenderedSection
from turnlane.records.base import JsonObject, derived_id
from turnlane.records.prompt import ProviderOptions, SystemText, ToolSpec

CacheTtl = Literal["5m", "1h"]
CacheKey = Literal["conversation", "agent"]

_OPENAI = ("openai", "openai-chat")


@dataclass(frozen=True, kw_only=True)
class PromptCache:
    """Marks for a provider's prompt cache; a provider that has no such mark is told nothing.

    Anthropic: a breakpoint behind the last stable section (`instructions`), behind the last tool (`tools`), and
    one that moves with the conversation (`conversation`), each for `ttl`. OpenAI: `key` sends one
    `prompt_cache_key` for each conversation, or one for the agent; None for servers that refuse the field.
    """

    instructions: bool = True
    tools: bool = True
    conversation: bool = True
    ttl: CacheTtl | None = None
    key: CacheKey | None = "conversation"

    def __post_init__(self) -> None:
        if self.ttl is not None:
            one_of("ttl", self.ttl, CacheTtl)
        if self.key is not None:
            one_of("key", self.key, CacheKey)

    def adapt(self, given: Instructions) -> tuple[SystemText, ...]:
        """Return the instructions with a breakpoint behind the last stable section. An `adapt_instructions`."""
        stable, rest = _parted(given.sections)
        if not self.instructions or not stable.strip():
            return (SystemText(text=given.text),)
        marked = SystemText(text=stable, options={"anthropic": self._mark()})
        return (marked, SystemText(text=rest)) if rest is not None else (marked,)

    def marked_tools(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return the tools with a breakpoint behind the last one."""
        if not self.tools or not tools:
            return tuple(tools)
        options = {**(tools[-1].options or {}), "anthropic": self._mark()}
        return (*tools[:-1], tools[-1].model_copy(update={"options": options}))

    def request_options(self, agent: str, conversation_id: str) -> ProviderOptions:
        """Return what goes with the request as a whole, by provider."""
        options: ProviderOptions = {}
        if self.conversation:
            options["anthropic"] = self._mark()
        if self.key is not None:
            # A digest: the field leaves the house, and the id of a conversation may say whose it is.
            name = derived_id("cache", agent, *((conversation_id,) if self.key == "conversation" else ()))
            options |= {provider: {"prompt_cache_key": name} for provider in _OPENAI}
        return options

    def _mark(self) -> JsonObject:
        return {"cache_control": {"type": "ephemeral", **({"ttl": self.ttl} if self.ttl is not None else {})}}


def _parted(sections: Sequence[RenderedSection]) -> tuple[str, str | None]:
    """The text up to the last stable section, and what follows it, if anything does."""
    stable = [place for place, section in enumerate(sections) if section.stability == "stable"]
    end = stable[-1] + 1 if stable else 0
    head = "\n\n".join(section.text for section in sections[:end])
    return head, "\n\n".join(section.text for section in sections[end:]) if end < len(sections) else None
