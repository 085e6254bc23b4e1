"""Answer checks: whether an approval answer may be admitted: what it answers is pending, and its giver may.

The store is asked, and the application; two answers that come at the same moment both pass here, and the
lane lets one of them in.
"""

from __future__ import annotations

import logging
from datetime import datetime

from turnlane.activities.failing import place_of
from turnlane.activities.patience import Patience, PatienceLostError
from turnlane.agent.agent import Agent
from turnlane.agent.approvals import ApprovalResponse, Approvals, ResponseRejected
from turnlane.records.admissions import Input
from turnlane.records.approvals import (
    MAX_ANSWERS,
    MAX_REASON_CHARACTERS,
    ApprovalState,
    PendingApproval,
    StoredApproval,
)
from turnlane.records.base import JsonObject, digest
from turnlane.records.errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    ApprovalNotPendingError,
    ApprovalRefusedError,
    InvalidInputError,
    PolicyFailedError,
)
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import Role, ToolApprovalResponsePart
from turnlane.records.steps import PrepareAdmissions
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)


async def check_answers(
    store: Store, agent: Agent, request: PrepareAdmissions, item: Input, now: datetime, patience: Patience
) -> None:
    """Raise the error that says why the answers of a tool-role input are not admitted; all of them, or none.

    `patience` is what is left of it for the application's word on all the answers that arrived together.
    """
    answers = _answers(item)
    found = await store.find_approvals(request.conversation_id, [answer.approval_id for answer in answers])
    questions = [_pending(answer, found.get(answer.approval_id), now) for answer in answers]
    rules = agent.approval_rules or Approvals()
    for answer, question in zip(answers, questions, strict=True):
        response = ApprovalResponse(
            responder=item.responder,
            conversation_id=request.conversation_id,
            request=question,
            approved=answer.approved,
            reason=answer.reason,
            tenant=request.tenant,
        )
        await _authorize(store, agent, rules, response, now, patience)


def _answers(item: Input) -> tuple[ToolApprovalResponsePart, ...]:
    answers = tuple(part for part in item.parts if isinstance(part, ToolApprovalResponsePart))
    if item.blob is not None or len(answers) != len(item.parts):
        raise InvalidInputError("approval answers travel with their input", fields=["blob"])
    if len(answers) > MAX_ANSWERS:
        raise InvalidInputError(f"an input answers at most {MAX_ANSWERS} approvals", fields=["parts"])
    if len({answer.approval_id for answer in answers}) != len(answers):
        raise InvalidInputError("an input answers an approval once", fields=["parts"])
    if any(answer.reason is not None and len(answer.reason) > MAX_REASON_CHARACTERS for answer in answers):
        raise InvalidInputError(f"a reason has at most {MAX_REASON_CHARACTERS} characters", fields=["parts"])
    return answers


def _pending(answer: ToolApprovalResponsePart, approval: StoredApproval | None, now: datetime) -> PendingApproval:
    """The question that waits for this answer."""
    facts = {"approval_id": answer.approval_id}
    if approval is not None and approval.state in (ApprovalState.APPROVED, ApprovalState.DENIED):
        decision = approval.state.value
        raise ApprovalDecidedError(f"the approval was already decided: {decision}", decision=decision, **facts)
    if approval is None or approval.is_finished or not approval.is_open or approval.request is None:
        raise ApprovalNotPendingError("no such approval waits: it is missing, stale or already answered", **facts)
    if approval.expires_at is not None and approval.expires_at <= now:
        raise ApprovalExpiredError("the approval was not answered in time", **facts)
    return approval.request


async def _authorize(
    store: Store, agent: Agent, rules: Approvals, response: ApprovalResponse, now: datetime, patience: Patience
) -> None:
    """Ask the application whether the responder may answer. A rejection is kept in the ledger, once for each."""
    reason = ""
    try:
        is_permitted = await patience.wait(rules.permits(response))
    except ResponseRejected as rejected:
        is_permitted, reason = False, rejected.reason
    except PatienceLostError:
        logger.error("the authorize function of agent %s took too long", agent.name)
        raise PolicyFailedError("the agent's authorize function took too long") from None
    except Exception as error:
        name, place = type(error).__name__, place_of(error)
        logger.error("the authorize function of agent %s failed with %s at %s", agent.name, name, place)
        raise PolicyFailedError("the agent's authorize function failed") from None
    if is_permitted:
        return
    request = response.request
    payload: JsonObject = {
        "approval_id": request.approval_id,
        "call_id": request.call_id,
        "tool_name": request.tool_name,
        "approved": response.approved,
        "responder": response.responder,
        "reason": reason,
    }
    kind = LedgerKind.APPROVAL_RESPONSE_REJECTED
    await store.append_event(response.conversation_id, kind, payload, now, digest(payload))
    raise ApprovalRefusedError("the responder may not answer this approval", approval_id=request.approval_id)


def refuse_hidden_answers(item: Input, parts: tuple[object, ...]) -> None:
    """Refuse an approval answer that came as a user's words: only a tool-role input answers one."""
    if item.role is Role.USER and any(isinstance(part, ToolApprovalResponsePart) for part in parts):
        raise InvalidInputError("an approval answer is a tool-role input", fields=["parts"])
