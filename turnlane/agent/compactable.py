"""Choosing what to compact: whole turns, the oldest first, and never one that is still open.

Pure: the same history gives the same choice. A turn is a run: everything it was asked, its answer, and the
approvals that were given on the way. Messages that belong to no run are told apart by who speaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from turnlane.records.messages import (
    FailedAssistant,
    Message,
    MessageStatus,
    Role,
    ToolCallPart,
    ToolResultPart,
    is_speakable,
)
from turnlane.records.runs import Run


class CompactableHistory(NamedTuple):
    """A history in two: what a summary may replace, and what stays as it was said.

    `leading_summary` is the one that an earlier compaction left at the very start; it is in neither list.
    `turns` counts the turns that are complete, those that are kept for being recent included.
    """

    leading_summary: Message | None
    compactable: tuple[Message, ...]
    retained: tuple[Message, ...]
    turns: int = 0


@dataclass
class _Turn:
    messages: list[Message] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)
    is_answered: bool = False

    def takes(self, message: Message, run_id: str | None) -> bool:
        """Whether a message belongs to this turn: an approval goes with the call that it releases, and what
        precedes every turn (a seed, a system text) with the first."""
        if message.role is Role.TOOL or (run_id is not None and run_id in self.runs):
            return True
        if run_id is None and message.role is Role.ASSISTANT:
            return True
        return not (self.runs or self.is_answered)

    def add(self, message: Message, run_id: str | None) -> None:
        self.messages.append(message)
        self.is_answered |= message.role is Role.ASSISTANT
        if run_id is not None:
            self.runs.add(run_id)


def select_compactable_history(
    messages: Sequence[Message],
    *,
    keep_recent_turns: int,
    runs: Iterable[Run] = (),
    failed_assistant: FailedAssistant = "omit",
) -> CompactableHistory:
    """Divide a history, as a `Snapshot` has it, for a compaction that keeps the last complete turns.

    The first turn that is open ends what may be compacted: one whose run is active, that has no answer, or
    whose answer has a call without a result. `keep_recent_turns` counts back from there; 0 keeps none. An
    answer that the model never hears (superseded, or failed unless it is told `marked`) leaves nothing open.
    `compactable + retained` is everything but the leading summary, in order. Raises TypeError for a
    `keep_recent_turns` that is no integer, ValueError for one below 0.
    """
    _check(keep_recent_turns)
    leading = messages[0] if messages and messages[0].role is Role.SUMMARY else None
    rest = messages[1:] if leading is not None else messages
    known = tuple(runs)
    active = {run.id for run in known if run.state.is_active}
    turns = _turns(rest, _owners(known))
    complete = list(takewhile(lambda turn: _is_complete(turn, active, failed_assistant), turns))
    old = complete[: max(len(complete) - keep_recent_turns, 0)]
    size = sum(len(turn.messages) for turn in old)
    return CompactableHistory(leading, tuple(rest[:size]), tuple(rest[size:]), len(complete))


def _check(keep_recent_turns: object) -> None:
    if not isinstance(keep_recent_turns, int) or isinstance(keep_recent_turns, bool):
        raise TypeError("keep_recent_turns is an integer")
    if keep_recent_turns < 0:
        raise ValueError("keep_recent_turns is at least 0")


def _owners(runs: Sequence[Run]) -> dict[str, str]:
    """The run of each input and answer; an input that was absorbed belongs to the first run that lists it."""
    owners: dict[str, str] = {}
    for run in runs:
        for message_id in (*run.input_message_ids, run.assistant_message_id):
            owners.setdefault(message_id, run.id)
    return owners


def _turns(messages: Sequence[Message], owners: dict[str, str]) -> list[_Turn]:
    turns: list[_Turn] = []
    for message in messages:
        run_id = owners.get(message.id, message.run_id)
        if not turns or not turns[-1].takes(message, run_id):
            turns.append(_Turn())
        turns[-1].add(message, run_id)
    return turns


def _is_complete(turn: _Turn, active: set[str], failed_assistant: FailedAssistant) -> bool:
    if not turn.is_answered or turn.runs & active:
        return False
    if any(message.status is MessageStatus.STREAMING for message in turn.messages):
        return False
    heard = [message for message in turn.messages if is_speakable(message.status, failed_assistant)]
    return not _has_open_call(heard)


def _has_open_call(messages: Iterable[Message]) -> bool:
    owed: Counter[str] = Counter()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                owed[part.call_id] += 1
            elif isinstance(part, ToolResultPart):
                owed[part.call_id] -= 1
    return any(count > 0 for count in owed.values())
