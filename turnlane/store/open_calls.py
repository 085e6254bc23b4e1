"""Open calls: tool calls that have no result, and the coded one they get when nobody will bring a better one."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlalchemy import bindparam, select

from turnlane.records.base import JsonObject
from turnlane.records.messages import ToolOutcome, ToolResultPart
from turnlane.store.content import CALL
from turnlane.store.rows import dump_parts
from turnlane.store.statements import change_row
from turnlane.store.tables import SEGMENT, RunRow, SegmentRow
from turnlane.store.work import Work

_OPEN_CALLS = select(SEGMENT).where(
    SEGMENT.c.conversation_id == bindparam("conversation_id"),
    SEGMENT.c.message_id == bindparam("message_id"),
    SEGMENT.c.kind == CALL,
    SEGMENT.c.parts.is_(None),
)

ResultOf = Callable[[str, str, bool], ToolResultPart]


def close_calls(work: Work, run: RunRow, result_of: ResultOf, *, but: Collection[tuple[int, int]] = ()) -> None:
    """Give every open call of a run the result that `result_of(call_id, tool_name, was_started)` makes.

    Those at the places (step, slot) of `but` stay open.
    """
    where = {"conversation_id": work.conversation_id, "message_id": run.assistant_message_id}
    rows = work.connection.execute(_OPEN_CALLS, where).all()
    for row in (row for row in rows if (row.step, row.slot) not in but):
        result = result_of(row.call_id, row.tool_name, row.started_at is not None)
        change_row(work.connection, SegmentRow, (*where.values(), row.step, row.slot), parts=dump_parts([result]))


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


def _result(call_id: str, tool_name: str, outcome: ToolOutcome, code: str, message: str) -> ToolResultPart:
    output: JsonObject = {"error": code, "retryable": code == "NOT_STARTED", "details": {"message": message}}
    return ToolResultPart(call_id=call_id, tool_name=tool_name, outcome=outcome, output=output)
