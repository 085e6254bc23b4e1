"""The reducer: what a command does to a lane. Pure and total; refusals are values.

`reduce(head, command, now)` looks at nothing but its arguments and answers with a `Transition` (the new
head and the one mutation that makes it durable), a `Refusal`, or, for an input admitted before, a
`Duplicate`. It never raises for anything a caller may send.

Order of the queue: a run that has started stands before one that has not, an urgent one
(`interrupt-next`) before ordinary ones, and then the admission counter decides, never a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from turnlane.records.commands import (
    Accept,
    Acquire,
    Cancel,
    Command,
    Compact,
    Interrupt,
    Note,
    Purge,
    Recover,
    RefusalCode,
    Seed,
    SetModel,
    Settle,
)
from turnlane.records.lane import HeadReceipt, LaneHead, LaneRun, ids_for_key
from turnlane.records.messages import MessageStatus, Role
from turnlane.records.mutations import (
    Absorption,
    AppendEvent,
    ChooseModel,
    CompactRange,
    MutationKind,
    PurgeConversation,
    RequestInterrupt,
    RequeueRun,
    SeedInputs,
    SettleRun,
    StartRun,
)
from turnlane.records.runs import ENDINGS, RunState, TerminalReason
from turnlane.workflows.accepting import accept
from turnlane.workflows.decisions import (
    Decision,
    apply,
    conflict,
    refuse,
    revision_fits,
    with_run,
)
from turnlane.workflows.offers import is_absorbable

PENDING_APPROVALS = 128
"""How many approvals that wait a head names, so that it stays small; the store has them all."""


def reduce(head: LaneHead, command: Command, now: datetime) -> Decision:
    """Decide one command. See the module for the rules."""
    if head.purged:
        return refuse(head, RefusalCode.PURGED)
    return _RULES[type(command)](head, command, now)


# --- the live run -------------------------------------------------------------------------------


def _acquire(head: LaneHead, command: Acquire, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return refuse(head, RefusalCode.NOT_FOUND)
    if run.state is not RunState.QUEUED:
        return conflict(head, run)
    if head.live is not None or head.queued[0].id != run.id:
        return refuse(head, RefusalCode.BLOCKED, run)
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
    return apply(with_run(head, started), MutationKind.ACQUIRE, effect, now, run.id)


def _interrupt(head: LaneHead, command: Interrupt, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return refuse(head, RefusalCode.NOT_FOUND)
    if run.state is not RunState.RUNNING or not revision_fits(run, command.expected_revision):
        return conflict(head, run)
    asked = run.model_copy(
        update={"state": RunState.INTERRUPT_REQUESTED, "abort": command.reason, "revision": run.revision + 1}
    )
    effect = RequestInterrupt(run_id=run.id, reason=command.reason)
    return apply(with_run(head, asked), MutationKind.INTERRUPT, effect, now, run.id)


def _settle(head: LaneHead, command: Settle, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return refuse(head, RefusalCode.NOT_FOUND)
    problem = _settlement_problem(run, command)
    if problem:
        return refuse(head, RefusalCode.INVALID, run, detail=problem)
    if not run.state.is_live or run.token != command.token:
        return conflict(head, run)
    absorbed = tuple(entry for entry in command.absorb if is_absorbable(head, entry))
    effect = SettleRun(
        run_id=run.id,
        reason=command.reason,
        policy_name=command.policy_name,
        control=command.control,
        failure=command.failure,
        absorbed=absorbed,
        answers=bool(run.answers),
    )
    left = _without(head, run, absorbed)
    if command.asked and ENDINGS[command.reason].state is RunState.COMPLETED:
        left = left.model_copy(update={"approvals": (*left.approvals, *command.asked)[-PENDING_APPROVALS:]})
    return apply(left, MutationKind.TERMINAL, effect, now, run.id)


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


def _without(head: LaneHead, run: LaneRun, absorbed: tuple[Absorption, ...]) -> LaneHead:
    gone = {run.id, *(entry.run_id for entry in absorbed)}
    answers = {entry.run_id for entry in absorbed}
    # Deriving the run of every receipt costs milliseconds, and a usual end absorbs nothing.
    receipts = tuple(_redirect(head, receipt, answers, run) for receipt in head.receipts) if answers else head.receipts
    return head.model_copy(
        update={"runs": tuple(other for other in head.runs if other.id not in gone), "receipts": receipts}
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
        return refuse(head, RefusalCode.NOT_FOUND)
    if run.state is not RunState.QUEUED or not revision_fits(run, command.expected_revision):
        return conflict(head, run)
    effect = SettleRun(run_id=run.id, reason=TerminalReason.CANCELLED, answers=bool(run.answers))
    return apply(_without(head, run, ()), MutationKind.CANCEL, effect, now, run.id)


def _recover(head: LaneHead, command: Recover, now: datetime) -> Decision:
    run = head.run(command.run_id)
    if run is None:
        return refuse(head, RefusalCode.NOT_FOUND)
    if not revision_fits(run, command.expected_revision):
        return conflict(head, run)
    if command.action == "abandon":
        effect = SettleRun(run_id=run.id, reason=TerminalReason.ABANDONED, answers=bool(run.answers))
        return apply(_without(head, run, ()), MutationKind.RECOVER, effect, now, run.id)
    if run.state is not RunState.QUEUED and not command.replay_safe:
        return refuse(head, RefusalCode.UNSAFE, run)
    queued = run.model_copy(update={"state": RunState.QUEUED, "abort": None, "revision": run.revision + 1})
    return apply(with_run(head, queued), MutationKind.RECOVER, RequeueRun(run_id=run.id), now, run.id)


# --- the conversation ---------------------------------------------------------------------------


def _compact(head: LaneHead, command: Compact, now: datetime) -> Decision:
    if command.expected_version != head.version:
        return refuse(head, RefusalCode.CONFLICT)
    summary = command.summary
    answers = {run.assistant_message_id for run in head.runs}
    taken = answers.union(command.message_ids, *(run.input_ids for run in head.runs))
    if (
        summary.role is not Role.SUMMARY
        or summary.status is not MessageStatus.COMMITTED
        or summary.conversation_id != head.conversation_id
        or summary.id in taken
    ):
        return refuse(
            head, RefusalCode.INVALID, detail="a summary is a committed summary message with an id of its own"
        )
    if bool(command.message_ids) is (command.blob is not None) or answers.intersection(command.message_ids):
        return refuse(head, RefusalCode.INVALID, detail="a range has messages, none of them an answer in the making")
    effect = CompactRange(message_ids=command.message_ids, summary=summary, blob=command.blob)
    return apply(head, MutationKind.COMPACT, effect, now)


def _seed(head: LaneHead, command: Seed, now: datetime) -> Decision:
    for message in command.messages:
        if (
            message.role is not Role.USER
            or message.run_id is not None
            or message.conversation_id != head.conversation_id
        ):
            return refuse(head, RefusalCode.INVALID, detail="a seed is made of unowned user messages")
    ids = [message.id for message in command.messages]
    if not ids or len(set(ids)) < len(ids) or any(run.assistant_message_id in ids for run in head.runs):
        return refuse(head, RefusalCode.INVALID, detail="a seed has messages, each with an id of its own")
    effect = SeedInputs(seed_key=command.seed_key, messages=command.messages)
    return apply(head, MutationKind.SEED, effect, now)


def _purge(head: LaneHead, command: Purge, now: datetime) -> Decision:
    if command.expected_version is not None and command.expected_version != head.version:
        return refuse(head, RefusalCode.CONFLICT)
    if head.runs:
        return refuse(head, RefusalCode.ACTIVE, run_ids=tuple(run.id for run in head.runs))
    gone = head.model_copy(update={"purged": True, "receipts": (), "approvals": ()})
    return apply(gone, MutationKind.PURGE, PurgeConversation(), now)


def _set_model(head: LaneHead, command: SetModel, now: datetime) -> Decision:
    chosen = head.model_copy(update={"model": command.model})
    return apply(chosen, MutationKind.MODEL, ChooseModel(model=command.model), now)


def _note(head: LaneHead, command: Note, now: datetime) -> Decision:
    return apply(head, MutationKind.NOTE, AppendEvent(kind=command.kind, payload=command.payload), now)


_RULES: dict[type, Callable[[LaneHead, Any, datetime], Decision]] = {
    Accept: accept,
    Acquire: _acquire,
    Interrupt: _interrupt,
    Cancel: _cancel,
    Recover: _recover,
    Settle: _settle,
    Compact: _compact,
    Seed: _seed,
    Purge: _purge,
    SetModel: _set_model,
    Note: _note,
}
