"""Speaking: what of a step's parts a provider may be sent again."""

from __future__ import annotations

from collections.abc import Sequence

from turnlane.records.messages import Part, ProviderPart, ReasoningPart, TextPart, ToolCallPart
from turnlane.records.prompt import PromptPart


def spoken(parts: Sequence[Part], *, is_paused: bool = False) -> list[Part]:
    """Return the parts of a step that are sent again, in the order in which they were said.

    Reasoning that nothing follows was cut short: providers refuse it. But a step in which its provider paused goes
    back as it is, for the provider to go on.
    """
    said = [part for part in parts if _is_sendable(part)]
    while said and not is_paused and isinstance(said[-1], ReasoningPart | ProviderPart):
        said.pop()
    return said


def _is_sendable(part: Part) -> bool:
    """Whether a provider may see the part: no blank text, and no reasoning without its provider's envelope."""
    if isinstance(part, TextPart):
        return not part.text.isspace() and part.text != ""
    if isinstance(part, ReasoningPart):
        return part.provider is not None
    return isinstance(part, ToolCallPart | ProviderPart)


def prompt_part(part: Part) -> PromptPart:
    """The part as a prompt has it.

    Opaque provider output travels as reasoning without text: an adapter sends its own back as it stands.
    """
    if isinstance(part, ProviderPart):
        return ReasoningPart(text="", provider=part.envelope)
    if isinstance(part, TextPart | ReasoningPart | ToolCallPart):
        return part
    raise AssertionError("only spoken parts stand in a prompt")
