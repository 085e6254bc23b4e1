"""Choosing what to compact: whole turns, the oldest first, and never one that is still open.

Pure: the same history gives the same choice. System texts go with the turns that they stand before or in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple

from turnlane.agent.given import whole_number
from turnlane.agent.turns import group_turns, lapsed_questions
from turnlane.records.messages import FailedAssistant, Message, Role
from turnlane.records.runs import Run


class CompactableHistory(NamedTuple):
    """A history in two: what a summary may replace, and what stays as it was said.

    `leading_summary` is the one that an earlier compaction left at the very start; it is in neither list.
    `turns` counts the turns that are settled, those that are kept for being recent included.
    """

    leading_summary: Message | None
    compactable: tuple[Message, ...]
    retained: tuple[Message, ...]
    turns: int = 0


def select_compactable_history(
    messages: Sequence[Message],
    *,
    keep_recent_turns: int,
    runs: Iterable[Run] = (),
    failed_assistant: FailedAssistant = "omit",
    now: datetime | None = None,
) -> CompactableHistory:
    """Divide a history, as a `Snapshot` has it, for a compaction that keeps the last complete turns.

    The first turn that is open ends what may be compacted: one whose run is active, that has no answer, or
    whose answer has a call without a result. `keep_recent_turns` counts back from there; 0 keeps none. An
    answer that the model never hears (superseded, or failed unless it is told `marked`) leaves nothing open,
    nor does a question that nobody answered until it lapsed, if `now` is given.
    `compactable + retained` is everything but the leading summary, in order. Raises TypeError for a
    `keep_recent_turns` that is no integer, ValueError for one below 0.
    """
    whole_number("keep_recent_turns", keep_recent_turns)
    leading = messages[0] if messages and messages[0].role is Role.SUMMARY else None
    rest = messages[1:] if leading is not None else messages
    active = _messages_of_active(runs)
    turns = [turn for turn in group_turns(rest) if not turn.is_beside]
    lapsed = lapsed_questions(rest, now)
    settled = list(
        takewhile(lambda turn: turn.is_settled(failed_assistant, lapsed) and active.isdisjoint(turn.ids), turns)
    )
    old = settled[: max(len(settled) - keep_recent_turns, 0)]
    size = [message.id for message in rest].index(old[-1].ids[-1]) + 1 if old else 0
    return CompactableHistory(leading, tuple(rest[:size]), tuple(rest[size:]), len(settled))


def _messages_of_active(runs: Iterable[Run]) -> set[str]:
    active = (run for run in runs if run.state.is_active)
    return {name for run in active for name in (*run.input_message_ids, run.assistant_message_id)}
