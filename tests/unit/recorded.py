"""Records as a conversation leaves them, by hand, and prompts in short. For the tests of what the model hears."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from turnlane.activities.projection import Decision, project_with_decisions
from turnlane.activities.prompt_check import check_prompt
from turnlane.agent import HistoryOptions
from turnlane.records.base import ProviderEnvelope
from turnlane.records.lane import Taken
from turnlane.records.messages import (
    Message,
    MessageStatus,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.prompt import Prompt, PromptFile, Speaker
from turnlane.store.payloads import HistoryMessage, HistoryStep

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SIGNED = ProviderEnvelope(provider="anthropic", data={"type": "thinking", "thinking": "hm", "signature": "s"})


def text(words: str) -> TextPart:
    return TextPart(text=words)


def call(call_id: str, tool_name: str = "look") -> ToolCallPart:
    return ToolCallPart(call_id=call_id, tool_name=tool_name, input={"q": call_id})


def result(call_id: str, outcome: ToolOutcome = ToolOutcome.SUCCESS, tool_name: str = "look") -> ToolResultPart:
    return ToolResultPart(call_id=call_id, tool_name=tool_name, outcome=outcome, output=f"found {call_id}")


def request(approval_id: str, call_id: str) -> ToolApprovalRequestPart:
    return ToolApprovalRequestPart(approval_id=approval_id, call_id=call_id)


def response(approval_id: str, *, approved: bool = True) -> ToolApprovalResponsePart:
    return ToolApprovalResponsePart(approval_id=approval_id, approved=approved)


def step(number: int, *parts: Part, results: Sequence[ToolResultPart] = ()) -> HistoryStep:
    return HistoryStep(step=number, parts=parts, results=tuple(results))


def record(
    message_id: str,
    role: Role,
    *parts: Part,
    status: MessageStatus = MessageStatus.COMMITTED,
    steps: Sequence[HistoryStep] = (),
    conversation_id: str = "c",
) -> HistoryMessage:
    message = Message(
        id=message_id,
        conversation_id=conversation_id,
        run_id="r" if role is Role.ASSISTANT else None,
        role=role,
        status=status,
        parts=parts,
        created_at=NOW,
        updated_at=NOW,
    )
    return HistoryMessage(message=message, steps=tuple(steps))


def user(message_id: str, words: str = "hi") -> HistoryMessage:
    return record(message_id, Role.USER, text(words))


def answer(
    message_id: str, *steps: HistoryStep, status: MessageStatus = MessageStatus.COMPLETED, control: Sequence[Part] = ()
) -> HistoryMessage:
    """An answer that a run of ours gave."""
    parts = [part for past in steps for part in (*past.parts, *past.results)]
    return record(message_id, Role.ASSISTANT, *parts, *control, status=status, steps=steps)


def imported(message_id: str, *parts: Part, status: MessageStatus = MessageStatus.COMPLETED) -> HistoryMessage:
    """An answer that came whole, from elsewhere."""
    return record(message_id, Role.ASSISTANT, *parts, status=status)


def draft(*steps: HistoryStep) -> HistoryMessage:
    return answer("draft", *steps, status=MessageStatus.STREAMING)


def projected(
    *history: HistoryMessage,
    taken: Sequence[Taken] = (),
    at: int = 0,
    instructions: str = "",
    options: HistoryOptions | None = None,
    now: datetime | None = None,
) -> tuple[Prompt, tuple[Decision, ...]]:
    """Project, and hold every projection of a test to the invariants."""
    prompt, decisions = project_with_decisions(
        history,
        taken=taken,
        instructions=instructions,
        tools=(),
        step=at,
        options=options or HistoryOptions(),
        now=now,
    )
    assert check_prompt(prompt) == []
    return prompt, decisions


def prompt_of(
    *history: HistoryMessage,
    taken: Sequence[Taken] = (),
    at: int = 0,
    instructions: str = "",
    options: HistoryOptions | None = None,
    now: datetime | None = None,
) -> Prompt:
    return projected(*history, taken=taken, at=at, instructions=instructions, options=options, now=now)[0]


def told(prompt: Prompt) -> list[tuple[str, list[str]]]:
    """A prompt in short: each speaker with texts, `?id` for calls and `!id` for results."""
    return [(message.speaker.value, [_short(part) for part in message.parts]) for message in prompt.messages]


def _short(part: object) -> str:
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, ReasoningPart):
        return f"~{part.text}"
    if isinstance(part, PromptFile):
        return part.url or part.file_id or part.data or ""
    assert isinstance(part, ToolCallPart | ToolResultPart)
    return f"{'?' if isinstance(part, ToolCallPart) else '!'}{part.call_id}"


def results_of(prompt: Prompt) -> dict[str, ToolResultPart]:
    """The results that a prompt tells, by call."""
    return {
        part.call_id: part
        for message in prompt.messages
        if message.speaker is Speaker.TOOL
        for part in message.parts
        if isinstance(part, ToolResultPart)
    }
