"""Rows and records: each read from the other, with JSON validated straight from its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Select, select
from sqlmodel import SQLModel

from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.messages import Message, MessageStatus, Part, Role
from turnlane.records.runs import Failure, Operation, QueuePriority, Run, RunState, TerminalReason
from turnlane.records.usage import Usage
from turnlane.store.tables import IS_ACTIVE, RUN, MessageRow, RunRow

Row = TypeVar("Row", bound=SQLModel)

PARTS: TypeAdapter[tuple[Part, ...]] = TypeAdapter(tuple[Part, ...])
_IDS: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])
_OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


def fetch(connection: Connection, statement: Select[Any], kind: type[Row]) -> list[Row]:
    """Return a statement's rows, with the columns of `kind` as attributes. Read them, do not change them."""
    return cast(list[Row], list(connection.execute(statement)))


def dump_parts(parts: Iterable[Part]) -> str:
    return PARTS.dump_json(tuple(parts)).decode()


def load_parts(text: str | None) -> tuple[Part, ...]:
    return PARTS.validate_json(text) if text else ()


def dump_ids(ids: Iterable[str]) -> str:
    return canonical_json(list(ids))


def load_ids(text: str) -> tuple[str, ...]:
    return _IDS.validate_json(text)


def dump_object(value: JsonObject | None) -> str | None:
    return None if value is None else canonical_json(value)


def load_object(text: str | None) -> JsonObject | None:
    return None if text is None else _OBJECT.validate_json(text)


def load_usage(text: str | None) -> Usage | None:
    return None if text is None else Usage.model_validate_json(text)


def dump_usage(usage: Usage | None) -> str | None:
    return None if usage is None else usage.model_dump_json()


def run_record(row: RunRow) -> Run:
    """Return the run that a row holds; the record checks that it agrees with itself."""
    return Run(
        id=row.id,
        conversation_id=row.conversation_id,
        input_message_ids=load_ids(row.input_ids),
        assistant_message_id=row.assistant_message_id,
        state=RunState(row.state),
        revision=row.revision,
        admission_order=row.admission_order,
        queue_priority=None if row.queue_priority is None else QueuePriority(row.queue_priority),
        execution_sequence=row.execution_sequence,
        owner_id=row.owner_id,
        fencing_token=row.fencing_token,
        terminal_reason=None if row.terminal_reason is None else TerminalReason(row.terminal_reason),
        terminal_policy_name=row.terminal_policy_name,
        absorbed_into_run_id=row.absorbed_into_run_id,
        failure=None if row.failure is None else Failure.model_validate_json(row.failure),
        usage=load_usage(row.usage),
        last_operation=None if row.last_operation is None else Operation.model_validate_json(row.last_operation),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def message_record(row: MessageRow, parts: tuple[Part, ...]) -> Message:
    """Return the message that a row and its content make. Only an assistant message names its run."""
    role = Role(row.role)
    return Message(
        id=row.id,
        conversation_id=row.conversation_id,
        run_id=row.run_id if role is Role.ASSISTANT else None,
        role=role,
        status=MessageStatus(row.status),
        parts=parts,
        metadata=load_object(row.details),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def select_active(*where: ColumnElement[bool]) -> Select[Any]:
    """Return a select of active runs, by conversation and id.

    The states stand in it as they stand in the partial index, and the order is the index's: a database
    that plans without statistics finds the index by these, and not the many runs that have ended.
    """
    return select(RUN).where(*where, IS_ACTIVE).order_by(RUN.c.conversation_id, RUN.c.id)


def in_queue_order(rows: Sequence[RunRow]) -> list[RunRow]:
    """Order runs causally: started ones as they started, then urgent ones, then the rest, by admission."""
    return sorted(rows, key=_queue_key)


def active_runs(connection: Connection, conversation_id: str) -> list[RunRow]:
    """Return the active runs of a conversation, in queue order."""
    return in_queue_order(fetch(connection, select_active(RUN.c.conversation_id == conversation_id), RunRow))


def _queue_key(row: RunRow) -> tuple[int, int, int]:
    if row.execution_sequence is not None:
        return (0, row.execution_sequence, row.admission_order)
    if row.state != RunState.QUEUED:
        return (1, 0, row.admission_order)
    return (2, 0 if row.queue_priority is not None else 1, row.admission_order)
