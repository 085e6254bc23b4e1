"""The commit protocol: a batch of mutations in one transaction, each applied once, in the order of its seq.

What the store has seen is answered from its own rows, as the first time; what is new is applied. A
repeat may overlap: the lane that did not hear an answer sends the batch again, perhaps a longer one.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from sqlalchemy import Connection, Select, select

from turnlane.records.base import JsonObject
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.ledger import LedgerKind
from turnlane.records.mutations import (
    AdmitInput,
    AppendEvent,
    ChooseModel,
    CommitBatch,
    CommitOutcome,
    CommitReply,
    CompactRange,
    Effect,
    Mutation,
    MutationResult,
    PurgeConversation,
    RequestInterrupt,
    RequeueRun,
    SeedInputs,
    SettleRun,
    StartRun,
)
from turnlane.store.curate import choose_model, compact, erase, seed
from turnlane.store.delivery import load_notes
from turnlane.store.effects import Change, admit, request_interrupt, requeue, start
from turnlane.store.payloads import Committed
from turnlane.store.settle import find_own_end, settle
from turnlane.store.statements import insert_rows, new_row
from turnlane.store.tables import LEDGER, NO_CHANGE, TOMBSTONE, NoChangeRow, TombstoneRow
from turnlane.store.work import Work, find_conversation

BRIEF_COUNT = 8


class Answer(NamedTuple):
    """What a mutation was answered, and the digest that tells it from another at its place."""

    digest: str
    result: MutationResult


ANSWERS: TypeAdapter[tuple[Answer, ...]] = TypeAdapter(tuple[Answer, ...])


def is_brief(batch: CommitBatch) -> bool:
    """Whether a batch is the few small changes of a usual turn: what it takes does not grow with the conversation."""
    return len(batch.mutations) <= BRIEF_COUNT and all(_is_small(mutation.effect) for mutation in batch.mutations)


def _is_small(effect: Effect) -> bool:
    if isinstance(effect, AdmitInput):
        return effect.blob is None
    if isinstance(effect, SettleRun):
        return not effect.absorbed
    return isinstance(effect, StartRun | RequestInterrupt | AppendEvent)


def commit(connection: Connection, batch: CommitBatch, now: datetime) -> Committed:
    """Apply a batch, or say why it is not this lane's to apply."""
    head = find_conversation(connection, batch.conversation_id)
    if head is None:
        return _after_purge(connection, batch)
    if head.epoch != batch.epoch:
        return _refused(CommitOutcome.SUPERSEDED)
    work = Work(connection, head)
    seen, new = _split(batch, head.lane_seq)
    results = _repeat(work, seen)
    if results is None:
        return _refused(CommitOutcome.DIVERGED)
    if new and isinstance(new[-1].effect, PurgeConversation):
        return _purge(work, batch, results, new, now)
    results += [_apply(work, batch, mutation) for mutation in new]
    if new:
        work.flush(now)
    return Committed(reply=CommitReply(outcome=CommitOutcome.APPLIED, results=tuple(results)), events=work.events())


def _refused(outcome: CommitOutcome) -> Committed:
    return Committed(reply=CommitReply(outcome=outcome))


def _split(batch: CommitBatch, lane_seq: int) -> tuple[list[Mutation], list[Mutation]]:
    """Part a batch into what the store has seen and what is new; refuse holes and what follows a purge."""
    seqs = [mutation.seq for mutation in batch.mutations]
    if seqs != list(range(seqs[0], seqs[0] + len(seqs))) or not 1 <= seqs[0] <= lane_seq + 1:
        raise StoreIntegrityError("the batch leaves a gap", conversation_id=batch.conversation_id, lane_seq=lane_seq)
    if any(isinstance(mutation.effect, PurgeConversation) for mutation in batch.mutations[:-1]):
        raise StoreIntegrityError("nothing follows a purge", conversation_id=batch.conversation_id)
    known = max(0, lane_seq - seqs[0] + 1)
    return list(batch.mutations[:known]), list(batch.mutations[known:])


def _repeat(work: Work, seen: list[Mutation]) -> list[MutationResult] | None:
    """Answer mutations from their rows, and tell their news again; None if another one stands at a place."""
    if not seen:
        return []
    answers = _answers(work, seen[0].seq, seen[-1].seq)
    given = [answers.get(mutation.seq) for mutation in seen]
    if any(answer is None or answer.digest != mutation.digest for answer, mutation in zip(given, seen, strict=True)):
        return None
    return [answer.result for answer in given if answer is not None]


def _answers(work: Work, first: int, last: int) -> dict[int, Answer]:
    ledger = select(LEDGER).where(
        LEDGER.c.conversation_id == work.conversation_id, LEDGER.c.mutation_seq.between(first, last)
    )
    answers: dict[int, Answer] = {}
    for row in work.connection.execute(ledger.order_by(LEDGER.c.seq)):
        revisions = json.loads(row.revisions)
        result = MutationResult(seq=row.mutation_seq, version=row.version, ledger_seq=row.seq, revisions=revisions)
        answers[row.mutation_seq] = Answer(row.digest, result)
        work.tell(load_notes(row.notes), row.version, row.occurred_at)
    for row in work.connection.execute(_no_changes(work, first, last)) if len(answers) <= last - first else ():
        result = MutationResult(seq=row.mutation_seq, version=row.version, ledger_seq=row.ledger_seq)
        answers[row.mutation_seq] = Answer(row.digest, result)
    return answers


def _apply(work: Work, batch: CommitBatch, mutation: Mutation) -> MutationResult:
    """Apply one mutation and append its ledger event."""
    work.head.lane_seq = mutation.seq
    effect = mutation.effect
    if isinstance(effect, AppendEvent):
        entry = work.record(effect.kind, mutation.at, effect.payload)
        runs: dict[str, int] = {}
    else:
        change = _change(work, mutation)
        if change is None:
            return _unchanged(work, mutation)
        payload: JsonObject = {"type": mutation.kind.value, "effect": change.described}
        entry = work.record(LedgerKind.TRANSITION, mutation.at, payload, notes=change.notes)
        runs = {run.id: run.revision for run in change.runs}
    entry.mutation_seq, entry.digest, entry.epoch = mutation.seq, mutation.digest, batch.epoch
    entry.revisions = json.dumps(runs)
    return MutationResult(seq=mutation.seq, version=entry.version, ledger_seq=entry.seq, revisions=runs)


def _change(work: Work, mutation: Mutation) -> Change | None:
    """Do what a mutation says; None if it changes nothing."""
    effect, at = mutation.effect, mutation.at
    if isinstance(effect, SeedInputs):
        return seed(work, effect, at)
    if _comes_late(work, effect):
        return None
    work.advance()
    match effect:
        case AdmitInput():
            return admit(work, effect, at)
        case StartRun():
            return start(work, effect, at)
        case RequestInterrupt():
            return request_interrupt(work, effect, at)
        case RequeueRun():
            return requeue(work, effect, at)
        case SettleRun():
            return settle(work, effect, at)
        case CompactRange():
            return compact(work, effect, at)
        case ChooseModel():
            return choose_model(work, effect)
        case _:
            raise StoreIntegrityError("an effect that this release does not know", kind=mutation.kind.value)


def _comes_late(work: Work, effect: Effect) -> bool:
    """Whether the run's last step has ended it while this was on its way."""
    if not isinstance(effect, RequestInterrupt | SettleRun):
        return False
    return find_own_end(work.connection, work.run(effect.run_id)) is not None


def _no_changes(work: Work, first: int, last: int) -> Select[Any]:
    where = (NO_CHANGE.c.conversation_id == work.conversation_id, NO_CHANGE.c.mutation_seq.between(first, last))
    return select(NO_CHANGE).where(*where)


def _unchanged(work: Work, mutation: Mutation) -> MutationResult:
    head = work.head
    row = new_row(
        NoChangeRow,
        conversation_id=head.id,
        mutation_seq=mutation.seq,
        digest=mutation.digest,
        version=head.version,
        ledger_seq=head.ledger_seq,
    )
    insert_rows(work.connection, NoChangeRow, row)
    return MutationResult(seq=mutation.seq, version=head.version, ledger_seq=head.ledger_seq)


def _purge(
    work: Work, batch: CommitBatch, results: list[MutationResult], new: list[Mutation], now: datetime
) -> Committed:
    """Apply what precedes the purge, erase the conversation, and leave the answers on its tombstone."""
    results += [_apply(work, batch, mutation) for mutation in new[:-1]]
    results.append(MutationResult(seq=new[-1].seq, version=work.advance(), ledger_seq=work.head.ledger_seq))
    erase(work)
    answers = tuple(Answer(mutation.digest, result) for mutation, result in zip(batch.mutations, results, strict=True))
    stone = new_row(
        TombstoneRow,
        conversation_id=batch.conversation_id,
        epoch=batch.epoch,
        answers=ANSWERS.dump_json(answers).decode(),
        purged_at=now,
    )
    insert_rows(work.connection, TombstoneRow, stone)
    return Committed(reply=CommitReply(outcome=CommitOutcome.APPLIED, results=tuple(results)))


def _after_purge(connection: Connection, batch: CommitBatch) -> Committed:
    """Answer for a conversation without a row: the purging batch as the first time, any other by what it is."""
    stone = connection.execute(select(TOMBSTONE).where(TOMBSTONE.c.conversation_id == batch.conversation_id)).first()
    if stone is None:
        return _refused(CommitOutcome.SUPERSEDED)
    answers = {answer.result.seq: answer for answer in ANSWERS.validate_json(stone.answers)}
    given = [answers.get(mutation.seq) for mutation in batch.mutations]
    repeated = all(
        answer is not None and answer.digest == mutation.digest
        for answer, mutation in zip(given, batch.mutations, strict=True)
    )
    if stone.epoch != batch.epoch or not repeated:
        return _refused(CommitOutcome.PURGED)
    results = tuple(answer.result for answer in given if answer is not None)
    return Committed(reply=CommitReply(outcome=CommitOutcome.APPLIED, results=results))
