"""A prefix under a new identity: what a branch begins with.

Every id that turnlane made, or was given for a record, is another one in the copy, and every reference follows;
references stand under names that are known (`_reference`), so what merely looks alike is left alone. Nothing that
gives power is copied: owners, tokens, signatures, open questions, what tools recorded. Events that are not the
history itself (calls of providers, receipts, retries, approvals) become observations, which nobody acts on or
counts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from turnlane.records.admissions import parts_digest
from turnlane.records.approvals import ApprovalState, answer_key
from turnlane.records.archives import (
    Archive,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedRun,
    ArchivedSegment,
    ArchivedSnapshot,
)
from turnlane.records.base import JsonObject, canonical_json, derived_id
from turnlane.records.errors import BranchRefusedError
from turnlane.records.lane import ids_for_key
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import InputPart, Part, Role, ToolApprovalRequestPart, ToolApprovalResponsePart
from turnlane.records.mutations import MutationKind
from turnlane.records.runs import Failure, Operation
from turnlane.records.spending import Tally
from turnlane.store.archived import DESCRIBING, described_in, parts_of, receipts_of, refuse
from turnlane.store.describe import describe_parts
from turnlane.store.exporting import archive_of
from turnlane.store.open_calls import left_behind_result
from turnlane.store.work import KNOWN_KINDS

_SEALED = frozenset(
    {
        LedgerKind.INVOCATION_STARTED,
        LedgerKind.INVOCATION_FINISHED,
        LedgerKind.PROVIDER_PAYLOAD,
    }
)
"""Events of which a copy keeps a digest only: they are receipts of the source, or sealed for it."""

_RECEIPT = "invocation"
"""Under which name a receipt of the source stands in an event that says more."""

_INPUT: TypeAdapter[tuple[InputPart, ...]] = TypeAdapter(tuple[InputPart, ...])

_STRIPPED = frozenset({"owner_id", "fencing_token", "token"})

_LOOKS_MADE = re.compile(r"^[a-z]+-[0-9a-f]{24,}$")
_LOOKS_LIKE_REFERENCE = re.compile(r"(?:^|_|-)(?:id|ids|ref|refs|reference|references)$|(?:Id|Ids|Ref|Refs)$")


def copy_of(prefix: Archive, destination: str, now: datetime) -> Archive:
    """Return the prefix as another conversation, without any power that the source has.

    Raises `BranchRefusedError` when the application's own data, which is copied as it is, names a record of the source.
    """
    names = _Names(prefix, destination)
    snapshot = prefix.snapshot
    messages = tuple(_message(message, names) for message in snapshot.messages)
    content = {message.id: message for message in messages}
    copied = ArchivedSnapshot(
        conversation_id=destination,
        version=snapshot.version,
        agent=snapshot.agent,
        tenant=snapshot.tenant,
        model=snapshot.model,
        last_order=snapshot.last_order,
        next_position=snapshot.next_position,
        first_position=snapshot.first_position,
        spent=Tally(),
        inherited=snapshot.spent,
        created_at=now,
        updated_at=now,
        runs=tuple(_run(run, names) for run in snapshot.runs),
        messages=messages,
        seeds=tuple(
            seed.model_copy(update={"message_ids": tuple(map(names.message, seed.message_ids))})
            for seed in snapshot.seeds
        ),
    )
    return archive_of(copied, events=(_event(event, names, content) for event in prefix.events), spills=prefix.spills)


class _Names:
    """What the records of the source are called in the copy. The same record always gets the same new name."""

    def __init__(self, prefix: Archive, destination: str) -> None:
        snapshot = prefix.snapshot
        self.source, self.destination = prefix.conversation_id, destination
        self.runs = {run.run.id: self._new("run", run.run.id) for run in snapshot.runs}
        self.messages = {message.id: self._new("msg", message.id) for message in snapshot.messages}
        self.messages |= {
            name: self._new("msg", name)
            for name in (run.run.assistant_message_id for run in snapshot.runs)
            if name not in self.messages
        }
        self.approvals = {name: self._new("apr", name) for name in sorted(_approval_ids(snapshot.messages))}
        self.keys = {answer_key(old): answer_key(new) for old, new in self.approvals.items()}
        for receipt, _ in receipts_of(prefix):
            self._follow_key(receipt.idempotency_key)
        self._operations = {old[:200]: new[:200] for old, new in self.runs.items()}
        self._all = {self.source, *self.runs, *self.messages, *self.approvals}

    def _new(self, prefix: str, old: str) -> str:
        return derived_id(prefix, self.destination, old)

    def _follow_key(self, key: str) -> None:
        """Give records that follow from a key the names that follow from it in the copy: receipts stay short."""
        old = ids_for_key(self.source, key)
        new = ids_for_key(self.destination, self.keys.get(key, key))
        for names, each in ((self.messages, 0), (self.runs, 1), (self.messages, 2)):
            if old[each] in names:
                names[old[each]] = new[each]

    def run(self, old: str) -> str:
        """The new name of a run. One that is not of the part to copy has none: the records disagree."""
        return self.runs[old] if old in self.runs else refuse("a run that a record names is not there", run_id=old)

    def message(self, old: str) -> str:
        if old not in self.messages:
            refuse("a message that a record names is not there", message_id=old)
        return self.messages[old]

    def operation(self, operation_id: str) -> str:
        """An operation is named after its run."""
        for places in (3, 4):
            run, *rest = operation_id.rsplit(":", places)
            if run in self._operations:
                return ":".join((self._operations[run], *rest))
        return derived_id("op", self.destination, operation_id)

    def refuse_references(self, value: Any, **where: str) -> None:
        """Refuse opaque data that names a record of the source: nobody said that it does, so nobody can follow it."""
        for key, text in _strings(value):
            if text in self._all and (_LOOKS_MADE.match(text) or _LOOKS_LIKE_REFERENCE.search(key)):
                raise BranchRefusedError(
                    "the application's data names a record of the source", reason="opaque-reference", key=key, **where
                )


def _approval_ids(messages: Iterable[ArchivedMessage]) -> set[str]:
    pieces = [piece for message in messages for piece in message.segments]
    asked = {piece.approval_id for piece in pieces if piece.approval_id is not None}
    parts = (part for piece in pieces for part in piece.parts or ())
    return asked | {
        part.approval_id for part in parts if isinstance(part, ToolApprovalRequestPart | ToolApprovalResponsePart)
    }


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, with the name that it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)


# --- records ------------------------------------------------------------------------------------


def _run(archived: ArchivedRun, names: _Names) -> ArchivedRun:
    run = archived.run
    names.refuse_references(archived.context, run_id=run.id)
    absorber = run.absorbed_into_run_id
    copied = run.model_copy(
        update={
            "id": names.run(run.id),
            "conversation_id": names.destination,
            "input_message_ids": tuple(map(names.message, run.input_message_ids)),
            "assistant_message_id": names.message(run.assistant_message_id),
            "absorbed_into_run_id": None if absorber is None else names.run(absorber),
            "owner_id": None,
            "fencing_token": None,
            "failure": None if run.failure is None else _failure(run.failure, names),
            "last_operation": None if run.last_operation is None else _operation(run.last_operation, names),
        }
    )
    return archived.model_copy(update={"run": copied, "abort_reason": None, "fence_attempt": 0})


def _failure(failure: Failure, names: _Names) -> Failure:
    return failure.model_copy(update={"record_id": names.messages.get(failure.record_id or "")})


def _operation(operation: Operation, names: _Names) -> Operation:
    return operation.model_copy(update={"operation_id": names.operation(operation.operation_id)})


def _message(message: ArchivedMessage, names: _Names) -> ArchivedMessage:
    names.refuse_references(message.metadata, message_id=message.id)
    return message.model_copy(
        update={
            "id": names.message(message.id),
            "run_id": None if message.run_id is None else names.run(message.run_id),
            "segments": tuple(_segment(piece, names) for piece in message.segments),
        }
    )


def _segment(piece: ArchivedSegment, names: _Names) -> ArchivedSegment:
    """A piece with its ids in the copy. A call that waits for somebody there waits for nobody here."""
    changes: dict[str, Any] = {"approval_id": None if piece.approval_id is None else names.approvals[piece.approval_id]}
    if piece.parts is None:
        changes["parts"] = (left_behind_result(piece.call_id or "", piece.tool_name or ""),)
    else:
        changes["parts"] = tuple(_part(part, names) for part in piece.parts)
    if piece.approval is ApprovalState.PENDING:
        changes |= {"approval": ApprovalState.WITHDRAWN, "approval_expires_at": None}
    return piece.model_copy(update=changes)


def _part(part: Part, names: _Names) -> Part:
    if isinstance(part, ToolApprovalRequestPart):
        return part.model_copy(update={"approval_id": names.approvals[part.approval_id], "signature": None})
    if isinstance(part, ToolApprovalResponsePart):
        return part.model_copy(update={"approval_id": names.approvals[part.approval_id]})
    return part


# --- the ledger ---------------------------------------------------------------------------------


def _event(event: ArchivedEvent, names: _Names, content: Mapping[str, ArchivedMessage]) -> ArchivedEvent:
    if event.kind == LedgerKind.TRANSITION:
        kind, payload = event.kind, _transition(event, names, content)
    else:
        kind, payload = LedgerKind.BRANCH_OBSERVATION, _observation(event, names)
    return ArchivedEvent(
        event_id=derived_id("ev", names.destination, str(event.seq)),
        conversation_id=names.destination,
        seq=event.seq,
        version=event.version,
        kind=kind,
        occurred_at=event.occurred_at,
        payload=payload,
        notes=tuple(_renamed(note, names) for note in event.notes),
    )


def _transition(event: ArchivedEvent, names: _Names, content: Mapping[str, ArchivedMessage]) -> JsonObject:
    """A transition with the digests of what its messages say in the copy; those of drafts are the source's."""
    payload: JsonObject = _renamed(event.payload, names)
    effect = payload["effect"]
    if not isinstance(effect, dict):
        return payload
    if payload.get("type") in DESCRIBING:
        for described in described_in(effect):
            message = content[str(described["id"])]
            parts = parts_of(message)
            described |= describe_parts(message.id, message.status, parts)
            receipt = effect.get("receipt")
            if message.role is Role.TOOL and isinstance(receipt, dict):
                receipt["content_digest"] = parts_digest(Role.TOOL, _INPUT.validate_python(parts))
    draft = effect.get("assistant")
    if payload.get("type") == MutationKind.CHECKPOINT and isinstance(draft, dict) and "sha256" in draft:
        draft["source_sha256"] = draft.pop("sha256")
    return payload


def _observation(event: ArchivedEvent, names: _Names) -> JsonObject:
    """What a copy keeps of an event that is not the history itself."""
    if event.kind == LedgerKind.BRANCH_OBSERVATION:
        observed: JsonObject = _renamed(event.payload, names)
        return observed
    if event.kind in _SEALED:
        digest = hashlib.sha256(canonical_json(event.payload).encode()).hexdigest()
        return {"kind": event.kind, "source_sha256": digest}
    if event.kind == LedgerKind.BRANCHED:
        return {"kind": event.kind, "payload": event.payload}
    said = {name: value for name, value in event.payload.items() if name != _RECEIPT}
    if event.kind not in KNOWN_KINDS:
        # The application's own, of which nobody knows where it names what.
        names.refuse_references(said, seq=str(event.seq))
        return {"kind": event.kind, "payload": said}
    renamed: JsonObject = _renamed(said, names)
    return {"kind": event.kind, "payload": renamed}


def _renamed(value: Any, names: _Names, key: str = "", parent: str = "") -> Any:
    """A JSON value of turnlane's own making, with every reference in it followed."""
    if isinstance(value, dict):
        return {name: _renamed(item, names, name, key) for name, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names, key, parent) for item in value]
    if key in _STRIPPED:
        return None
    return _reference(value, names, key, parent) if isinstance(value, str) else value


_RUNS = frozenset({"run_id", "coalesce_into", "absorbed_into_run_id"})
_MESSAGES = frozenset(
    {
        "message_id",
        "message_ids",
        "input_ids",
        "input_message_id",
        "input_message_ids",
        "assistant_message_id",
        "record_id",
        "summary_id",
    }
)
_KEYS = frozenset({"idempotency_key", "key"})
_DESCRIBED = frozenset({"message", "messages", "summary", "assistant"})


def _reference(value: str, names: _Names, key: str, parent: str) -> str:
    if key in _RUNS or (key == "id" and parent == "run"):
        return names.runs.get(value, value)
    if key in _MESSAGES or (key == "id" and parent in _DESCRIBED):
        return names.messages.get(value, value)
    if key == "conversation_id" and value == names.source:
        return names.destination
    if key == "approval_id":
        return names.approvals.get(value, value)
    if key == "operation_id":
        return names.operation(value)
    return names.keys.get(value, value) if key in _KEYS else value
