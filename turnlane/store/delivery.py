"""Delivery: what watchers are told of a mutation. Notes are kept with the ledger, events made from them.

A note holds all of an event but message content, which lives once. So the event that is published
after a commit and the one that a late reader makes from the ledger are made by the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter
from sqlalchemy import Connection

from turnlane.records.base import UNSAID, Count, Name, Payload, RecordId
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.events import (
    AdmissionEvent,
    AssistantCheckpointEvent,
    DurableEvent,
    Metrics,
    RunOperationEvent,
    RunStateEvent,
    TerminalEvent,
)
from turnlane.records.messages import Message
from turnlane.records.runs import Failure, Operation, Run, RunState, TerminalReason
from turnlane.store.content import load_messages


class AdmissionNote(Payload):
    """An input was admitted."""

    type: Literal["admission"] = "admission"
    run_id: RecordId
    message_id: RecordId
    run: Run


class RunStateNote(Payload):
    """A run changed its state."""

    type: Literal["run-state"] = "run-state"
    run_id: RecordId
    message_id: None = None
    state: RunState
    queue_wait_ms: Annotated[Count | None, UNSAID] = None


class OperationNote(Payload):
    """A run's operation moved on."""

    type: Literal["run-operation"] = "run-operation"
    run_id: RecordId
    message_id: None = None
    operation: Operation


class CheckpointNote(Payload):
    """A draft was stored."""

    type: Literal["assistant-checkpoint"] = "assistant-checkpoint"
    run_id: RecordId
    message_id: RecordId
    metrics: Metrics


class TerminalNote(Payload):
    """A run ended."""

    type: Literal["terminal"] = "terminal"
    run_id: RecordId
    message_id: RecordId
    reason: TerminalReason
    policy_name: Name | None = None
    failure: Failure | None = None
    metrics: Metrics
    run: Run | None = None


Note = Annotated[
    AdmissionNote | RunStateNote | OperationNote | CheckpointNote | TerminalNote, Field(discriminator="type")
]
NOTES: TypeAdapter[tuple[Note, ...]] = TypeAdapter(tuple[Note, ...])


class Told(NamedTuple):
    """A note, and where and when its mutation landed."""

    note: Note
    version: int
    at: datetime


def dump_notes(notes: Iterable[Note]) -> str | None:
    """Return notes as they are kept; None when there are none."""
    kept = tuple(notes)
    return NOTES.dump_json(kept).decode() if kept else None


def load_notes(text: str | None) -> tuple[Note, ...]:
    return NOTES.validate_json(text) if text else ()


def make_events(
    connection: Connection, conversation_id: str, told: Sequence[Told], known: Mapping[str, Message]
) -> tuple[DurableEvent, ...]:
    """Return the events that notes stand for, with messages as they are now; those `known` are not read."""
    named = dict.fromkeys(item.note.message_id for item in told if item.note.message_id is not None)
    wanted = [message_id for message_id in named if message_id not in known]
    stored = load_messages(connection, conversation_id, wanted) if wanted else {}
    messages = {**known, **{message_id: found.message for message_id, found in stored.items()}}
    return tuple(_event(conversation_id, item, messages) for item in told)


def _message(messages: Mapping[str, Message], message_id: str) -> Message:
    found = messages.get(message_id)
    if found is None:
        raise StoreIntegrityError("the ledger names a message that the store does not have", message_id=message_id)
    return found


def _event(conversation_id: str, told: Told, messages: Mapping[str, Message]) -> DurableEvent:
    note, version, at = told
    match note:
        case AdmissionNote():
            return AdmissionEvent(
                conversation_id=conversation_id, run_id=note.run_id, emitted_at=at, snapshot_version=version,
                input=_message(messages, note.message_id), run=note.run,
                assistant_message_id=note.run.assistant_message_id,
            )  # fmt: skip
        case RunStateNote():
            return RunStateEvent(
                conversation_id=conversation_id, run_id=note.run_id, emitted_at=at, snapshot_version=version,
                state=note.state, queue_wait_ms=note.queue_wait_ms,
            )  # fmt: skip
        case OperationNote():
            return RunOperationEvent(
                conversation_id=conversation_id, run_id=note.run_id, emitted_at=at, snapshot_version=version,
                operation=note.operation,
            )  # fmt: skip
        case CheckpointNote():
            return AssistantCheckpointEvent(
                conversation_id=conversation_id, run_id=note.run_id, emitted_at=at, snapshot_version=version,
                message=_message(messages, note.message_id), metrics=note.metrics,
            )  # fmt: skip
        case TerminalNote():
            return TerminalEvent(
                conversation_id=conversation_id, run_id=note.run_id, emitted_at=at, snapshot_version=version,
                reason=note.reason, policy_name=note.policy_name, failure=note.failure,
                message=_message(messages, note.message_id), metrics=note.metrics, run=note.run,
            )  # fmt: skip
