"""What an archive says, and whether it agrees with itself: all of it is checked before anything is written.

An archive comes from outside. Whatever is wrong with it is an `ArchiveInvalidError` that names the place and
quotes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from pydantic import ValidationError

from turnlane.records.admissions import Receipt
from turnlane.records.archives import Archive, ArchivedEvent, ArchivedMessage, ArchivedSegment, ArchivedSpill
from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.errors import ArchiveInvalidError
from turnlane.records.files import blob_id_of
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import Message, Part, Role
from turnlane.records.misfits import misfits
from turnlane.records.mutations import MutationKind
from turnlane.records.runs import RunState
from turnlane.store.content import CALL
from turnlane.store.delivery import NOTES
from turnlane.store.describe import describe_parts
from turnlane.store.work import KNOWN_KINDS

_FIELDS_TOLD = 8
_DIGEST_CHARACTERS = 128


def refuse(message: str, /, **where: Any) -> NoReturn:
    """Raise the error that an archive is refused with."""
    raise ArchiveInvalidError(message, **where)


def read_archive(data: bytes) -> Archive:
    """Return the archive that the bytes are, having checked it."""
    try:
        archive = Archive.model_validate_json(data)
    except ValidationError as error:
        refuse("the bytes are not an archive of this release", fields=misfits(error)[:_FIELDS_TOLD])
    check(archive)
    return archive


def check(archive: Archive) -> None:
    """Refuse an archive whose records are not one conversation's, or do not agree with each other."""
    if archive.snapshot.conversation_id != archive.conversation_id:
        refuse("the archive holds the records of another conversation")
    _check_ledger(archive)
    _check_runs(archive)
    _check_messages(archive)
    _check_admissions(archive)
    for spill in archive.spills:
        _check_spill(spill)
    _check_keys(archive)


def _check_unique(what: str, names: Iterable[Any]) -> None:
    known: set[Any] = set()
    for name in names:
        if name in known:
            refuse(f"the archive has two of one {what}", name=str(name))
        known.add(name)


def _check_keys(archive: Archive) -> None:
    """Refuse two of what a store has one of."""
    snapshot = archive.snapshot
    pieces = [piece for message in snapshot.messages for piece in message.segments]
    mutations = [event.mutation.seq for event in archive.events if event.mutation is not None]
    _check_unique("content", (spill.reference for spill in archive.spills))
    _check_unique("approval", (piece.approval_id for piece in pieces if piece.approval_id is not None))
    _check_unique("seed", (seed.seed_key for seed in snapshot.seeds))
    _check_unique("entry of a tool", ((entry.scope, entry.kind, entry.name) for entry in snapshot.entries))
    _check_unique("mutation", (*mutations, *(each.mutation_seq for each in snapshot.unchanged)))
    _check_unique("once-key", ((each.kind, each.once_key) for each in archive.events if each.once_key is not None))


# --- the ledger ---------------------------------------------------------------------------------


def _check_ledger(archive: Archive) -> None:
    events = archive.events
    messages = {message.id for message in archive.snapshot.messages}
    for seq, event in enumerate(events, 1):
        if event.conversation_id != archive.conversation_id:
            refuse("the archive holds an event of another conversation", seq=event.seq)
        if event.seq != seq:
            refuse("the ledger is not contiguous from 1", seq=event.seq, expected=seq)
        if event.kind not in KNOWN_KINDS and not event.ignorable:
            refuse(
                "the ledger has an event of a kind that this release must know and does not", seq=seq, kind=event.kind
            )
        _check_notes(event, messages)
    _check_unique("event id", (event.event_id for event in events))
    if any(after.version < before.version for before, after in pairwise(events)):
        refuse("the versions of the ledger go back")
    if archive.snapshot.version != (events[-1].version if events else 0):
        refuse("the records are not at the version at which the ledger ends", version=archive.snapshot.version)


def _check_notes(event: ArchivedEvent, messages: Collection[str]) -> None:
    """Refuse notes that watchers could not be told, and those that name a message that is not there."""
    try:
        notes = NOTES.validate_json(canonical_json(list(event.notes)))
    except ValidationError as error:
        refuse("an event's notes do not fit", seq=event.seq, fields=misfits(error)[:_FIELDS_TOLD])
    if any(note.message_id is not None and note.message_id not in messages for note in notes):
        refuse("an event's notes name a message that is missing", seq=event.seq)


def transitions_of(events: Iterable[ArchivedEvent], *kinds: MutationKind) -> Iterable[tuple[ArchivedEvent, JsonObject]]:
    """Yield the transitions among events, of some kinds only if any are named, each with its effect."""
    for event in events:
        effect = event.payload.get("effect")
        if event.kind != LedgerKind.TRANSITION or (kinds and event.payload.get("type") not in kinds):
            continue
        if not isinstance(effect, dict):
            refuse("a transition has no effect", seq=event.seq)
        yield event, effect


def receipts_of(archive: Archive) -> list[tuple[Receipt, int]]:
    """Return the receipts of all admissions, each with the version at which it was given."""
    return [
        (_receipt(event, effect), event.version)
        for event, effect in transitions_of(archive.events, MutationKind.ACCEPT)
    ]


def _receipt(event: ArchivedEvent, effect: JsonObject) -> Receipt:
    try:
        receipt = Receipt.model_validate_json(canonical_json(effect.get("receipt")))
    except ValidationError as error:
        refuse("an admission's receipt does not fit", seq=event.seq, fields=misfits(error)[:_FIELDS_TOLD])
    if len(receipt.content_digest) > _DIGEST_CHARACTERS:
        refuse("an admission's receipt does not fit", seq=event.seq, fields=["content_digest: too long"])
    return receipt


# --- the records --------------------------------------------------------------------------------


def _check_runs(archive: Archive) -> None:
    runs = [archived.run for archived in archive.snapshot.runs]
    foreign = next((run for run in runs if run.conversation_id != archive.conversation_id), None)
    if foreign is not None:
        refuse("the archive holds a run of another conversation", run_id=foreign.id)
    _check_unique("run", (run.id for run in runs))
    _check_unique("reserved answer", (run.assistant_message_id for run in runs))
    _check_unique("admission order", (run.admission_order for run in runs))
    _check_unique("input", (name for run in runs if run.absorbed_into_run_id is None for name in run.input_message_ids))
    if sum(run.state.is_live for run in runs) > 1:
        refuse("the archive has two live runs")


def _check_messages(archive: Archive) -> None:
    messages = {message.id: message for message in archive.snapshot.messages}
    _check_unique("message", (message.id for message in archive.snapshot.messages))
    _check_unique("place", ((message.position, message.place) for message in archive.snapshot.messages))
    runs = {archived.run.id: archived.run for archived in archive.snapshot.runs}
    for message in messages.values():
        _check_content(message)
        if message.run_id is not None and message.run_id not in runs:
            refuse("a message belongs to a run that the archive does not have", message_id=message.id)
    for run in runs.values():
        if any(name not in messages for name in run.input_message_ids):
            refuse("an input of a run is missing", run_id=run.id)
        answer = messages.get(run.assistant_message_id)
        if answer is not None and (answer.role, answer.run_id) != (Role.ASSISTANT, run.id):
            refuse("the id of an answer is another message's", run_id=run.id)
        has_answer = run.state is not RunState.QUEUED and run.absorbed_into_run_id is None
        if has_answer and answer is None:
            refuse("the answer of a run is missing", run_id=run.id)
        if run.absorbed_into_run_id is not None and run.absorbed_into_run_id not in runs:
            refuse("the run that absorbed another one is missing", run_id=run.id)


def _check_content(message: ArchivedMessage) -> None:
    _check_unique("piece of a message", ((message.id, piece.step, piece.slot) for piece in message.segments))
    if any(piece.parts is None and not _is_call(piece) for piece in message.segments):
        refuse("a piece of a message says nothing", message_id=message.id)
    try:
        Message(
            id=message.id,
            conversation_id="checked",
            run_id=message.run_id if message.role is Role.ASSISTANT else None,
            role=message.role,
            status=message.status,
            parts=parts_of(message),
            metadata=message.metadata,
            created_at=message.created_at,
            updated_at=message.updated_at,
        )
    except ValidationError as error:
        refuse("a message does not fit", message_id=message.id, fields=misfits(error)[:_FIELDS_TOLD])


def _is_call(piece: ArchivedSegment) -> bool:
    return piece.kind == CALL and piece.call_id is not None and piece.tool_name is not None


def parts_of(message: ArchivedMessage) -> tuple[Part, ...]:
    """All parts of a message, in order."""
    return tuple(part for piece in message.segments for part in piece.parts or ())


def _check_admissions(archive: Archive) -> None:
    """Refuse admissions that no run claims, and inputs, summaries and seeds that are not what the ledger says."""
    claimed = {name for archived in archive.snapshot.runs for name in archived.run.input_message_ids}
    runs = {archived.run.id for archived in archive.snapshot.runs}
    receipts = [receipt for receipt, _ in receipts_of(archive)]
    for receipt in receipts:
        named = receipt.conversation_id == archive.conversation_id and receipt.run_id in runs
        if not named or receipt.input_message_id not in claimed:
            refuse("an admission's input belongs to no run", input_message_id=receipt.input_message_id)
    _check_unique("idempotency key", (receipt.idempotency_key for receipt in receipts))
    admitted = {receipt.input_message_id for receipt in receipts}
    if claimed - admitted:
        refuse("an input was never admitted", input_message_id=min(claimed - admitted))
    messages = {message.id: message for message in archive.snapshot.messages}
    for event, effect in transitions_of(archive.events, *DESCRIBING):
        for described in described_in(effect):
            _check_described(event, described, messages.get(str(described.get("id"))))


DESCRIBING = (MutationKind.ACCEPT, MutationKind.COMPACT, MutationKind.SEED)
"""The transitions that bring a message, and say what is in it by digest and size."""


def described_in(effect: JsonObject) -> Sequence[JsonObject]:
    """The messages that a transition brought, as the ledger describes them."""
    several = effect.get("messages")
    found = (effect.get("message"), effect.get("summary"), *(several if isinstance(several, list) else ()))
    return [described for described in found if isinstance(described, dict)]


def _check_described(event: ArchivedEvent, described: JsonObject, message: ArchivedMessage | None) -> None:
    if message is None:
        refuse("a message that the ledger names is missing", seq=event.seq)
    if describe_parts(message.id, message.status, parts_of(message)) != described:
        refuse("a message is not what the ledger says of it", seq=event.seq, message_id=message.id)


def _check_spill(spill: ArchivedSpill) -> None:
    try:
        data = spill.data
    except ValueError:
        refuse("large content is not in base64", reference=spill.reference)
    whole = (len(data), hashlib.sha256(data).hexdigest()) == (spill.size, spill.sha256)
    if not whole or blob_id_of(data) != spill.reference:
        refuse("large content is not what its size and digest say", reference=spill.reference)
