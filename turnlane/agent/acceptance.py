"""Acceptance: what an answer must have before its run may complete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from turnlane.records.base import JsonObject
from turnlane.records.messages import (
    FilePart,
    Part,
    ProviderPart,
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolResultPart,
)
from turnlane.records.runs import TerminalReason


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer, before its run ends for `reason` (success, policy_stop or provider_stop)."""

    conversation_id: str
    run_id: str
    reason: TerminalReason
    parts: tuple[Part, ...]
    context: JsonObject | None
    metadata: JsonObject | None

    @property
    def text(self) -> str:
        """What it says, without reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


Acceptance = Callable[[Answer], bool | Awaitable[bool]]


def require_output() -> Acceptance:
    """Accept an answer that says something: text that is not blank, a file, or output that only its provider reads.

    Of a run that a policy stopped, its tool calls count as well. Reasoning alone is no output.
    """
    return _has_output


def _has_output(answer: Answer) -> bool:
    stopped = answer.reason is TerminalReason.POLICY_STOP
    return any(_is_output(part, calls_count=stopped) for part in answer.parts)


def _is_output(part: Part, *, calls_count: bool) -> bool:
    if isinstance(part, TextPart):
        return bool(part.text.strip())
    return isinstance(part, FilePart | ProviderPart) or (
        calls_count and isinstance(part, ToolCallPart | ToolResultPart)
    )


def waits_for_approval(parts: Sequence[Part]) -> bool:
    """Whether an approval that this answer asks for is still open: it is not judged before that."""
    asked = {part.approval_id for part in parts if isinstance(part, ToolApprovalRequestPart)}
    answered = {part.approval_id for part in parts if isinstance(part, ToolApprovalResponsePart)}
    return bool(asked - answered)
