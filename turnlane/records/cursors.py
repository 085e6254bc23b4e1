"""Cursors: where a watcher stands among the events of its conversations, and what it shows of a run.

Everything here is pure: a watcher that keeps its cursor (as JSON, if it likes) can go on after a
reconnect, is told each durable event once, and knows when it has missed something.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from pydantic import Field

from turnlane.records.base import Record, RecordId
from turnlane.records.events import (
    AssistantCheckpointEvent,
    AssistantDeltaEvent,
    AttemptResetEvent,
    DurableEvent,
    Event,
    ReasoningDeltaEvent,
    RunStateEvent,
    TerminalEvent,
    TransientEvent,
    is_durable,
)
from turnlane.records.messages import Message, ReasoningPart
from turnlane.records.runs import Version

REMEMBERED_ENDS = 64


class Verdict(StrEnum):
    """What an event is to a watcher: news, known already, or news with something missing before it."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    GAP = "gap"


class LivePlace(Record):
    """Where a watcher stands in the transient events of one live run.

    `sequences` has the last sequence of each epoch; what `withdrawn` epochs still say is old news.
    """

    sequences: dict[str, int] = Field(default_factory=dict)
    withdrawn: tuple[str, ...] = ()


class ConversationPlace(Record):
    """Where a watcher stands in one conversation.

    `event_ids` are the durable events seen at `version`. `runs` are the live ones; `ended` the runs that
    ended last, whose late transient events are old news.
    """

    version: Version | None = None
    event_ids: tuple[str, ...] = ()
    runs: dict[RecordId, LivePlace] = Field(default_factory=dict)
    ended: tuple[RecordId, ...] = ()


class Cursor(Record):
    """Where a watcher stands, in any number of conversations."""

    conversations: dict[RecordId, ConversationPlace] = Field(default_factory=dict)

    def place(self, conversation_id: str) -> ConversationPlace:
        """Where the watcher stands in a conversation; at its beginning, if it never heard of it."""
        return self.conversations.get(conversation_id, ConversationPlace())

    def resynced(self, conversation_id: str, version: int) -> Cursor:
        """Return the cursor after a snapshot at `version` was loaded; places in live runs are kept."""
        place = self.place(conversation_id).model_copy(update={"version": version, "event_ids": ()})
        return self._with(conversation_id, place)

    def _with(self, conversation_id: str, place: ConversationPlace) -> Cursor:
        return self.model_copy(update={"conversations": self.conversations | {conversation_id: place}})


def advance(cursor: Cursor, event: Event) -> tuple[Cursor, Verdict]:
    """Return the cursor behind `event`, and what the event is to its watcher.

    A durable event is never a gap, however far the version jumps: a watcher that needs each of them reads
    the ledger. A transient one is a gap unless it follows its epoch's last, from 1 on; the cursor moves
    behind it all the same, so that one loss is told once. A duplicate leaves the cursor as it was.
    """
    place = cursor.place(event.conversation_id)
    moved, verdict = _durable(place, event) if is_durable(event) else _transient(place, event)  # type: ignore[arg-type]
    if verdict is Verdict.DUPLICATE:
        return cursor, verdict
    return cursor._with(event.conversation_id, moved), verdict


def _durable(place: ConversationPlace, event: DurableEvent) -> tuple[ConversationPlace, Verdict]:
    version = event.snapshot_version
    seen = place.event_ids if version == place.version else ()
    if (place.version is not None and version < place.version) or event.event_id in seen:
        return place, Verdict.DUPLICATE
    moved = place.model_copy(update={"version": version, "event_ids": (*seen, event.event_id)})
    return (_ended(moved, event.run_id) if _ends(event) else moved), Verdict.ACCEPTED


def _ends(event: DurableEvent) -> bool:
    return isinstance(event, TerminalEvent) or (isinstance(event, RunStateEvent) and not event.state.is_active)


def _ended(place: ConversationPlace, run_id: str) -> ConversationPlace:
    live = {key: run for key, run in place.runs.items() if key != run_id}
    ended = (*(known for known in place.ended if known != run_id), run_id)[-REMEMBERED_ENDS:]
    return place.model_copy(update={"runs": live, "ended": ended})


def _transient(place: ConversationPlace, event: TransientEvent) -> tuple[ConversationPlace, Verdict]:
    run = place.runs.get(event.run_id, LivePlace())
    last = run.sequences.get(event.epoch, 0)
    if event.run_id in place.ended or event.epoch in run.withdrawn or event.sequence <= last:
        return place, Verdict.DUPLICATE
    moved = LivePlace(sequences=run.sequences | {event.epoch: event.sequence}, withdrawn=run.withdrawn)
    if isinstance(event, AttemptResetEvent):
        moved = _without(moved, event.withdrawn)
    verdict = Verdict.ACCEPTED if event.sequence == last + 1 else Verdict.GAP
    return place.model_copy(update={"runs": place.runs | {event.run_id: moved}}), verdict


def _without(run: LivePlace, epoch: str) -> LivePlace:
    left = {key: sequence for key, sequence in run.sequences.items() if key != epoch}
    return LivePlace(sequences=left, withdrawn=(*run.withdrawn, epoch))


@dataclass(frozen=True)
class Shown:
    """What a watcher shows of a run's answer."""

    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True)
class LiveText:
    """A run's answer as it grows before a watcher's eyes. Feed it accepted events only.

    `shown` is what to show now, `stored` what the store had at the last checkpoint, `starts` what was
    shown when each epoch began.
    """

    run_id: str
    shown: Shown = Shown()
    stored: Shown = Shown()
    starts: dict[str, Shown] = field(default_factory=dict)
    has_ended: bool = False


def follow(live: LiveText, event: Event) -> LiveText:
    """Return what a watcher shows after an event; unchanged for other runs and after the end.

    Deltas append, whatever they say: only cursors tell a repetition from a resend. A checkpoint is a
    barrier: it replaces all that was built up before it. An attempt-reset takes back what the withdrawn
    epoch said, whether or not a checkpoint has stored some of it. A checkpoint may also be of the message of an
    earlier run, which now has the results of calls that were approved since: that message is not this answer.
    """
    if event.run_id != live.run_id or live.has_ended:
        return live
    match event:
        case AssistantDeltaEvent():
            shown = replace(live.shown, text=live.shown.text + event.text_delta)
            return replace(_begun(live, event.epoch), shown=shown)
        case ReasoningDeltaEvent():
            shown = replace(live.shown, reasoning=live.shown.reasoning + event.text_delta)
            return replace(_begun(live, event.epoch), shown=shown)
        case AttemptResetEvent():
            return _withdrawn(live, event.withdrawn)
        case AssistantCheckpointEvent() if event.message.run_id in (None, live.run_id):
            return _checkpointed(live, event.message)
        case TerminalEvent():
            return replace(_checkpointed(live, event.message), has_ended=True)
        case _:
            return live


def _begun(live: LiveText, epoch: str) -> LiveText:
    return live if epoch in live.starts else replace(live, starts=live.starts | {epoch: live.shown})


def _checkpointed(live: LiveText, message: Message) -> LiveText:
    """Show what is stored. A draft shorter than an epoch's start was rewritten since: go no further back."""
    stored = _shown_of(message)
    starts = {epoch: _shorter(start, stored) for epoch, start in live.starts.items()}
    return replace(live, shown=stored, stored=stored, starts=starts)


def _withdrawn(live: LiveText, epoch: str) -> LiveText:
    """Go back to before the epoch, or to what is stored if this watcher never saw it begin."""
    left = {key: shown for key, shown in live.starts.items() if key != epoch}
    return replace(live, shown=live.starts.get(epoch, live.stored), starts=left)


def _shorter(one: Shown, two: Shown) -> Shown:
    return Shown(min(one.text, two.text, key=len), min(one.reasoning, two.reasoning, key=len))


def _shown_of(message: Message) -> Shown:
    reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    return Shown(message.text, reasoning)
