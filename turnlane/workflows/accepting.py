"""Accepting an input: whether it was admitted before, whether it may be, and which run it joins."""

from __future__ import annotations

from datetime import datetime

from turnlane.records.admissions import Policy, Receipt
from turnlane.records.approvals import ApprovalState, AskedApproval
from turnlane.records.base import json_bytes
from turnlane.records.commands import Accept, Duplicate, Refusal, RefusalCode
from turnlane.records.lane import ApprovalAnswer, HeadReceipt, LaneHead, LaneRun, ids_for_key
from turnlane.records.limits import KIB
from turnlane.records.messages import Role, ToolApprovalResponsePart
from turnlane.records.mutations import AdmitInput, MutationKind, NewRun
from turnlane.records.runs import QueuePriority
from turnlane.workflows.decisions import Decision, Transition, apply, in_queue_order, refuse, with_run

RUN_INPUTS = 256
RUN_BYTES = 16 * KIB
"""How many inputs coalescing gives one run, and how long their names may be: what a head and a model can be shown at
once. The next starts another."""


def accept(head: LaneHead, command: Accept, now: datetime) -> Decision:
    """Admit an input, or say what it was answered before. A duplicate wins over everything that is wrong with it."""
    known = head.receipt(command.key) or command.known
    if known is not None:
        if known.digest != command.content_digest:
            return _conflict(head, command)
        return Duplicate(receipt=known)
    refusal = _admission_refusal(head, command)
    if refusal is not None:
        return refusal
    target = _coalescing_target(head, command)
    if target is None and len(head.queued) >= command.queued_runs:
        return refuse(head, RefusalCode.QUEUE_FULL)
    return _join(head, command, target, now) if target else _enqueue(head, command, now)


def _conflict(head: LaneHead, command: Accept) -> Refusal:
    """The refusal of a key that was used for other content: of an answer, because another answer came first."""
    if command.message.role is not Role.TOOL:
        return refuse(head, RefusalCode.KEY_CONFLICT)
    return refuse(head, RefusalCode.DECIDED, detail=_decision(head, command) or "")


def _answers(command: Accept) -> tuple[ApprovalAnswer, ...]:
    """The approvals that an input answers."""
    parts = command.message.parts if command.message.role is Role.TOOL else ()
    return tuple(
        ApprovalAnswer(part.approval_id, part.approved) for part in parts if isinstance(part, ToolApprovalResponsePart)
    )


def _decision(head: LaneHead, command: Accept) -> str | None:
    """How an approval that the input answers was decided by an input of a run that is still active."""
    asked = {answer.approval_id for answer in _answers(command)}
    for run in head.runs if asked else ():
        for answer in run.answers:
            if answer.approval_id in asked:
                return (ApprovalState.APPROVED if answer.approved else ApprovalState.DENIED).value
    return None


def _admission_refusal(head: LaneHead, command: Accept) -> Refusal | None:
    if head.agent is not None and (head.agent, head.tenant) != (command.agent, command.tenant):
        return refuse(head, RefusalCode.AGENT_MISMATCH)
    if _collides(head, command):
        return refuse(head, RefusalCode.ID_COLLISION)
    if command.expected_version is not None and command.expected_version != head.version:
        return refuse(head, RefusalCode.CONFLICT)
    decision = _decision(head, command)
    if decision is not None:
        return refuse(head, RefusalCode.DECIDED, detail=decision)
    message = command.message
    if (
        message.role not in (Role.USER, Role.TOOL)
        or message.run_id is not None
        or message.conversation_id != head.conversation_id
    ):
        return refuse(head, RefusalCode.INVALID, detail="an input is a user or tool message without a run")
    return None


def _collides(head: LaneHead, command: Accept) -> bool:
    ids = {command.message.id, command.assistant_message_id}
    if len(ids) < 2:
        return True
    for run in head.runs:
        if run.id == command.run_id or ids & {run.assistant_message_id, *run.input_ids}:
            return True
    return False


def _coalescing_target(head: LaneHead, command: Accept) -> LaneRun | None:
    if not command.coalesce or command.policy is Policy.INTERRUPT_NEXT or command.message.role is Role.TOOL:
        return None
    return next((run for run in head.queued if run.coalescable and _has_room(run, command.message.id)), None)


def _has_room(run: LaneRun, input_id: str) -> bool:
    # Each may be named a second time, as an offer.
    named = sum(json_bytes(name) + 1 for name in (*run.input_ids, input_id))
    return len(run.input_ids) < RUN_INPUTS and 2 * named <= RUN_BYTES


def _offer(command: Accept) -> tuple[str, ...]:
    return (command.message.id,) if command.policy is Policy.INJECT else ()


def _enqueue(head: LaneHead, command: Accept, now: datetime) -> Transition:
    order = head.order + 1
    urgent = command.policy is Policy.INTERRUPT_NEXT
    run = LaneRun(
        id=command.run_id,
        assistant_message_id=command.assistant_message_id,
        input_ids=(command.message.id,),
        order=order,
        urgent=urgent,
        coalescable=command.coalesce and not urgent and command.message.role is Role.USER,
        offered=_offer(command),
        answers=_answers(command),
    )
    new_run = NewRun(
        id=run.id,
        assistant_message_id=run.assistant_message_id,
        admission_order=order,
        queue_priority=QueuePriority.INTERRUPT_NEXT if urgent else None,
        context=command.context,
    )
    grown = head.model_copy(update={"order": order, "runs": in_queue_order((*head.runs, run))})
    return _admit(grown, command, run, _admission(command, run, run_record=new_run), now)


def _join(head: LaneHead, command: Accept, target: LaneRun, now: datetime) -> Transition:
    run = target.model_copy(
        update={
            "input_ids": (*target.input_ids, command.message.id),
            "offered": target.offered + _offer(command),
            "revision": target.revision + 1,
        }
    )
    return _admit(with_run(head, run), command, run, _admission(command, run, run_record=None), now)


def _admission(command: Accept, run: LaneRun, *, run_record: NewRun | None) -> AdmitInput:
    receipt = Receipt(
        conversation_id=command.message.conversation_id,
        idempotency_key=command.key,
        content_digest=command.content_digest,
        input_message_id=command.message.id,
        run_id=run.id,
        assistant_message_id=run.assistant_message_id,
        policy=command.policy,
    )
    return AdmitInput(
        message=command.message,
        receipt=receipt,
        blob=command.blob,
        run=run_record,
        coalesce_into=None if run_record else run.id,
        agent=command.agent,
        tenant=command.tenant,
    )


def _admit(head: LaneHead, command: Accept, run: LaneRun, effect: AdmitInput, now: datetime) -> Transition:
    receipts = (*head.receipts, pack_receipt(effect.receipt, head.version + 1))
    kept = receipts[-command.recent_receipts :]
    named = head.model_copy(
        update={
            "agent": command.agent,
            "tenant": command.tenant,
            "receipts": kept,
            "approvals": _still_pending(head, command),
            "receipts_complete": head.receipts_complete and len(kept) == len(receipts),
        }
    )
    return apply(named, MutationKind.ACCEPT, effect, now, run.id, coalesced=effect.run is None)


def _still_pending(head: LaneHead, command: Accept) -> tuple[AskedApproval, ...]:
    answered = {answer.approval_id for answer in _answers(command)}
    if not answered:
        return head.approvals
    return tuple(asked for asked in head.approvals if asked.approval_id not in answered)


def pack_receipt(receipt: Receipt, version: int) -> HeadReceipt:
    """Pack a receipt for the head; ids that follow from the key are left out."""
    derived = ids_for_key(receipt.conversation_id, receipt.idempotency_key)
    given = (receipt.input_message_id, receipt.run_id, receipt.assistant_message_id)
    packed = ("" if mine == theirs else mine for mine, theirs in zip(given, derived, strict=True))
    return HeadReceipt(receipt.idempotency_key, receipt.content_digest, receipt.policy.value, version, *packed)
