"""Effects on runs: what each kind of mutation writes. The reducer decided; here it is checked and done.

A run in a state that the reducer could not have meant is an integrity error: the transaction is rolled
back, and the lane learns that its head and the store disagree.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError
from sqlalchemy import bindparam, delete, select, union_all

from turnlane.records.admissions import BlobRef
from turnlane.records.base import JsonObject, elapsed_ms
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.messages import Message, MessageStatus, Part, Role
from turnlane.records.mutations import AdmitInput, NewRun, RequestInterrupt, RequeueRun, StartRun
from turnlane.records.runs import RunState
from turnlane.store.approvals import take_answers
from turnlane.store.content import CONTENT
from turnlane.store.delivery import AdmissionNote, Note, RunStateNote
from turnlane.store.describe import describe_effect
from turnlane.store.entries import unfinished_calls
from turnlane.store.open_calls import close_calls, lost_result
from turnlane.store.order import STRIDE, block_of, move_block
from turnlane.store.prepared import Prepared
from turnlane.store.rows import (
    PARTS,
    dump_ids,
    dump_object,
    dump_parts,
    load_ids,
    run_record,
)
from turnlane.store.statements import change_row, find_row, insert_rows, new_row
from turnlane.store.tables import BLOB, MESSAGE, RUN, SEGMENT, AdmissionRow, BlobRow, MessageRow, RunRow, SegmentRow
from turnlane.store.work import Work

_CROSSING = Prepared(
    union_all(
        select(RUN.c.id).where(
            RUN.c.conversation_id == bindparam("conversation_id"), RUN.c.assistant_message_id == bindparam("input_id")
        ),
        select(MESSAGE.c.id).where(
            MESSAGE.c.conversation_id == bindparam("conversation_id"), MESSAGE.c.id == bindparam("assistant_id")
        ),
    )
)


class Change(NamedTuple):
    """What an effect did: the runs it touched, what watchers are told, what the ledger says."""

    runs: tuple[RunRow, ...]
    notes: tuple[Note, ...]
    described: JsonObject


def require(condition: bool, message: str, run: RunRow) -> None:
    """Raise an integrity error that names the run unless the condition holds."""
    if not condition:
        raise StoreIntegrityError(message, run_id=run.id, state=run.state, revision=run.revision)


def state_note(run: RunRow) -> RunStateNote:
    return RunStateNote(run_id=run.id, state=RunState(run.state))


def insert_message(work: Work, message: Message, position: int, place: int, run_id: str | None) -> None:
    """Insert a message that is whole: an input, a summary or a seed."""
    row = new_row(
        MessageRow,
        conversation_id=work.conversation_id,
        id=message.id,
        run_id=run_id,
        role=message.role,
        status=message.status,
        position=position,
        place=place,
        details=dump_object(message.metadata),
        created_at=message.created_at,
        updated_at=message.updated_at,
    )
    segment = new_row(
        SegmentRow,
        conversation_id=work.conversation_id,
        message_id=message.id,
        step=0,
        slot=0,
        kind=CONTENT,
        parts=dump_parts(message.parts),
    )
    insert_rows(work.connection, MessageRow, row)
    insert_rows(work.connection, SegmentRow, segment)


def insert_draft(work: Work, run: RunRow, status: MessageStatus, at: datetime) -> None:
    """Insert a run's assistant message, without content, at the next position."""
    row = new_row(
        MessageRow,
        conversation_id=work.conversation_id,
        id=run.assistant_message_id,
        run_id=run.id,
        role=Role.ASSISTANT,
        status=status,
        position=work.take_position(),
        created_at=at,
        updated_at=at,
    )
    insert_rows(work.connection, MessageRow, row)


def admit(work: Work, effect: AdmitInput, at: datetime) -> Change:
    """Append an input and its receipt; the run is new, or a queued one that the input joins."""
    _bind_conversation(work, effect)
    _check_admission(effect)
    message = effect.message
    if effect.blob is not None:
        message = message.model_copy(update={"parts": _take_parts(work, effect.blob)})
    run = _new_run(work, effect.run, message, at) if effect.run is not None else _joined_run(work, effect, at)
    _refuse_reserved(work, message.id, run.assistant_message_id if effect.run is not None else None)
    place = STRIDE * (len(load_ids(run.input_ids)) - 1)
    insert_message(work, message, block_of(work, run), place, run.id)
    work.know(message)
    if message.role is Role.TOOL:
        take_answers(work, run, message, at)
    _insert_receipt(work, effect)
    notes = (AdmissionNote(run_id=run.id, message_id=message.id, run=run_record(run)), state_note(run))
    return Change((run,), notes, describe_effect(effect, message))


def _check_admission(effect: AdmitInput) -> None:
    """Refuse an admission whose records disagree: input, receipt and run must name each other."""
    message, receipt = effect.message, effect.receipt
    run_id = effect.coalesce_into if effect.run is None else effect.run.id
    named = (receipt.conversation_id, receipt.input_message_id, receipt.run_id)
    if named != (message.conversation_id, message.id, run_id) or message.role not in (Role.USER, Role.TOOL):
        raise StoreIntegrityError("an admission's records disagree", message_id=message.id, run_id=receipt.run_id)


def _bind_conversation(work: Work, effect: AdmitInput) -> None:
    head = work.head
    if effect.message.conversation_id != head.id:
        raise StoreIntegrityError("an input of another conversation", conversation_id=head.id)
    if head.agent is None:
        head.agent, head.tenant = effect.agent, effect.tenant
    if (head.agent, head.tenant) != (effect.agent, effect.tenant):
        raise StoreIntegrityError("the conversation has another agent or tenant", conversation_id=head.id)


def take_blob(work: Work, blob: BlobRef) -> bytes:
    """Return what a blob holds, and let go of it: deleted with its last use."""
    row = find_row(work.connection, BlobRow, work.conversation_id, blob.id)
    if row is None or row.digest != blob.digest:
        raise StoreIntegrityError("a blob is missing or has another digest", blob_id=blob.id)
    if row.uses > 1:
        change_row(work.connection, BlobRow, (work.conversation_id, blob.id), uses=row.uses - 1)
    else:
        where = (BLOB.c.conversation_id == work.conversation_id, BLOB.c.id == blob.id)
        work.connection.execute(delete(BLOB).where(*where))
    return row.data


def _take_parts(work: Work, blob: BlobRef) -> tuple[Part, ...]:
    try:
        return PARTS.validate_json(take_blob(work, blob))
    except ValidationError:
        raise StoreIntegrityError("an admitted blob does not hold a list of parts", blob_id=blob.id) from None


def _new_run(work: Work, new: NewRun, message: Message, at: datetime) -> RunRow:
    run = new_row(
        RunRow,
        conversation_id=work.conversation_id,
        id=new.id,
        assistant_message_id=new.assistant_message_id,
        input_ids=dump_ids([message.id]),
        state=RunState.QUEUED,
        admission_order=new.admission_order,
        queue_priority=new.queue_priority,
        context=dump_object(new.context),
        created_at=at,
        updated_at=at,
    )
    require(new.assistant_message_id != message.id, "an input has the id of its answer", run)
    work.add(run)
    work.head.last_order = max(work.head.last_order, new.admission_order)
    return run


def _joined_run(work: Work, effect: AdmitInput, at: datetime) -> RunRow:
    if effect.coalesce_into is None:
        raise StoreIntegrityError("an admission names neither a new run nor one to join")
    run = work.run(effect.coalesce_into)
    require(run.state == RunState.QUEUED, "an input can join a queued run only", run)
    run.input_ids = dump_ids([*load_ids(run.input_ids), effect.message.id])
    work.touch(run, at)
    return run


def _refuse_reserved(work: Work, input_id: str, assistant_id: str | None) -> None:
    """Refuse ids that cross: an input on a reserved answer's id, a reserved answer on a message's id."""
    ids = {"conversation_id": work.conversation_id, "input_id": input_id, "assistant_id": assistant_id}
    if work.reserves(input_id) or _CROSSING.first(work.connection, ids) is not None:
        raise StoreIntegrityError("a proposed id is in use", message_id=input_id)


def _insert_receipt(work: Work, effect: AdmitInput) -> None:
    receipt = effect.receipt
    row = new_row(
        AdmissionRow,
        conversation_id=work.conversation_id,
        idempotency_key=receipt.idempotency_key,
        content_digest=receipt.content_digest,
        input_message_id=receipt.input_message_id,
        run_id=receipt.run_id,
        assistant_message_id=receipt.assistant_message_id,
        policy=receipt.policy,
        version=work.head.version,
    )
    insert_rows(work.connection, AdmissionRow, row)


def start(work: Work, effect: StartRun, at: datetime) -> Change:
    """Acquire a queued run. The first time gives it its place in the history and an empty draft.

    One that resumes keeps its finished steps and what was prepared for it; calls that its lost lane left
    open get a result that says so, unless they may be run again from what they recorded.
    """
    run = work.run(effect.run_id)
    require(run.state == RunState.QUEUED, "only a queued run can be started", run)
    require(effect.token > (run.fencing_token or 0), "a token must grow with each start", run)
    if run.execution_sequence is None:
        move_block(work, run)
        insert_draft(work, run, MessageStatus.STREAMING, at)
        run.execution_sequence, run.started_at = work.head.version, at
    else:
        _clear_draft(work, run, from_step=run.steps_done if effect.resumes else 0)
    run.state = RunState.RUNNING
    run.owner_id, run.fencing_token = effect.owner_id, effect.token
    # A new token counts steps and attempts anew. An attempt left open stays so: its spend is unknown.
    run.fence_step, run.fence_attempt, run.checkpoint_seq = -1, 0, None
    if not effect.resumes:
        run.steps_done, run.prepared, run.fence_model = 0, None, 0
    else:
        _take_up_calls(work, run)
    work.touch(run, at)
    note = state_note(run).model_copy(update={"queue_wait_ms": elapsed_ms(run.created_at, at)})
    return Change((run,), (note,), describe_effect(effect))


def _take_up_calls(work: Work, run: RunRow) -> None:
    """Leave open the calls of the last kept step that may be run again, under that step's first attempt."""
    step = run.steps_done - 1
    left = unfinished_calls(work.connection, work.conversation_id, run.id, run.assistant_message_id, step)
    if left:
        run.fence_step, run.fence_attempt = step, 1
    close_calls(work, run, lost_result, but={(step, call.slot) for call in left}, keep_pending=True)


def _clear_draft(work: Work, run: RunRow, from_step: int) -> None:
    where = (
        SEGMENT.c.conversation_id == work.conversation_id,
        SEGMENT.c.message_id == run.assistant_message_id,
        SEGMENT.c.step >= from_step,
    )
    work.connection.execute(delete(SEGMENT).where(*where))


def request_interrupt(work: Work, effect: RequestInterrupt, at: datetime) -> Change:
    run = work.run(effect.run_id)
    require(run.state == RunState.RUNNING, "only a running run can be asked to stop", run)
    run.state, run.abort_reason = RunState.INTERRUPT_REQUESTED, effect.reason
    work.touch(run, at)
    return Change((run,), (state_note(run),), describe_effect(effect))


def requeue(work: Work, effect: RequeueRun, at: datetime) -> Change:
    run = work.run(effect.run_id)
    require(RunState(run.state).is_active, "an ended run cannot be queued again", run)
    run.state, run.owner_id, run.abort_reason = RunState.QUEUED, None, None
    work.touch(run, at)
    return Change((run,), (state_note(run),), describe_effect(effect))
