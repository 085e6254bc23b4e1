"""The reducer: what a command does to a lane. Pure and total; refusals are values.

`reduce(head, command, now)` looks at nothing but its arguments and answers with a `Transition` (the new
head and the one mutation that makes it durable), a `Refusal`, or, for an input admitted before, a
`Duplicate`. It never raises for anything a caller may send.

Order of the queue: a run that has started stands before one that has not, an urgent one
(`interrupt-next`) before ordinary ones, and then the admission counter decides, never a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from turnlane.records.admissions import Policy, Receipt
from turnlane.records.commands import (
    Accept,
    Acquire,
    Cancel,
    Command,
    Compact,
    Duplicate,
    Interrupt,
    Note,
    Purge,
    Recover,
    Refusal,
    RefusalCode,
    Seed,
    Settle,
)
from turnlane.records.lane import AbortReason, HeadReceipt, LaneHead, LaneRun, ids_for_key
from turnlane.records.messages import MessageStatus, Role
from turnlane.records.mutations import (
    Absorption,
    AdmitInput,
    AppendEvent,
    CompactRange,
    Effect,
    Mutation,
    MutationKind,
    NewRun,
    PurgeConversation,
    RequestInterrupt,
    RequeueRun,
    SeedInputs,
    SettleRun,
    StartRun,
)
from turnlane.records.runs import ENDINGS, QueuePriority, RunState, TerminalReason


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What a command does: the head after it, and the mutation to commit. `run_id` is the run it is about."""

    head: LaneHead
    mutation: Mutation
    run_id: str | None = None
    coalesced: bool = False


Decision = Transition | Refusal | Duplicate


def reduce(head: LaneHead, command: Command, now: datetime) -> Decision:
    """Decide one command. See the module for the rules."""
    if head.purged:
        return _refuse(head, RefusalCode.PURGED)
    return _RULES[type(command)](head, command, now)


# --- admission ----------------------------------------------------------------------------------


def _accept(head: LaneHead, command: Accept, now: datetime) -> Decision:
    known = head.receipt(command.key) or command.known
    if known is not None:
        if known.digest != command.content_digest:
            return _refuse(head, RefusalCode.KEY_CONFLICT)
        return Duplicate(receipt=known)
    refusal = _admission_refusal(head, command)
    if refusal is not None:
        return refusal
    target = _coalescing_target(head, command)
    if target is None and len(head.queued) >= command.queued_runs:
        return _refuse(head, RefusalCode.QUEUE_FULL)
    return _join(head, command, target, now) if target else _enqueue(head, command, now)


def _admission_refusal(head: LaneHead, command: Accept) -> Refusal | None:
    if head.agent is not None and (head.agent, head.tenant) != (command.agent, command.tenant):
        return _refuse(head, RefusalCode.AGENT_MISMATCH)
    if _collides(head, command):
        return _refuse(head, RefusalCode.ID_COLLISION)
    if command.expected_version is not None and command.expected_version != head.version:
        return _refuse(head, RefusalCode.CONFLICT)
    message = command.message
    if (
        message.role not in (Role.USER, Role.TOOL)
        or message.run_id is not None
        or message.conversation_id != head.conversation_id
    ):
        return _refuse(head, RefusalCode.INVALID, detail="an input is a user or tool message without a run")
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
    return next((run for run in head.queued if run.coalescable), None)


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
    )
    new_run = NewRun(
        id=run.id,
        assistant_message_id=run.assistant_message_id,
        admission_order=order,
        queue_priority=QueuePriority.INTERRUPT_NEXT if urgent else None,
        context=command.context,
    )
    grown = head.model_copy(update={"order": order, "runs": _sorted((*head.runs, run))})
    return _admit(grown, command, run, _admission(command, run, run_record=new_run), now)


def _join(head: LaneHead, command: Accept, target: LaneRun, now: datetime) -> Transition:
    run = target.model_copy(
        update={
            "input_ids": (*target.input_ids, command.message.id),
            "offered": target.offered + _offer(command),
            "revision": target.revision + 1,
        }
    )
    return _admit(_with_run(head, run), command, run, _admission(command, run, run_record=None), now)


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
            "receipts_complete": head.receipts_complete and len(kept) == len(receipts),
        }
    )
    return _apply(named, MutationKind.ACCEPT, effect, now, run.id, coalesced=effect.run is None)


def pack_receipt(receipt: Receipt, version: int) -> HeadReceipt:
    """Pack a receipt for the head; ids that follow from the key are left out."""
    derived = ids_for_key(receipt.conversation_id, receipt.idempotency_key)
    given = (receipt.input_message_id, receipt.run_id, receipt.assistant_message_id)
    packed = ("" if mine == theirs else mine for mine, theirs in zip(given, derived, strict=True))
    return HeadReceipt(receipt.idempotency_key, receipt.content_digest, receipt.policy.value, version, *packed)


# --- the live run -------------------------------------------------------------------------------


def _acquire(head: LaneHead, command: Acquire, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return _refuse(head, RefusalCode.NOT_FOUND)
    if run.state is not RunState.QUEUED:
        return _conflict(head, run)
    if head.live is not None or head.queued[0].id != run.id:
        return _refuse(head, RefusalCode.BLOCKED, run)
    started = run.model_copy(
        update={
            "state": RunState.RUNNING,
            "started": True,
            "coalescable": False,
            "offered": (),
            "token": run.token + 1,
            "revision": run.revision + 1,
            "abort": None,
        }
    )
    effect = StartRun(
        run_id=run.id, token=started.token, owner_id=command.owner_id, resumes=command.resumes and run.started
    )
    return _apply(_with_run(head, started), MutationKind.ACQUIRE, effect, now, run.id)


def _interrupt(head: LaneHead, command: Interrupt, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return _refuse(head, RefusalCode.NOT_FOUND)
    if run.state is not RunState.RUNNING or not _revision_fits(run, command.expected_revision):
        return _conflict(head, run)
    asked = run.model_copy(
        update={"state": RunState.INTERRUPT_REQUESTED, "abort": command.reason, "revision": run.revision + 1}
    )
    effect = RequestInterrupt(run_id=run.id, reason=command.reason)
    return _apply(_with_run(head, asked), MutationKind.INTERRUPT, effect, now, run.id)


def _settle(head: LaneHead, command: Settle, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return _refuse(head, RefusalCode.NOT_FOUND)
    problem = _settlement_problem(run, command)
    if problem:
        return _refuse(head, RefusalCode.INVALID, run, detail=problem)
    if not run.state.is_live or run.token != command.token:
        return _conflict(head, run)
    absorbed = tuple(entry for entry in command.absorb if _absorbable(head, entry))
    effect = SettleRun(
        run_id=run.id,
        reason=command.reason,
        policy_name=command.policy_name,
        control=command.control,
        failure=command.failure,
        absorbed=absorbed,
    )
    return _apply(_without(head, run, absorbed), MutationKind.TERMINAL, effect, now, run.id)


def _settlement_problem(run: LaneRun, command: Settle) -> str:
    if command.reason in (TerminalReason.ABSORBED, TerminalReason.ABANDONED):
        return f"{command.reason} is not an ending of a live run"
    if (command.policy_name is not None) is not (command.reason is TerminalReason.POLICY_STOP):
        return "a policy name stands exactly on policy_stop"
    if command.absorb and ENDINGS[command.reason].state is not RunState.COMPLETED:
        return "only a completed run absorbs"
    named = [entry.run_id for entry in command.absorb]
    if len(set(named)) != len(named) or run.id in named:
        return "a run is absorbed once, and never by itself"
    return ""


def _absorbable(head: LaneHead, entry: Absorption) -> bool:
    """All of a successor or none of it: it still waits, and its inputs are exactly those that were answered."""
    run = head.run(entry.run_id)
    return run is not None and run.state is RunState.QUEUED and run.input_ids == entry.input_ids


def _without(head: LaneHead, run: LaneRun, absorbed: tuple[Absorption, ...]) -> LaneHead:
    gone = {run.id, *(entry.run_id for entry in absorbed)}
    answers = {entry.run_id for entry in absorbed}
    return head.model_copy(
        update={
            "runs": tuple(other for other in head.runs if other.id not in gone),
            "receipts": tuple(_redirect(head, receipt, answers, run) for receipt in head.receipts),
        }
    )


def _redirect(head: LaneHead, receipt: HeadReceipt, absorbed: set[str], run: LaneRun) -> HeadReceipt:
    """A duplicate of an absorbed input is answered with the run that absorbed it."""
    assigned = receipt.run_id or ids_for_key(head.conversation_id, receipt.key).run_id
    if assigned not in absorbed:
        return receipt
    return receipt._replace(run_id=run.id, assistant_message_id=run.assistant_message_id)


# --- runs that wait, and runs that are lost -----------------------------------------------------


def _cancel(head: LaneHead, command: Cancel, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return _refuse(head, RefusalCode.NOT_FOUND)
    if run.state is not RunState.QUEUED or not _revision_fits(run, command.expected_revision):
        return _conflict(head, run)
    effect = SettleRun(run_id=run.id, reason=TerminalReason.CANCELLED)
    return _apply(_without(head, run, ()), MutationKind.CANCEL, effect, now, run.id)


def _recover(head: LaneHead, command: Recover, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return _refuse(head, RefusalCode.NOT_FOUND)
    if not _revision_fits(run, command.expected_revision):
        return _conflict(head, run)
    if command.action == "abandon":
        effect = SettleRun(run_id=run.id, reason=TerminalReason.ABANDONED)
        return _apply(_without(head, run, ()), MutationKind.RECOVER, effect, now, run.id)
    if run.state is not RunState.QUEUED and not command.replay_safe:
        return _refuse(head, RefusalCode.UNSAFE, run)
    queued = run.model_copy(update={"state": RunState.QUEUED, "abort": None, "revision": run.revision + 1})
    return _apply(_with_run(head, queued), MutationKind.RECOVER, RequeueRun(run_id=run.id), now, run.id)


# --- the conversation ---------------------------------------------------------------------------


def _compact(head: LaneHead, command: Compact, now: datetime) -> Decision:
    if command.expected_version != head.version:
        return _refuse(head, RefusalCode.CONFLICT)
    summary = command.summary
    reserved = {run.assistant_message_id for run in head.runs}
    if (
        summary.role is not Role.SUMMARY
        or summary.status is not MessageStatus.COMMITTED
        or summary.conversation_id != head.conversation_id
        or summary.id in reserved
    ):
        return _refuse(
            head, RefusalCode.INVALID, detail="a summary is a committed summary message with an id of its own"
        )
    if not command.message_ids or reserved.intersection(command.message_ids):
        return _refuse(head, RefusalCode.INVALID, detail="a range has messages, none of them an answer in the making")
    effect = CompactRange(message_ids=command.message_ids, summary=summary)
    return _apply(head, MutationKind.COMPACT, effect, now)


def _seed(head: LaneHead, command: Seed, now: datetime) -> Decision:
    for message in command.messages:
        if (
            message.role is not Role.USER
            or message.run_id is not None
            or message.conversation_id != head.conversation_id
        ):
            return _refuse(head, RefusalCode.INVALID, detail="a seed is made of unowned user messages")
    if not command.messages:
        return _refuse(head, RefusalCode.INVALID, detail="a seed has messages")
    effect = SeedInputs(seed_key=command.seed_key, messages=command.messages)
    return _apply(head, MutationKind.SEED, effect, now)


def _purge(head: LaneHead, command: Purge, now: datetime) -> Decision:
    if command.expected_version is not None and command.expected_version != head.version:
        return _refuse(head, RefusalCode.CONFLICT)
    if head.runs:
        return _refuse(head, RefusalCode.ACTIVE, run_ids=tuple(run.id for run in head.runs))
    gone = head.model_copy(update={"purged": True, "receipts": ()})
    return _apply(gone, MutationKind.PURGE, PurgeConversation(), now)


def _note(head: LaneHead, command: Note, now: datetime) -> Decision:
    return _apply(head, MutationKind.NOTE, AppendEvent(kind=command.kind, payload=command.payload), now)


_RULES: dict[type, Callable[[LaneHead, Any, datetime], Decision]] = {
    Accept: _accept,
    Acquire: _acquire,
    Interrupt: _interrupt,
    Cancel: _cancel,
    Recover: _recover,
    Settle: _settle,
    Compact: _compact,
    Seed: _seed,
    Purge: _purge,
    Note: _note,
}


# --- building decisions -------------------------------------------------------------------------


def _apply(
    head: LaneHead,
    kind: MutationKind,
    effect: Effect,
    now: datetime,
    run_id: str | None = None,
    *,
    coalesced: bool = False,
) -> Transition:
    """Count the mutation. The store's version may be ahead by what activities wrote: see `observe`."""
    moved = 0 if kind is MutationKind.NOTE else 1
    counted = head.model_copy(update={"seq": head.seq + 1, "version": head.version + moved})
    mutation = Mutation(seq=counted.seq, kind=kind, at=now, effect=effect)
    return Transition(head=counted, mutation=mutation, run_id=run_id, coalesced=coalesced)


def _refuse(
    head: LaneHead,
    code: RefusalCode,
    run: LaneRun | None = None,
    *,
    run_ids: tuple[str, ...] = (),
    detail: str = "",
) -> Refusal:
    return Refusal(
        code=code,
        head_version=head.version,
        run_revision=None if run is None else run.revision,
        run_ids=run_ids or (() if run is None else (run.id,)),
        detail=detail,
    )


def _conflict(head: LaneHead, run: LaneRun) -> Refusal:
    return _refuse(head, RefusalCode.CONFLICT, run)


def _revision_fits(run: LaneRun, expected: int | None) -> bool:
    return expected is None or expected == run.revision


def _with_run(head: LaneHead, run: LaneRun) -> LaneHead:
    return head.model_copy(update={"runs": _sorted(tuple(run if old.id == run.id else old for old in head.runs))})


def _sorted(runs: tuple[LaneRun, ...]) -> tuple[LaneRun, ...]:
    return tuple(sorted(runs, key=lambda run: (not run.started, not run.urgent, run.order)))


# --- what the store and the boundaries tell ------------------------------------------------------


def observe(head: LaneHead, version: int, revisions: dict[str, int]) -> LaneHead:
    """Take over the counters that the store gave: activities write too, and only the store counts them.

    The caller adds what it has decided since and the store has not seen yet.
    """
    runs = tuple(
        run.model_copy(update={"revision": revisions[run.id]}) if run.id in revisions else run for run in head.runs
    )
    return head.model_copy(update={"version": version, "runs": runs})


def take_offers(head: LaneHead, live_run_id: str) -> tuple[LaneHead, tuple[tuple[str, str], ...]]:
    """Take every injected input that waits, as (run id, input id) in queue order, except the live run's own."""
    taken = tuple((run.id, input_id) for run in head.queued if run.id != live_run_id for input_id in run.offered)
    if not taken:
        return head, ()
    runs = tuple(
        run.model_copy(update={"offered": ()}) if run.offered and run.id != live_run_id else run for run in head.runs
    )
    return head.model_copy(update={"runs": runs}), taken


def absorptions(head: LaneHead, taken: tuple[tuple[str, str], ...]) -> tuple[Absorption, ...]:
    """Turn what the live run took into claims on its successors, in the order taken.

    Claims on a run that no longer waits, or was only taken in part, are left out; the reducer judges the
    rest again.
    """
    by_run: dict[str, list[str]] = {}
    for run_id, input_id in taken:
        by_run.setdefault(run_id, []).append(input_id)
    claims = (Absorption(run_id=run_id, input_ids=tuple(ids)) for run_id, ids in by_run.items())
    return tuple(claim for claim in claims if _absorbable(head, claim))


def abort_reason(policy: Policy) -> AbortReason | None:
    """What a policy does to the run in flight: the reason to stop it with, or None to let it be."""
    if policy is Policy.SUPERSEDE:
        return AbortReason.SUPERSEDE
    if policy in (Policy.INTERRUPT, Policy.INTERRUPT_NEXT):
        return AbortReason.INTERRUPT
    return None
