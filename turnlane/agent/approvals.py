"""Approvals: which tool calls need somebody's word before they run, and who may give it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from turnlane.agent.answered import answered
from turnlane.records.approvals import MAX_REASON_CHARACTERS, PendingApproval
from turnlane.records.base import Json, JsonObject, clean_text


class ApprovalStatus(StrEnum):
    """What a policy says of a call: it runs, it runs and that is recorded, it never runs, or a person is asked."""

    NOT_APPLICABLE = "not-applicable"
    APPROVED = "approved"
    DENIED = "denied"
    USER_APPROVAL = "user-approval"


@dataclass(frozen=True)
class Ruling:
    """A status and the reason for it, which the model is told of a denial and the user of a question."""

    status: ApprovalStatus
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class ApprovalQuestion:
    """The call that a policy judges. `context` and `metadata` are those of the run that asked for it."""

    tool: str
    call_id: str
    input: Json
    conversation_id: str
    run_id: str
    tenant: str | None = None
    context: JsonObject | None = None
    metadata: JsonObject | None = None


@dataclass(frozen=True, kw_only=True)
class ApprovalResponse:
    """An answer that somebody wants to give, for `Approvals.authorize` to judge. `tenant` is the conversation's."""

    responder: str | None
    conversation_id: str
    request: PendingApproval
    approved: bool
    reason: str | None = None
    tenant: str | None = None


class ResponseRejected(Exception):
    """Raised by `Approvals.authorize` for a responder who may not answer; the reason is kept in the ledger."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = clean_text(reason)[:MAX_REASON_CHARACTERS]


Verdict = Ruling | ApprovalStatus | str
PolicyOfCall = Callable[[ApprovalQuestion], Verdict | Awaitable[Verdict]]
ToolPolicy = ApprovalStatus | str | PolicyOfCall
"""How the calls of one tool are judged: a status, or a function of the call."""
ApprovalPolicy = PolicyOfCall | Mapping[str, ToolPolicy]
Authorize = Callable[[ApprovalResponse], bool | Awaitable[bool]]

NOT_APPLICABLE = Ruling(ApprovalStatus.NOT_APPLICABLE)


@dataclass(frozen=True, kw_only=True)
class Approvals:
    """An agent's rules of approval.

    `policy` is a function of the call, or names a policy for each tool; a tool that it does not name goes by
    its own `@tool(approval=...)`, and without one its calls run. A question lapses after `expires_after`
    seconds; None: never. `authorize` says whether a responder may answer: True, or False or
    `ResponseRejected`; without it everybody who reaches the conversation may. Raises ValueError for a status
    that does not exist and for a time that is not positive.
    """

    policy: ApprovalPolicy | None = None
    expires_after: float | None = None
    authorize: Authorize | None = None

    def __post_init__(self) -> None:
        if self.expires_after is not None and not 0 < self.expires_after < float("inf"):
            raise ValueError("expires_after is a positive number of seconds, or None for never")
        if isinstance(self.policy, Mapping):
            for policy in self.policy.values():
                check_tool_policy(policy)

    async def judge(self, question: ApprovalQuestion, own: ToolPolicy | None = None) -> Ruling:
        """Say what becomes of a call; `own` is the policy of its tool.

        Raises whatever the policy raises, and ValueError for an answer that is no status.
        """
        policy = self._policy_of(question.tool, own)
        if policy is None:
            return NOT_APPLICABLE
        if isinstance(policy, str):
            return _ruling(policy)
        return _ruling(await answered(policy(question)))

    async def permits(self, response: ApprovalResponse) -> bool:
        """Whether a responder may answer. Raises whatever the hook raises, `ResponseRejected` included."""
        if self.authorize is None:
            return True
        return bool(await answered(self.authorize(response)))

    def _policy_of(self, tool: str, own: ToolPolicy | None) -> ToolPolicy | None:
        if self.policy is None:
            return own
        return self.policy if callable(self.policy) else self.policy.get(tool, own)


def check_tool_policy(policy: ToolPolicy) -> None:
    """Raise ValueError for a status that does not exist."""
    if not callable(policy):
        ApprovalStatus(policy)


def _ruling(given: Verdict) -> Ruling:
    ruling = given if isinstance(given, Ruling) else Ruling(ApprovalStatus(given))
    reason = None if ruling.reason is None else clean_text(ruling.reason)[:MAX_REASON_CHARACTERS]
    return Ruling(ApprovalStatus(ruling.status), reason)
