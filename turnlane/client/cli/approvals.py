"""`approvals`, `approve` and `deny`: what agents ask to be allowed, and the answers."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from turnlane.client.cli.read import Limit
from turnlane.client.cli.send import ConversationId, tell_admission
from turnlane.client.cli.verbs import Session, verb
from turnlane.client.cli.wording import brief, moment

ApprovalId = Annotated[str, Argument(metavar="APPROVAL", help="The id of the approval; `approvals` lists them.")]
Reason = Annotated[str | None, Option(help="Why; the model is told the reason of a denial.")]
Responder = Annotated[str | None, Option(help="Who answers, for the agent to judge.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this module."""
    for function in (approvals, approve, deny):
        verb(app)(function)


async def approvals(
    session: Session,
    conversation_id: Annotated[
        str | None, Argument(metavar="CONVERSATION", help="Only of this conversation; of all when left out.")
    ] = None,
    limit: Limit = 100,
) -> None:
    """List the tool calls that wait for approval, oldest first."""
    async with session.client() as client:
        waiting = await client.pending_approvals(conversation_id, limit=limit)
    for approval in waiting:
        session.out.record(approval)
    if not waiting:
        session.out.say("nothing waits for approval", "dim")
        return
    session.out.table(
        ("conversation", "approval", "tool", "arguments", "reason", "expires"),
        (
            (
                each.conversation_id,
                each.approval_id,
                each.tool_name,
                brief(each.input),
                each.reason,
                None if each.expires_at is None else moment(each.expires_at),
            )
            for each in waiting
        ),
    )


async def approve(
    session: Session,
    conversation_id: ConversationId,
    approval_id: ApprovalId,
    reason: Reason = None,
    responder: Responder = None,
) -> None:
    """Let a call that waits be made."""
    await _respond(session, conversation_id, approval_id, True, reason, responder)


async def deny(
    session: Session,
    conversation_id: ConversationId,
    approval_id: ApprovalId,
    reason: Reason = None,
    responder: Responder = None,
) -> None:
    """Forbid a call that waits. The model is told so, and goes on."""
    await _respond(session, conversation_id, approval_id, False, reason, responder)


async def _respond(
    session: Session, conversation_id: str, approval_id: str, approved: bool, reason: str | None, responder: str | None
) -> None:
    async with session.lane_client() as client:
        ticket = await client.respond(conversation_id, approval_id, approved, reason=reason, responder=responder)
    session.out.say("approved" if approved else "denied")
    tell_admission(session, ticket)
