"""Selecting history for a budget: whole turns are left out, the oldest first, until the rest fits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from turnlane.agent.given import whole_number
from turnlane.agent.tokens import CountGiven, as_count
from turnlane.agent.turns import BESIDE, Turn, group_turns, lapsed_questions
from turnlane.records.messages import FailedAssistant, Message, Role, is_speakable
from turnlane.records.tokens import UNKNOWN_COUNT, TokenCount, add_counts


class SelectionOutcome(StrEnum):
    """What came of a selection. `oversized`: even what must stay is too much."""

    FITS = "fits"
    TRUNCATED = "truncated"
    OVERSIZED = "oversized"
    UNAVAILABLE = "unavailable"


class SelectionReason(StrEnum):
    """Why a message was kept or removed; the last two remove."""

    PROTECTED_SYSTEM = "protected-system"
    PROTECTED_INCOMPLETE_TURN = "protected-incomplete-turn"
    PROTECTED_RECENT_TURN = "protected-recent-turn"
    WITHIN_BUDGET = "within-budget"
    TOKEN_COUNT_UNAVAILABLE = "token-count-unavailable"  # noqa: S105 (no secret: tokens of a model)
    OLDEST_ELIGIBLE_TURN = "oldest-eligible-turn"
    UNSPEAKABLE = "unspeakable"


_REMOVES = frozenset({SelectionReason.OLDEST_ELIGIBLE_TURN, SelectionReason.UNSPEAKABLE})


@dataclass(frozen=True)
class SelectionDecision:
    """What became of one message, why, and its size."""

    message_id: str
    reason: SelectionReason
    tokens: TokenCount

    @property
    def is_kept(self) -> bool:
        """Whether the message stays."""
        return self.reason not in _REMOVES


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The messages that stay, in order; one decision for each that was given; the size of what stays."""

    messages: tuple[Message, ...]
    decisions: tuple[SelectionDecision, ...]
    total_tokens: TokenCount
    outcome: SelectionOutcome


EstimateMessage = Callable[[Message], CountGiven]


def select_history(
    messages: Sequence[Message],
    *,
    available_tokens: int,
    estimate_message: EstimateMessage,
    keep_recent_turns: int = 1,
    failed_assistant: FailedAssistant = "omit",
    now: datetime | None = None,
) -> Selection:
    """Leave out the oldest complete turns until the rest has at most `available_tokens`.

    Answers that no model hears are neither counted nor returned. System texts and summaries stay, turns that
    are not complete stay, and so does everything from the last `keep_recent_turns`th answered turn on; 0 protects
    none. A turn whose question for approval lapsed by `now` is complete: no answer will come. With a count that
    is unknown nothing but the unheard is left out. Raises TypeError or ValueError for
    numbers that are not whole and for estimates that are no counts.
    """
    whole_number("available_tokens", available_tokens)
    whole_number("keep_recent_turns", keep_recent_turns)
    spoken = [message for message in messages if _is_spoken(message, failed_assistant)]
    counts: dict[str, TokenCount] = {}
    for message in spoken:
        counts[message.id] = as_count(estimate_message(message))
        if counts[message.id].known is None:
            return _undecided(messages, spoken, counts)
    turns = group_turns(messages)
    reasons = _protected(turns, keep_recent_turns, failed_assistant, lapsed_questions(messages, now))
    evicted = _evicted(turns, reasons, counts, available_tokens)
    return _selection(messages, spoken, counts, reasons, evicted, available_tokens)


def cut_history(messages: Sequence[Message], last_id: str, spared: Collection[str] = ()) -> frozenset[str]:
    """Return the ids that a selection removed, given the last of them and those before it that stayed in open turns.

    What became of those turns since does not matter: a run leaves out the same messages at each of its steps.
    """
    ids = [message.id for message in messages]
    if last_id not in ids:
        # The message is gone (a compaction took it): what stood behind it was never cut.
        return frozenset()
    before = messages[: ids.index(last_id) + 1]
    return frozenset(each.id for each in before if each.role not in BESIDE and each.id not in spared)


def _is_spoken(message: Message, failed_assistant: FailedAssistant) -> bool:
    return message.role is not Role.ASSISTANT or is_speakable(message.status, failed_assistant)


def _protected(
    turns: Sequence[Turn], keep: int, failed_assistant: FailedAssistant, lapsed: Set[str]
) -> dict[str, SelectionReason]:
    """The messages that stay whatever it costs, and why."""
    answered = [
        place for place, turn in enumerate(turns) if not turn.is_beside and turn.is_answered(failed_assistant, lapsed)
    ]
    recent = answered[max(0, len(answered) - keep) :]
    recent_from = recent[0] if recent else len(turns)
    reasons: dict[str, SelectionReason] = {}
    for place, turn in enumerate(turns):
        reason = _protection(turn, place >= recent_from, turn.is_complete(failed_assistant, lapsed))
        if reason is not None:
            reasons |= {message.id: reason for message in turn.messages}
    return reasons


def _protection(turn: Turn, is_recent: bool, is_complete: bool) -> SelectionReason | None:
    if turn.is_beside:
        return SelectionReason.PROTECTED_SYSTEM
    if not is_complete:
        return SelectionReason.PROTECTED_INCOMPLETE_TURN
    return SelectionReason.PROTECTED_RECENT_TURN if is_recent else None


def _evicted(
    turns: Sequence[Turn], protected: Collection[str], counts: dict[str, TokenCount], available: int
) -> set[str]:
    """The ids of whole turns, oldest first, without which the rest fits, or else of all that may go."""
    total = sum(count.value or 0 for count in counts.values())
    evicted: set[str] = set()
    for turn in turns:
        if total <= available:
            break
        ids = [message.id for message in turn.messages if message.id in counts]
        if turn.messages[0].id not in protected:
            evicted.update(ids)
            total -= sum(counts[name].value or 0 for name in ids)
    return evicted


def _selection(
    messages: Sequence[Message],
    spoken: Sequence[Message],
    counts: dict[str, TokenCount],
    reasons: dict[str, SelectionReason],
    evicted: set[str],
    available: int,
) -> Selection:
    kept = tuple(message for message in spoken if message.id not in evicted)
    total = add_counts(counts[message.id] for message in kept)
    outcome = SelectionOutcome.TRUNCATED if evicted else SelectionOutcome.FITS
    if (total.value or 0) > available:
        outcome = SelectionOutcome.OVERSIZED

    def decided(message: Message) -> SelectionDecision:
        if message.id not in counts:
            return SelectionDecision(message.id, SelectionReason.UNSPEAKABLE, UNKNOWN_COUNT)
        left_out = message.id in evicted
        kept_for = reasons.get(message.id, SelectionReason.WITHIN_BUDGET)
        reason = SelectionReason.OLDEST_ELIGIBLE_TURN if left_out else kept_for
        return SelectionDecision(message.id, reason, counts[message.id])

    return Selection(
        messages=kept,
        decisions=tuple(decided(message) for message in messages),
        total_tokens=total,
        outcome=outcome,
    )


def _undecided(messages: Sequence[Message], spoken: Sequence[Message], counts: dict[str, TokenCount]) -> Selection:
    heard = {message.id for message in spoken}

    def decided(message: Message) -> SelectionDecision:
        if message.id not in heard:
            return SelectionDecision(message.id, SelectionReason.UNSPEAKABLE, UNKNOWN_COUNT)
        tokens = counts.get(message.id, UNKNOWN_COUNT)
        return SelectionDecision(message.id, SelectionReason.TOKEN_COUNT_UNAVAILABLE, tokens)

    return Selection(
        messages=tuple(spoken),
        decisions=tuple(decided(message) for message in messages),
        total_tokens=UNKNOWN_COUNT,
        outcome=SelectionOutcome.UNAVAILABLE,
    )
