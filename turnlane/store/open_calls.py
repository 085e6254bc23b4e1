"""Open calls: tool calls that have no result, and the coded one they get when nobody will bring a better one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

from sqlalchemy import bindparam, select

from turnlane.records.approvals import ApprovalState, denied_result
from turnlane.records.base import JsonObject
from turnlane.records.messages import ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.store.approvals import unfinished_answers
from turnlane.store.content import CALL
from turnlane.store.prepared import Prepared
from turnlane.store.rows import dump_parts, load_parts
from turnlane.store.statements import change_row, find_row, insert_rows, new_row
from turnlane.store.tables import SEGMENT, RunRow, SegmentRow
from turnlane.store.work import Work

_OPEN_CALLS = Prepared(
    select(SEGMENT).where(
        SEGMENT.c.conversation_id == bindparam("conversation_id"),
        SEGMENT.c.message_id == bindparam("message_id"),
        SEGMENT.c.kind == CALL,
        SEGMENT.c.parts.is_(None),
    )
)

ResultOf = Callable[[str, str, bool], ToolResultPart]


def close_calls(
    work: Work, run: RunRow, result_of: ResultOf, *, but: Collection[tuple[int, int]] = (), keep_pending: bool = False
) -> None:
    """Give every open call of a run the result that `result_of(call_id, tool_name, was_started)` makes.

    Those at the places (step, slot) of `but` stay open, and with `keep_pending` those that wait for approval.
    """
    where = {"conversation_id": work.conversation_id, "message_id": run.assistant_message_id}
    for row in cast(list[SegmentRow], _OPEN_CALLS.all(work.connection, where)):
        kept = (row.step, row.slot) in but or (keep_pending and row.approval == ApprovalState.PENDING)
        if not kept:
            _close(work, row, result_of(row.call_id or "", row.tool_name or "", row.started_at is not None))


def record_cut_calls(work: Work, run: RunRow) -> None:
    """Give the calls in the draft of an attempt that never ended their places, so that they are closed like others.

    Only the end of an attempt records what it asked for. Where its run ends first (it was given up, or its worker
    and its lane were lost), the draft holds calls that nobody makes and nobody would answer.
    """
    if not run.attempt_open or run.fence_step < 0:
        return
    place = (work.conversation_id, run.assistant_message_id, run.fence_step)
    draft = find_row(work.connection, SegmentRow, *place, 0)
    calls = [part for part in load_parts(None if draft is None else draft.parts) if isinstance(part, ToolCallPart)]
    rows = [
        new_row(
            SegmentRow,
            conversation_id=work.conversation_id,
            message_id=run.assistant_message_id,
            step=run.fence_step,
            slot=slot,
            kind=CALL,
            call_id=call.call_id,
            tool_name=call.tool_name[:128],
        )
        for slot, call in enumerate(calls, 1)
    ]
    insert_rows(work.connection, SegmentRow, *rows)


def close_answered_calls(work: Work, run: RunRow) -> None:
    """Give the calls that a run was to act on, because its inputs decide them, a result if it did not."""
    for row in unfinished_answers(work, run):
        call_id, tool_name = row.call_id or "", row.tool_name or ""
        if row.approval == ApprovalState.DENIED:
            _close(work, row, denied_result(call_id, tool_name, None))
        else:
            _close(work, row, interrupted_result(call_id, tool_name, row.started_at is not None))


def _close(work: Work, row: SegmentRow, result: ToolResultPart) -> None:
    place = (row.conversation_id, row.message_id, row.step, row.slot)
    changes: dict[str, str] = {"parts": dump_parts([result])}
    if row.approval == ApprovalState.PENDING:
        changes["approval"] = ApprovalState.WITHDRAWN
    change_row(work.connection, SegmentRow, place, **changes)


def interrupted_result(call_id: str, tool_name: str, started: bool) -> ToolResultPart:
    """The result of a call that its run's end cut off."""
    message = "The call was interrupted; its effects are unknown." if started else "The call was not started."
    return _result(call_id, tool_name, ToolOutcome.INTERRUPTED, "INTERRUPTED", message)


def lost_result(call_id: str, tool_name: str, started: bool) -> ToolResultPart:
    """The result of a call whose lane was lost while it was open: it is not made again behind the user's back."""
    if started:
        message = "The worker of this call was lost. Whether its effect happened is unknown."
        return _result(call_id, tool_name, ToolOutcome.ERROR, "OUTCOME_UNKNOWN", message)
    return _result(
        call_id, tool_name, ToolOutcome.ERROR, "NOT_STARTED", "The call was not started; it may be made again."
    )


def left_behind_result(call_id: str, tool_name: str) -> ToolResultPart:
    """The result, in a copy of its conversation, of a call that waited for somebody's approval in the original."""
    message = "The call waited for an approval in the conversation that this one was copied from; it was not made here."
    return _result(call_id, tool_name, ToolOutcome.INTERRUPTED, "LEFT_BEHIND", message)


def _result(call_id: str, tool_name: str, outcome: ToolOutcome, code: str, message: str) -> ToolResultPart:
    output: JsonObject = {"error": code, "retryable": code == "NOT_STARTED", "details": {"message": message}}
    return ToolResultPart(call_id=call_id, tool_name=tool_name, outcome=outcome, output=output)
