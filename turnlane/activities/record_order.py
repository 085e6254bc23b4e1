"""The order in which a history is told: as it stands, but that injected inputs come between the steps of an answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from turnlane.records.lane import Taken
from turnlane.records.messages import MessageStatus, Role
from turnlane.store.payloads import HistoryMessage, HistoryStep


def in_order(
    history: Sequence[HistoryMessage], taken: Sequence[Taken], step: int
) -> Iterable[tuple[HistoryMessage, Sequence[HistoryStep] | None]]:
    """Yield the records as they are told: settled ones as they stand, with None.

    The run's own answer comes in pieces, each with the finished steps that it shows; an injected input stands
    before the step that took it.
    """
    draft_id = _live_draft(history)
    steps_taken = {item.input_id: item.step for item in taken} if draft_id is not None else {}
    injected = _injected_by_step(history, steps_taken, step)
    for item in history:
        if item.message.id == draft_id:
            yield from _draft_pieces(item, injected, step)
        elif item.message.id not in steps_taken:
            yield item, None


def _live_draft(history: Sequence[HistoryMessage]) -> str | None:
    """The id of the run's own assistant message: a conversation has one live run, so one live draft."""
    for item in reversed(history):
        if item.message.role is Role.ASSISTANT and item.message.status is MessageStatus.STREAMING:
            return item.message.id
    return None


def _injected_by_step(
    history: Sequence[HistoryMessage], steps_taken: dict[str, int], step: int
) -> dict[int, list[HistoryMessage]]:
    """The injected inputs by the step that took them; one taken later than `step` joins `step`."""
    injected: dict[int, list[HistoryMessage]] = defaultdict(list)
    by_id = {item.message.id: item for item in history} if steps_taken else {}
    for input_id, joined_at in steps_taken.items():
        if input_id in by_id:
            injected[min(joined_at, step)].append(by_id[input_id])
    return injected


def _draft_pieces(
    item: HistoryMessage, injected: dict[int, list[HistoryMessage]], step: int
) -> Iterable[tuple[HistoryMessage, Sequence[HistoryStep] | None]]:
    finished = {past.step: past for past in item.steps if past.step < step}
    pending: list[HistoryStep] = []
    for number in sorted(finished.keys() | injected.keys()):
        if number in injected:
            yield item, pending
            pending = []
            yield from ((record, None) for record in injected[number])
        if number in finished:
            pending.append(finished[number])
    yield item, pending
