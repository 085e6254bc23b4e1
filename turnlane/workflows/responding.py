"""Responding: an approval answered by update or by signal, and what the lane knows to be pending."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnlane.records.admissions import Input, Policy, SubmitReply
    from turnlane.records.approvals import AskedApproval, RespondRequest, answer_key
    from turnlane.records.errors import LaneClosingError
    from turnlane.records.messages import Role, ToolApprovalResponsePart
    from turnlane.workflows.arguments import RespondArgument
    from turnlane.workflows.calls import as_failure
    from turnlane.workflows.core import LaneCore, Pending
    from turnlane.workflows.until import until


def as_input(request: RespondRequest) -> Input:
    """An answer as the input that carries it: one key for each approval, so that it is answered once."""
    part = ToolApprovalResponsePart(approval_id=request.approval_id, approved=request.approved, reason=request.reason)
    return Input(
        key=answer_key(request.approval_id),
        parts=(part,),
        role=Role.TOOL,
        policy=Policy.QUEUE,
        responder=request.responder,
        tenant=request.tenant,
    )


async def admitted(core: LaneCore, given: Input) -> SubmitReply:
    """Put an input into the inbox, and answer when its admission is durable."""
    pending = Pending(given, is_signal=False)
    core.inbox.append(pending)
    await until(lambda: pending.is_answered or core.outbox.lost is not None)
    if pending.error is not None:
        raise as_failure(pending.error)
    if pending.reply is None:
        raise as_failure(core.outbox.lost or LaneClosingError("the lane is closing"))
    return pending.reply


class Responding:
    """The handlers of a lane that are about approvals."""

    _core: LaneCore

    @workflow.update(name="respond")
    async def respond(self, request: RespondArgument) -> SubmitReply:
        """Answer an approval; answers when the admission is durable. An approval is answered once."""
        return await admitted(self._core, as_input(request))

    @workflow.signal(name="respond")
    async def respond_signal(self, request: RespondArgument) -> None:
        """Answer an approval, for a caller that cannot wait. A refusal is told in the ledger."""
        self._core.inbox.append(Pending(as_input(request), is_signal=True))

    @workflow.query(name="pending_approvals")
    def query_pending_approvals(self) -> list[AskedApproval]:
        """The latest approvals that wait for an answer, those that lapsed included."""
        return list(self._core.head.approvals)
