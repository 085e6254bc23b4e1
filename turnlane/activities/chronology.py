"""The tool chronology: whether calls, approvals and results of imported records fit together, across records.

Our own answers are well-formed by construction. What came from elsewhere may not be, and a provider refuses
the whole conversation for one result without its call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from turnlane.records.messages import (
    Part,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)


class Phase(StrEnum):
    """How far a call got."""

    CALLED = "called"
    REQUESTED = "requested"
    APPROVED = "approved"
    DENIED = "denied"
    RESULT = "result"


@dataclass(frozen=True)
class _Call:
    tool_name: str
    phase: Phase


@dataclass(frozen=True)
class Chronology:
    """The calls so far. Frozen: a record that does not fit leaves no trace in it."""

    calls: dict[str, _Call] = field(default_factory=dict)
    approvals: dict[str, str] = field(default_factory=dict)
    pending: int = 0
    results_started: bool = False

    def advanced(self, parts: Iterable[Part]) -> Chronology | None:
        """Return the chronology after a record of these parts, or None if the record does not fit.

        A record fits when each of its parts may come next, and leaves no call without a result but those
        that an approval holds back.
        """
        draft = _Draft(replace(self, calls=dict(self.calls), approvals=dict(self.approvals)))
        if not all(draft.take(part) for part in parts):
            return None
        # Calls of earlier records are none of them in that phase: those records would not have fitted.
        fits = all(draft.now.calls[call_id].phase is not Phase.CALLED for call_id in draft.made)
        return draft.now if fits else None

    def after_user(self) -> Chronology:
        """The chronology once the user spoke: call ids may be used again, unless an approval is outstanding."""
        return self if self.pending else START


START = Chronology()
"""Nothing was called yet."""


@dataclass
class _Draft:
    """A chronology while a record is read; `made` are the calls that the record makes."""

    now: Chronology
    made: list[str] = field(default_factory=list)

    def take(self, part: Part) -> bool:
        """Take the next part; False if it cannot come here."""
        match part:
            case ToolCallPart():
                return self._call(part)
            case ToolApprovalRequestPart():
                return self._request(part)
            case ToolApprovalResponsePart():
                return self._response(part)
            case ToolResultPart():
                return self._result(part)
        return True

    def _call(self, part: ToolCallPart) -> bool:
        now = self.now
        # A new round may not begin while the one that is being answered still owes results.
        if part.call_id in now.calls or (now.results_started and now.pending > 0):
            return False
        self.now = replace(now, pending=now.pending + 1, results_started=False)
        self.made.append(part.call_id)
        self._move(part.call_id, part.tool_name, Phase.CALLED)
        return True

    def _request(self, part: ToolApprovalRequestPart) -> bool:
        call = self.now.calls.get(part.call_id)
        if call is None or call.phase is not Phase.CALLED or part.approval_id in self.now.approvals:
            return False
        self.now.approvals[part.approval_id] = part.call_id
        self._move(part.call_id, call.tool_name, Phase.REQUESTED)
        return True

    def _response(self, part: ToolApprovalResponsePart) -> bool:
        call_id = self.now.approvals.get(part.approval_id)
        call = self.now.calls.get(call_id) if call_id is not None else None
        if call_id is None or call is None or call.phase is not Phase.REQUESTED:
            return False
        self._move(call_id, call.tool_name, Phase.APPROVED if part.approved else Phase.DENIED)
        return True

    def _result(self, part: ToolResultPart) -> bool:
        call = self.now.calls.get(part.call_id)
        if call is None or call.tool_name != part.tool_name or call.phase in (Phase.RESULT, Phase.REQUESTED):
            return False
        if call.phase is Phase.DENIED and part.outcome is ToolOutcome.SUCCESS:
            return False
        self.now = replace(self.now, pending=self.now.pending - 1, results_started=True)
        self._move(part.call_id, call.tool_name, Phase.RESULT)
        return True

    def _move(self, call_id: str, tool_name: str, phase: Phase) -> None:
        self.now.calls[call_id] = _Call(tool_name, phase)
