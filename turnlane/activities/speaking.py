"""Speaking: what of a step's parts a provider may be sent again, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from turnlane.records.messages import Part, ProviderPart, ReasoningPart, TextPart, ToolCallPart
from turnlane.records.prompt import PromptPart


def spoken(parts: Sequence[Part]) -> list[Part]:
    """Return the parts of a step that are sent again.

    Text behind a call moves before the first one, because results must follow calls directly; reasoning
    stays before the call it led to. Reasoning that nothing follows was cut short: providers refuse it.
    """
    said: list[Part] = []
    first_call: int | None = None
    for part in parts:
        if not _is_sendable(part):
            continue
        if first_call is not None and isinstance(part, TextPart):
            said.insert(first_call, part)
            first_call += 1
            continue
        if first_call is None and isinstance(part, ToolCallPart):
            first_call = len(said)
        said.append(part)
    while said and isinstance(said[-1], ReasoningPart | ProviderPart):
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
