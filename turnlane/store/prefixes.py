"""The prefix of a conversation: its archive as it would have been right behind an event of its ledger.

Records are kept as they are now, and the ledger says what happened since. A prefix in which every run has ended
can be had back from there: inputs and answers do not change any more, compactions are undone by leaving out their
summaries, and results that calls got later are taken away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from turnlane.records.approvals import ApprovalState
from turnlane.records.archives import (
    Archive,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedRun,
    ArchivedSegment,
    ArchivedSpill,
)
from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.errors import ConversationActiveError, RunNotFoundError
from turnlane.records.ledger import observed
from turnlane.records.messages import Role, ToolApprovalResponsePart
from turnlane.records.mutations import MutationKind
from turnlane.records.spending import Tally
from turnlane.store.archived import described_in, parts_of, transitions_of
from turnlane.store.exporting import archive_of
from turnlane.store.order import URGENT
from turnlane.store.spending import called_somebody, spent_without_run

_BLOB = re.compile(r"blob-[0-9a-f]{32}")

_DECIDED = frozenset({ApprovalState.APPROVED, ApprovalState.DENIED})

_BRINGING = (MutationKind.ACCEPT, MutationKind.COMPACT, MutationKind.SEED)


class _Told(NamedTuple):
    """What the events of a prefix say: which records there were, and which messages a summary stood for."""

    messages: frozenset[str]
    compacted: frozenset[str]
    runs: frozenset[str]
    ended: frozenset[str]
    model: str | None


def prefix_of(archive: Archive, through_run_id: str | None = None) -> Archive:
    """Return what the archive was when the run had just ended, or all of it; no run of it is active.

    Raises `RunNotFoundError` for a run that the archive does not have, and `ConversationActiveError` when a run
    had not ended there, the one that was named included.
    """
    seq = len(archive.events) if through_run_id is None else _end_of(archive, through_run_id)
    events = archive.events[:seq]
    told = _told(events)
    active = [run.run.id for run in archive.snapshot.runs if run.run.id in told.runs - told.ended]
    if active:
        raise ConversationActiveError("runs of the part to copy have not ended", run_ids=active)
    runs = tuple(_ended(run) for run in archive.snapshot.runs if run.run.id in told.runs)
    messages = tuple(_messages(archive, told, runs))
    positions = [message.position for message in messages if message.position < URGENT]
    snapshot = archive.snapshot.model_copy(
        update={
            "version": events[-1].version if events else 0,
            "model": told.model,
            "epoch": 0,
            "lane_seq": 0,
            "updated_at": events[-1].occurred_at if events else None,
            "last_order": max((run.run.admission_order for run in runs), default=0),
            "next_position": max(positions, default=0) + 1,
            "first_position": min(0, *positions) if positions else 0,
            "spent": _spent(runs, events),
            "inherited": None,
            "runs": runs,
            "messages": messages,
            "seeds": tuple(seed for seed in archive.snapshot.seeds if told.messages.issuperset(seed.message_ids)),
            "entries": (),
            "unchanged": (),
        }
    )
    return archive_of(snapshot, events=events, spills=_spills(archive, messages))


def _end_of(archive: Archive, run_id: str) -> int:
    """The seq of the event that ended a run, by itself or by absorption."""
    if all(archived.run.id != run_id for archived in archive.snapshot.runs):
        raise RunNotFoundError("the conversation has no such run", run_id=run_id)
    for event, effect in transitions_of(archive.events):
        if run_id in _ended_by(effect):
            return event.seq
    raise ConversationActiveError("the run has not ended", run_ids=[run_id])


def _ended_by(effect: JsonObject) -> list[str]:
    if effect.get("type") != "settle-run":
        return []
    absorbed = effect.get("absorbed")
    others = [each.get("run_id") for each in absorbed if isinstance(each, dict)] if isinstance(absorbed, list) else []
    return [str(name) for name in (effect.get("run_id"), *others)]


def _told(events: Sequence[ArchivedEvent]) -> _Told:
    messages, compacted, runs, ended = set[str](), set[str](), set[str](), set[str]()
    model: str | None = None
    for event, effect in transitions_of(events):
        kind = event.payload.get("type")
        if kind in _BRINGING:
            messages |= {str(described.get("id")) for described in described_in(effect)}
        if kind == MutationKind.ACCEPT:
            receipt = effect.get("receipt")
            runs.add(str(receipt.get("run_id")) if isinstance(receipt, dict) else "")
        elif kind == MutationKind.COMPACT:
            compacted |= set(_names(effect.get("message_ids")))
        elif kind == MutationKind.MODEL:
            chosen = effect.get("model")
            model = chosen if isinstance(chosen, str) else None
        ended |= set(_ended_by(effect))
    return _Told(frozenset(messages), frozenset(compacted), frozenset(runs), frozenset(ended), model)


def _names(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []


def _ended(archived: ArchivedRun) -> ArchivedRun:
    """An ended run without what only an attempt needs."""
    return archived.model_copy(update={"attempt_open": False, "checkpoint_seq": None, "prepared": None})


# --- messages -----------------------------------------------------------------------------------


def _messages(archive: Archive, told: _Told, runs: Iterable[ArchivedRun]) -> Iterable[ArchivedMessage]:
    kept = told.messages | {run.run.assistant_message_id for run in runs}
    messages = [message for message in archive.snapshot.messages if message.id in kept]
    answered = {
        part.approval_id
        for message in messages
        if message.role is Role.TOOL
        for part in parts_of(message)
        if isinstance(part, ToolApprovalResponsePart)
    }
    for message in messages:
        segments = tuple(_as_it_was(piece, answered) for piece in message.segments)
        yield message.model_copy(update={"compacted": message.id in told.compacted, "segments": segments})


def _as_it_was(piece: ArchivedSegment, answered: set[str]) -> ArchivedSegment:
    """A piece without a decision that came later, and without the result that came of it.

    No other result comes late: the end of a run closes what is open, but what waits for an approval.
    """
    came_later = piece.approval in _DECIDED and piece.approval_id not in answered
    open_again = {"approval": ApprovalState.PENDING, "parts": None, "started_at": None}
    return piece.model_copy(update=open_again) if came_later else piece


def _spills(archive: Archive, messages: Iterable[ArchivedMessage]) -> Iterable[ArchivedSpill]:
    """The large content that the messages refer to. Who else put it, and did not take it, is not of them."""
    named = {
        name
        for message in messages
        for part in parts_of(message)
        for name in _BLOB.findall(canonical_json(part.model_dump(mode="json")))
    }
    return (spill.model_copy(update={"uses": 1}) for spill in archive.spills if spill.reference in named)


# --- spend --------------------------------------------------------------------------------------


def _spent(runs: Iterable[ArchivedRun], events: Iterable[ArchivedEvent]) -> Tally:
    """What the prefix cost: each of its runs, and what was spent without one."""
    tally = Tally()
    for archived in runs:
        usage = archived.run.usage
        if usage is not None and called_somebody(usage, archived.fence_step):
            tally = tally.plus(usage)
    for event in events:
        usage = spent_without_run(*observed(event.kind, event.payload))
        if usage is not None:
            tally = tally.plus(usage)
    return tally
