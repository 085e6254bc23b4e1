"""Turns: the messages of a history grouped by what belongs together, so that nothing cuts one in two.

A turn is what was asked and all that was answered to it: every input of a run, its answer, and the runs that
went on with it after an approval. User messages that a run did not own (seeded instructions) belong to the
first turn behind them. In the store's order the messages of a run stand together, so who speaks tells the turns
apart. A budget leaves out turns, and a compaction replaces them, by this one grouping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime

from turnlane.records.messages import (
    FailedAssistant,
    Message,
    MessageStatus,
    Role,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolResultPart,
    is_speakable,
)

BESIDE = (Role.SYSTEM, Role.SUMMARY)
"""Who says what stands beside the turns."""


@dataclass
class Turn:
    """Messages that stay together. A system text or a summary stands alone (`is_beside`)."""

    messages: list[Message] = field(default_factory=list)
    is_beside: bool = False

    @property
    def ids(self) -> list[str]:
        """The ids of its messages, in order."""
        return [message.id for message in self.messages]

    def is_settled(self, failed_assistant: FailedAssistant = "omit", lapsed: Set[str] = frozenset()) -> bool:
        """Whether it has an answer, all of it has ended, and no call of what is heard of it lacks its result.

        An answer that failed, or was superseded, ends its turn like any other; `lapsed` are approvals that can be
        answered no more: their calls lack nothing.
        """
        answers = [message for message in self.messages if message.role is Role.ASSISTANT]
        if not answers or any(message.status is MessageStatus.STREAMING for message in answers):
            return False
        heard = [answer for answer in answers if is_speakable(answer.status, failed_assistant)]
        return _open_calls(heard) <= self._lapsed_calls(lapsed)

    def _lapsed_calls(self, lapsed: Set[str]) -> set[str]:
        parts = (part for message in self.messages for part in message.parts)
        return {
            part.call_id for part in parts if isinstance(part, ToolApprovalRequestPart) and part.approval_id in lapsed
        }

    def is_complete(self, failed_assistant: FailedAssistant = "omit", lapsed: Set[str] = frozenset()) -> bool:
        """Whether it is settled, and somebody asked for it."""
        return self.messages[0].role is Role.USER and self.is_settled(failed_assistant, lapsed)

    def is_answered(self, failed_assistant: FailedAssistant = "omit", lapsed: Set[str] = frozenset()) -> bool:
        """Whether it is complete, and every answer of it is heard by the model."""
        answers = (message for message in self.messages if message.role is Role.ASSISTANT)
        return self.is_complete(failed_assistant, lapsed) and all(
            is_speakable(answer.status, failed_assistant) for answer in answers
        )


def group_turns(messages: Sequence[Message]) -> list[Turn]:
    """Return the turns of a history, in order. A system text between the messages of a turn does not end it."""
    turns: list[Turn] = []
    current: Turn | None = None
    is_answered = False
    for message in messages:
        if message.role in BESIDE:
            turns.append(Turn([message], is_beside=True))
            continue
        if current is None or (message.role is Role.USER and is_answered):
            current, is_answered = Turn(), False
            turns.append(current)
        current.messages.append(message)
        is_answered = is_answered or message.role is Role.ASSISTANT
    return turns


def lapsed_questions(messages: Iterable[Message], now: datetime | None) -> set[str]:
    """The approvals that nobody answered, anywhere in a history, until they lapsed: nothing will come of them."""
    parts = [part for message in messages for part in message.parts]
    answered = {part.approval_id for part in parts if isinstance(part, ToolApprovalResponsePart)}
    asked = (part for part in parts if isinstance(part, ToolApprovalRequestPart))
    due = {part.approval_id for part in asked if now and part.expires_at and part.expires_at <= now}
    return due - answered


def _open_calls(answers: Iterable[Message]) -> set[str]:
    """The calls that lack a result. An id may be used again once it is answered."""
    owed: Counter[str] = Counter()
    for part in (part for answer in answers for part in answer.parts):
        if isinstance(part, ToolCallPart):
            owed[part.call_id] += 1
        elif isinstance(part, ToolResultPart):
            owed[part.call_id] -= 1
    return {call_id for call_id, count in owed.items() if count > 0}
