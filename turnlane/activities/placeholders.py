"""Placeholders: what the model is told about a call that has no result, since providers want one for each."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from turnlane.records.base import Json
from turnlane.records.messages import ToolApprovalRequestPart, ToolApprovalResponsePart, ToolOutcome, ToolResultPart


class Placeholder(NamedTuple):
    """What stands where a result would."""

    outcome: ToolOutcome
    output: Json

    def result(self, call_id: str, tool_name: str) -> ToolResultPart:
        """The placeholder as the result of a call."""
        return ToolResultPart(call_id=call_id, tool_name=tool_name, outcome=self.outcome, output=self.output)


def _error(code: str, message: str) -> Placeholder:
    return Placeholder(ToolOutcome.ERROR, {"code": code, "message": message})


CUT_CALL: Final = _error("INTERRUPTED", "interrupted; effects possible: the call may have done part of its work")
LIVE_CALL: Final = _error("NO_RESULT", "no result was recorded; effects possible")
UNUSED_CALL: Final = _error("NOT_RUN", "not run: the answer ended before its tool calls were run")
WAITING_CALL: Final = Placeholder(ToolOutcome.SUCCESS, {"status": "waiting for approval"})
EXPIRED_CALL: Final = _error("APPROVAL_EXPIRED", "not run: nobody approved the call in time")


def waiting_call(request: ToolApprovalRequestPart, now: datetime | None) -> Placeholder:
    """What is told of a call that waits for an answer to `request`, or waited for it too long."""
    expires = request.expires_at
    return EXPIRED_CALL if now is not None and expires is not None and expires <= now else WAITING_CALL


def answered_call(response: ToolApprovalResponsePart) -> Placeholder:
    """What is told of a call whose approval was answered and which has no result yet."""
    if response.approved:
        return LIVE_CALL
    return _error("DENIED", f"not run: denied ({response.reason})" if response.reason else "not run: denied")
