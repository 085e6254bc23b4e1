"""Fenced writes of a step: they land only while the writer's fence is the one in force.

A fence is (epoch, run, token, step, attempt). The epoch and the token must be the stored ones. A new
attempt moves step and attempt forward, never back; whoever writes under an older one is stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete

from turnlane.records.approvals import ApprovalState
from turnlane.records.base import JsonObject
from turnlane.records.errors import StaleFenceError
from turnlane.records.events import Metrics
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import MessageStatus, Part, TextPart
from turnlane.records.mutations import Landing, MutationKind, SettleRun
from turnlane.records.runs import Operation, OperationPhase, RunState, TerminalReason
from turnlane.records.steps import Fence
from turnlane.records.usage import UNREPORTED, Usage, add_usage, stated
from turnlane.store.content import CALL, MODEL
from turnlane.store.curate import plant
from turnlane.store.delivery import CheckpointNote, Note, OperationNote, load_notes
from turnlane.store.describe import describe_parts
from turnlane.store.payloads import NewCall, StepFinish, StepStart, Written
from turnlane.store.rows import dump_parts, dump_usage, load_usage
from turnlane.store.settle import find_own_end, settle
from turnlane.store.spending import run_spent
from turnlane.store.statements import change_row, find_row, insert_rows, new_row
from turnlane.store.tables import SEGMENT, ConversationRow, MessageRow, RunRow, SegmentRow
from turnlane.store.work import Work, find_conversation, refuse_purged

ONLY_RUNNING = frozenset({RunState.RUNNING})
ALSO_ASKED_TO_STOP = frozenset({RunState.RUNNING, RunState.INTERRUPT_REQUESTED})
ALSO_SETTLED = ALSO_ASKED_TO_STOP | {RunState.COMPLETED}

BRIEF_SIZE = 64 * 1024
BRIEF_PARTS = 8

STALE_RUN = "stale-run"
RUN_INTERRUPTED = "run-interrupted"


class Fenced(NamedTuple):
    """A write whose fence holds: its transaction's work and the run."""

    work: Work
    run: RunRow


def stale(fence: Fence, reason: str = STALE_RUN) -> StaleFenceError:
    """Return the error that says why a fence does not hold."""
    return StaleFenceError(
        "the fence is stale", reason=reason, run_id=fence.run_id, token=fence.token, step=fence.step,
        attempt=fence.attempt,
    )  # fmt: skip


def check_run(connection: Connection, fence: Fence, assistant_id: str, states: frozenset[RunState]) -> Fenced:
    """Check epoch, token, message and state of a fence; step and attempt are the caller's to check."""
    head = find_conversation(connection, fence.conversation_id)
    if head is None:
        refuse_purged(connection, fence.conversation_id)
        raise stale(fence)
    found = find_row(connection, RunRow, fence.conversation_id, fence.run_id)
    if found is None or head.epoch != fence.epoch:
        raise stale(fence)
    work = Work(connection, head)
    run = work.keep(found)
    if run.fencing_token != fence.token or run.assistant_message_id != assistant_id:
        raise stale(fence)
    if run.state not in states:
        raise stale(fence, RUN_INTERRUPTED if run.state == RunState.INTERRUPT_REQUESTED else STALE_RUN)
    return Fenced(work, run)


def check_attempt(connection: Connection, fence: Fence, assistant_id: str, states: frozenset[RunState]) -> Fenced:
    """Check the whole fence: besides `check_run`, the attempt must be the one that began last."""
    fenced = check_run(connection, fence, assistant_id, states)
    if (fenced.run.fence_step, fenced.run.fence_attempt) != (fence.step, fence.attempt):
        raise stale(fence)
    return fenced


def begin_step(connection: Connection, start: StepStart, now: datetime) -> Written:
    """Make this attempt the current one, before the provider is called. The same attempt again changes nothing."""
    fence = start.fence
    work, run = check_run(connection, fence, start.assistant_message_id, ONLY_RUNNING)
    current = (run.fence_step, run.fence_attempt)
    if (fence.step, fence.attempt) < current:
        raise stale(fence)
    if (fence.step, fence.attempt) == current:
        return unchanged(work, run)
    run.usage = dump_usage(run_spent(run))
    _clear_step(work, run, fence.step)
    run.fence_step, run.fence_attempt, run.attempt_open = fence.step, fence.attempt, True
    run.steps_done = min(run.steps_done, fence.step)
    run.fence_model = start.model
    if start.prepared is not None:
        run.prepared = start.prepared.model_dump_json(exclude_defaults=True)
    if start.seed is not None:
        plant(work, start.seed, now)
    tell_operation(work, run, start.operation, now)
    if start.catalog is not None:
        work.record(LedgerKind.CATALOG_STEP, now, start.catalog)
    work.record(LedgerKind.PROVIDER_REQUEST, now, start.evidence)
    return written(work, run, now)


def _clear_step(work: Work, run: RunRow, step: int) -> None:
    """Leave of this step, and of later ones, an empty model segment."""
    if run.fence_step >= step or run.steps_done > step:
        where = _step_segments(work, run)
        work.connection.execute(delete(SEGMENT).where(*where, SEGMENT.c.step >= step))
    row = new_row(
        SegmentRow,
        conversation_id=work.conversation_id,
        message_id=run.assistant_message_id,
        step=step,
        slot=0,
        kind=MODEL,
        parts="[]",
    )
    insert_rows(work.connection, SegmentRow, row)


def checkpoint(
    connection: Connection,
    fence: Fence,
    assistant_id: str,
    parts: Sequence[Part],
    operation: Operation | None,
    now: datetime,
) -> Written:
    """Replace the draft of this step, and record the operation if one is given."""
    work, run = check_attempt(connection, fence, assistant_id, ONLY_RUNNING)
    if not run.attempt_open:
        raise stale(fence)
    _write_step(work, run, fence.step, tuple(parts))
    touch_message(work, assistant_id, now)
    notes = () if operation is None else (_operation_note(run, operation),)
    draft = describe_parts(assistant_id, MessageStatus.STREAMING, tuple(parts))
    effect: JsonObject = {"step": fence.step, "assistant": draft}
    advance(work, run, now, MutationKind.CHECKPOINT, (*notes, checkpoint_note(run)), effect)
    return written(work, run, now)


def is_brief(finish: StepFinish) -> bool:
    """Whether a step said little: what it takes to store it does not grow with the conversation."""
    sizes = (len(part.text) if isinstance(part, TextPart) else BRIEF_SIZE for part in finish.parts)
    return not finish.calls and len(finish.parts) <= BRIEF_PARTS and sum(sizes) < BRIEF_SIZE


def finish_step(connection: Connection, finish: StepFinish, now: datetime) -> Written:
    """End this attempt: its output, its calls, what it spent, who answered; and the run, where it settles it.

    Repeated, it changes nothing.
    """
    fence = finish.fence
    states = ALSO_SETTLED if finish.settles else ALSO_ASKED_TO_STOP
    work, run = check_attempt(connection, fence, finish.assistant_message_id, states)
    if not run.attempt_open:
        return _settled(work, run) or unchanged(work, run)
    settles = finish.settles and run.state == RunState.RUNNING
    parts = finish.parts if finish.keep_parts else ()
    _write_step(work, run, fence.step, parts)
    if not settles:
        touch_message(work, run.assistant_message_id, now)
    if finish.keep_parts:
        # What a step said that failed or was cut is kept, but a lane that is lost behind it makes it again.
        run.steps_done = fence.step + (finish.operation.phase is OperationPhase.COMPLETED)
        _insert_calls(work, run, fence.step, finish.calls)
    run.attempt_open = False
    run.usage = dump_usage(add_usage(load_usage(run.usage), _spent(finish)))
    notes = (_operation_note(run, finish.operation), checkpoint_note(run))
    draft = describe_parts(finish.assistant_message_id, MessageStatus.STREAMING, parts)
    payload: JsonObject = {"step": fence.step, "assistant": draft, "operation": _operation_json(finish.operation)}
    advance(work, run, now, MutationKind.CHECKPOINT, notes, payload)
    work.record(LedgerKind.PROVIDER_RESPONSE, now, finish.evidence)
    if settles:
        _settle(work, run, now)
    return written(work, run, now)


def _settle(work: Work, run: RunRow, now: datetime) -> None:
    """End the run as its lane would: a request to stop that the store has not heard of comes too late."""
    work.advance()
    change = settle(work, SettleRun(run_id=run.id, reason=TerminalReason.SUCCESS), now)
    payload: JsonObject = {"type": MutationKind.TERMINAL.value, "effect": change.described}
    entry = work.record(LedgerKind.TRANSITION, now, payload, notes=change.notes)
    entry.once_key = run.id


def find_settled(connection: Connection, fence: Fence, assistant_id: str) -> Written | None:
    """Return what was told of the end of a run that this step ended, in whichever attempt; None if it did not."""
    head = find_row(connection, ConversationRow, fence.conversation_id)
    run = find_row(connection, RunRow, fence.conversation_id, fence.run_id)
    if head is None or run is None or head.epoch != fence.epoch:
        return None
    named = (run.fencing_token, run.fence_step, run.assistant_message_id)
    return _settled(Work(connection, head), run) if named == (fence.token, fence.step, assistant_id) else None


def _settled(work: Work, run: RunRow) -> Written | None:
    """Tell the end of a run again, if one of its steps wrote it."""
    entry = find_own_end(work.connection, run)
    if entry is None:
        return None
    work.tell(load_notes(entry.notes), entry.version, entry.occurred_at)
    landing = Landing(entry.version, run.revision)
    return Written(version=entry.version, revision=run.revision, events=work.events(), settled=landing)


def _spent(finish: StepFinish) -> Usage | None:
    """What the attempt adds to its run. A call that was refused before it was answered cost nothing."""
    return finish.usage or (None if finish.unbilled else UNREPORTED)


def _step_segments(work: Work, run: RunRow) -> tuple[ColumnElement[bool], ...]:
    return (SEGMENT.c.conversation_id == work.conversation_id, SEGMENT.c.message_id == run.assistant_message_id)


def _write_step(work: Work, run: RunRow, step: int, parts: tuple[Part, ...]) -> None:
    place = (work.conversation_id, run.assistant_message_id, step, 0)
    change_row(work.connection, SegmentRow, place, parts=dump_parts(parts))


def touch_message(work: Work, message_id: str, now: datetime) -> None:
    """Note on a message that its content changed."""
    change_row(work.connection, MessageRow, (work.conversation_id, message_id), updated_at=now)


def _insert_calls(work: Work, run: RunRow, step: int, calls: Sequence[NewCall]) -> None:
    rows = [
        new_row(
            SegmentRow,
            conversation_id=work.conversation_id,
            message_id=run.assistant_message_id,
            step=step,
            slot=call.slot,
            kind=CALL,
            call_id=call.call_id,
            tool_name=call.tool_name,
            approval_id=call.approval_id,
            approval=None if call.approval_id is None else ApprovalState.PENDING,
            approval_expires_at=call.approval_expires_at,
            parts=None if call.result is None else dump_parts([call.result]),
        )
        for call in calls
    ]
    insert_rows(work.connection, SegmentRow, *rows)


def tell_operation(work: Work, run: RunRow, operation: Operation, now: datetime) -> None:
    """Make an operation the run's last one, as a transition of its own."""
    note = _operation_note(run, operation)
    advance(work, run, now, MutationKind.OPERATION, (note,), {"operation": _operation_json(operation)})


def _operation_note(run: RunRow, operation: Operation) -> OperationNote:
    """Make an operation the run's last one, and return what watchers are told of it."""
    run.last_operation = operation.model_dump_json()
    run.first_output_at = run.first_output_at or operation.first_output_at
    return OperationNote(run_id=run.id, operation=operation)


def _operation_json(operation: Operation) -> JsonObject:
    return operation.model_dump(mode="json", exclude_none=True)


def checkpoint_note(run: RunRow, message_id: str | None = None) -> CheckpointNote:
    """Return what watchers are told of the draft, or of the earlier answer that the run finishes a call of: with
    what the run has spent so far, stated in full."""
    metrics = Metrics(partial=True, usage=stated(load_usage(run.usage)))
    return CheckpointNote(run_id=run.id, message_id=message_id or run.assistant_message_id, metrics=metrics)


def advance(
    work: Work, run: RunRow, now: datetime, kind: MutationKind, notes: Sequence[Note], effect: JsonObject
) -> None:
    """Move version and revision by one and append the transition; a draft it tells of is the current one."""
    work.advance()
    work.touch(run, now)
    payload: JsonObject = {"type": kind.value, "effect": {"run_id": run.id, **effect}}
    entry = work.record(LedgerKind.TRANSITION, now, payload, notes=notes)
    if any(isinstance(note, CheckpointNote) for note in notes):
        run.checkpoint_seq = entry.seq


def written(work: Work, run: RunRow, now: datetime) -> Written:
    """Write everything back and say where it landed."""
    work.flush(now)
    settled = Landing(work.head.version, run.revision) if run.state == RunState.COMPLETED else None
    return Written(version=work.head.version, revision=run.revision, events=work.events(), settled=settled)


def unchanged(work: Work, run: RunRow) -> Written:
    """Say where the run stands, for a repeat that has nothing left to write."""
    return Written(version=work.head.version, revision=run.revision)
