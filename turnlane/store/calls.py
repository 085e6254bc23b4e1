"""Fenced writes of a tool call: begun before its effect, and finished once: the first result stands."""

from __future__ import annotations

from datetime import datetime

from pydantic import JsonValue
from sqlalchemy import Connection, case, func, select

from turnlane.records.approvals import CallOrigin
from turnlane.records.base import JsonObject
from turnlane.records.durable import SuspendedCall
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.messages import MessageStatus, ToolCallPart, ToolResultPart
from turnlane.records.mutations import MutationKind
from turnlane.records.steps import Fence
from turnlane.store.approvals import check_decided, seated
from turnlane.store.blobs import put_blob
from turnlane.store.content import CALL, CALLS_OF_STEP
from turnlane.store.describe import describe_parts
from turnlane.store.entries import mark_call
from turnlane.store.fenced import (
    ONLY_RUNNING,
    advance,
    check_attempt,
    checkpoint_note,
    touch_message,
    unchanged,
    written,
)
from turnlane.store.payloads import CallStart, Spill, Written
from turnlane.store.prepared import Prepared
from turnlane.store.rows import dump_parts, load_parts
from turnlane.store.statements import Key, change_row, find_row
from turnlane.store.tables import SEGMENT, SegmentRow
from turnlane.store.work import Work

_RESULTS = Prepared(
    select(func.count().label("calls"), func.sum(case((SEGMENT.c.parts.is_(None), 0), else_=1)).label("results")).where(
        *CALLS_OF_STEP
    )
)


def begin_call(
    connection: Connection,
    fence: Fence,
    assistant_id: str,
    slot: int,
    now: datetime,
    durable: SuspendedCall | None = None,
    origin: CallOrigin | None = None,
) -> CallStart:
    """Mark a call as begun, if it was not; its arguments and its result, if it has one. No version moves."""
    check_attempt(connection, fence, assistant_id, ONLY_RUNNING)
    fence, assistant_id = seated(fence, assistant_id, origin)
    row = _call(connection, fence, assistant_id, slot)
    check_decided(row)
    was_suspended = False
    if row.parts is None:
        if row.started_at is None:
            change_row(connection, SegmentRow, _place(fence, assistant_id, slot), started_at=now)
        before = None if durable is None else mark_call(connection, fence, durable, now)
        was_suspended = before is not None and before.suspension is not None
    return CallStart(
        input=_arguments(connection, fence, assistant_id, row.call_id),
        started_before=row.started_at is not None and not was_suspended,
        result=_result(row),
    )


def suspend_call(connection: Connection, fence: Fence, assistant_id: str, call: SuspendedCall, now: datetime) -> None:
    """Note that a call waits, and for what."""
    check_attempt(connection, fence, assistant_id, ONLY_RUNNING)
    fence, assistant_id = seated(fence, assistant_id, call.origin)
    _call(connection, fence, assistant_id, call.slot)
    mark_call(connection, fence, call, now)


def finish_call(
    connection: Connection,
    fence: Fence,
    assistant_id: str,
    slot: int,
    result: ToolResultPart,
    now: datetime,
    spill: Spill | None = None,
    origin: CallOrigin | None = None,
) -> Written:
    """Accept a call's result unless it has one already; its spill is kept with it."""
    work, run = check_attempt(connection, fence, assistant_id, ONLY_RUNNING)
    fence, assistant_id = seated(fence, assistant_id, origin)
    row = _call(connection, fence, assistant_id, slot)
    if row.parts is not None:
        return unchanged(work, run)
    if row.call_id != result.call_id:
        raise StoreIntegrityError("a result names another call than its slot", run_id=fence.run_id, slot=slot)
    check_decided(row, result.outcome)
    change_row(connection, SegmentRow, _place(fence, assistant_id, slot), parts=dump_parts([result]))
    if spill is not None:
        put_blob(connection, fence.conversation_id, spill.data, spill.media_type, now)
    touch_message(work, assistant_id, now)
    described = describe_parts(assistant_id, MessageStatus.STREAMING, (result,))
    effect: JsonObject = {"step": fence.step, "slot": slot, "call_id": result.call_id, "assistant": described}
    told = (checkpoint_note(run, assistant_id),) if _is_worth_telling(work, assistant_id, fence.step) else ()
    advance(work, run, now, MutationKind.CHECKPOINT, told, effect)
    return written(work, run, now)


def _is_worth_telling(work: Work, assistant_id: str, step: int) -> bool:
    """Whether watchers are told the draft now that another result is in: whenever their number has doubled, and
    when it is the last one.

    Telling it for each of many large results would read and send all of them each time.
    """
    where = {"conversation_id": work.conversation_id, "message_id": assistant_id, "step": step}
    row = _RESULTS.all(work.connection, where)[0]
    done: int = row.results
    return done == row.calls or done & (done - 1) == 0


def _place(fence: Fence, assistant_id: str, slot: int) -> Key:
    return (fence.conversation_id, assistant_id, fence.step, slot)


def _call(connection: Connection, fence: Fence, assistant_id: str, slot: int) -> SegmentRow:
    row = find_row(connection, SegmentRow, *_place(fence, assistant_id, slot))
    if row is None or row.kind != CALL:
        raise StoreIntegrityError("the step has no such call", run_id=fence.run_id, step=fence.step, slot=slot)
    return row


def _arguments(connection: Connection, fence: Fence, assistant_id: str, call_id: str | None) -> JsonValue:
    """Return what the model called the tool with, from the step's output."""
    output = find_row(connection, SegmentRow, *_place(fence, assistant_id, slot=0))
    for part in load_parts(None if output is None else output.parts):
        if isinstance(part, ToolCallPart) and part.call_id == call_id:
            return part.input
    raise StoreIntegrityError("a call is missing in its step's output", run_id=fence.run_id, call_id=call_id)


def _result(row: SegmentRow) -> ToolResultPart | None:
    parts = load_parts(row.parts)
    return parts[0] if parts and isinstance(parts[0], ToolResultPart) else None
