"""The lane head as the store has it: what a lane that starts takes over."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select

from turnlane.records.admissions import Policy
from turnlane.records.approvals import AskedApproval
from turnlane.records.base import Payload, canonical_json
from turnlane.records.lane import (
    AbortReason,
    ApprovalAnswer,
    CompleteStep,
    HeadReceipt,
    LaneHead,
    LaneRun,
    RunProgress,
    ids_for_key,
)
from turnlane.records.ledger import LedgerKind
from turnlane.records.limits import KIB
from turnlane.records.messages import ToolApprovalResponsePart
from turnlane.records.runs import LIVE_STATES, QueuePriority, RunState
from turnlane.records.steps import RUNS_CALLS, FinishReason
from turnlane.store.approvals import answers_among, asked_approvals
from turnlane.store.content import CALLS_OF_STEP
from turnlane.store.entries import unfinished_calls
from turnlane.store.haste import refuse_long
from turnlane.store.payloads import OpenedLane
from turnlane.store.rows import active_runs, load_ids, load_usage
from turnlane.store.statements import change_row
from turnlane.store.tables import ADMISSION, LEDGER, RUN, SEGMENT, ConversationRow, RunRow
from turnlane.store.work import create_conversation, find_conversation, is_purged

OPENED_BYTES = 112 * KIB
"""What a lane that opens is told at most: it stands in the lane's history."""

RUN_BYTES = 48 * KIB
RECEIPT_BYTES = 48 * KIB
RECEIPTS = 512

_CALLS_OF_STEP = select(SEGMENT.c.slot).where(*CALLS_OF_STEP)

_LAST_RESPONSES = (
    select(LEDGER.c.payload)
    .where(LEDGER.c.conversation_id == bindparam("conversation_id"), LEDGER.c.kind == LedgerKind.PROVIDER_RESPONSE)
    .order_by(LEDGER.c.seq.desc())
    .limit(8)
)

_ABSORBING = RUN.alias()

_RECENT_RECEIPTS = (
    select(
        ADMISSION,
        RUN.c.absorbed_into_run_id,
        _ABSORBING.c.assistant_message_id.label("absorbing_answer_id"),
    )
    .join(RUN, (RUN.c.conversation_id == ADMISSION.c.conversation_id) & (RUN.c.id == ADMISSION.c.run_id))
    .outerjoin(
        _ABSORBING,
        (_ABSORBING.c.conversation_id == RUN.c.conversation_id) & (_ABSORBING.c.id == RUN.c.absorbed_into_run_id),
    )
    .where(ADMISSION.c.conversation_id == bindparam("conversation_id"))
    .order_by(ADMISSION.c.version.desc())
    .limit(RECEIPTS + 1)
)


def open_lane(
    connection: Connection, conversation_id: str, owner: str, carried_epoch: int | None, now: datetime
) -> OpenedLane:
    """Take the next epoch for `owner`, if a carried one is still in force, and load the head."""
    row = find_conversation(connection, conversation_id)
    refuse_long(connection, row is not None and row.version > 0)
    if row is None and is_purged(connection, conversation_id):
        return OpenedLane(epoch=carried_epoch, head=LaneHead(conversation_id=conversation_id, purged=True))
    if carried_epoch is not None and (row is None or (row.epoch != carried_epoch and row.owner != owner)):
        return OpenedLane(epoch=None, head=LaneHead(conversation_id=conversation_id))
    row = row or create_conversation(connection, conversation_id, now)
    if row.owner != owner:
        row.owner = owner
        row.epoch += 1
        change_row(connection, ConversationRow, (conversation_id,), owner=row.owner, epoch=row.epoch)
    if row.version == 0:
        # Nothing was committed yet, so there is nothing to load.
        return OpenedLane(epoch=row.epoch, head=LaneHead(conversation_id=row.id, seq=row.lane_seq))
    return _load(connection, row)


def _load(connection: Connection, row: ConversationRow) -> OpenedLane:
    active = active_runs(connection, row.id)
    asked, asked_live = asked_approvals(connection, row.id) if row.version > 0 else ((), {})
    begun = _begun(active)
    progress = None if begun is None else _progress(connection, begun, asked_live.get(begun.id, ()))
    room = OPENED_BYTES - sum(_size(record) for record in (progress, *asked) if record is not None)
    runs, more = _within_budget(_lane_runs(connection, row.id, active), min(room, RUN_BYTES))
    receipts, complete = _recent_receipts(connection, row.id, room - sum(_size(run) for run in runs))
    head = LaneHead(
        conversation_id=row.id,
        agent=row.agent,
        tenant=row.tenant,
        version=row.version,
        seq=row.lane_seq,
        order=row.last_order,
        runs=runs,
        receipts=receipts,
        receipts_complete=complete,
        model=row.model,
        approvals=asked,
    )
    return OpenedLane(epoch=row.epoch, head=head, progress=progress, more=more)


def _begun(active: Sequence[RunRow]) -> RunRow | None:
    """The run that the lane goes on with: the live one, or one that a lane put back and nobody took up since."""
    live = next((run for run in active if run.state in LIVE_STATES), None)
    return live or next((run for run in active if run.execution_sequence is not None), None)


def load_queue(connection: Connection, conversation_id: str, after_run_id: str) -> tuple[tuple[LaneRun, ...], bool]:
    """Return the active runs behind one of them, in queue order; none if that one is not active."""
    active = active_runs(connection, conversation_id)
    place = next((place for place, run in enumerate(active) if run.id == after_run_id), len(active))
    return _within_budget(_lane_runs(connection, conversation_id, active[place + 1 :]), RUN_BYTES)


def _within_budget(runs: Sequence[LaneRun], limit: int) -> tuple[tuple[LaneRun, ...], bool]:
    """Cut the runs at `limit` bytes, the first one always kept, and say whether some remain."""
    size = 0
    for place, run in enumerate(runs):
        size += _size(run)
        if place and size > limit:
            return tuple(runs[:place]), True
    return tuple(runs), False


def _size(record: Payload) -> int:
    return len(record.model_dump_json().encode()) + 1


def _lane_runs(connection: Connection, conversation_id: str, rows: Sequence[RunRow]) -> list[LaneRun]:
    ids = [name for row in rows for name in load_ids(row.input_ids)]
    answers = answers_among(connection, conversation_id, ids)
    offered = _offered(connection, conversation_id) if any(row.state == RunState.QUEUED for row in rows) else {}
    return [_lane_run(row, tuple(offered.get(row.id, ())), answers) for row in rows]


def _lane_run(
    row: RunRow, offered: tuple[str, ...], answers: Mapping[str, tuple[ToolApprovalResponsePart, ...]]
) -> LaneRun:
    inputs = load_ids(row.input_ids)
    return LaneRun(
        id=row.id,
        assistant_message_id=row.assistant_message_id,
        input_ids=inputs,
        order=row.admission_order,
        state=RunState(row.state),
        urgent=row.queue_priority == QueuePriority.INTERRUPT_NEXT,
        started=row.execution_sequence is not None,
        token=row.fencing_token or 0,
        revision=row.revision,
        offered=offered,
        abort=None if row.abort_reason is None else AbortReason(row.abort_reason),
        answers=tuple(
            ApprovalAnswer(answer.approval_id, answer.approved) for name in inputs for answer in answers.get(name, ())
        ),
    )


def _offered(connection: Connection, conversation_id: str) -> dict[str, list[str]]:
    """Return, for each run that never started, its inputs with the inject policy: until then each is on offer."""
    query = (
        select(ADMISSION.c.run_id, ADMISSION.c.input_message_id)
        .join(RUN, (RUN.c.conversation_id == ADMISSION.c.conversation_id) & (RUN.c.id == ADMISSION.c.run_id))
        .where(
            ADMISSION.c.conversation_id == conversation_id,
            ADMISSION.c.policy == Policy.INJECT,
            RUN.c.state == RunState.QUEUED,
            RUN.c.execution_sequence.is_(None),
        )
        .order_by(ADMISSION.c.version)
    )
    offered: dict[str, list[str]] = {}
    for row in connection.execute(query):
        offered.setdefault(row.run_id, []).append(row.input_message_id)
    return offered


def _progress(connection: Connection, row: RunRow, asked: tuple[AskedApproval, ...]) -> RunProgress:
    """Return where a run that has begun goes on: behind its kept steps, with an attempt that nobody used.

    A step without calls is a run's last, unless its provider paused in it, and so is one that was cut or refused: its
    calls never ran. When its lane
    was lost before the run could end, the step stands in `complete`, or is made again in its place if it is not:
    one more behind it would answer twice. Calls that may
    be run again are taken up in the step that made them; taking the run up begins a first attempt of it, as far
    as the fence is concerned.
    """
    kept = row.steps_done - 1
    suspended = unfinished_calls(connection, row.conversation_id, row.id, row.assistant_message_id, kept)
    last = {"conversation_id": row.conversation_id, "message_id": row.assistant_message_id, "step": kept}
    complete = _complete(connection, row.conversation_id, row.id, kept) if row.steps_done > 0 else None
    ran_no_calls = complete is not None and complete.finish not in RUNS_CALLS
    is_paused = complete is not None and complete.finish == FinishReason.PAUSED
    is_last = ran_no_calls or connection.execute(_CALLS_OF_STEP, last).first() is None
    is_answered = row.steps_done > 0 and is_last and not is_paused
    step = kept if is_answered or suspended else row.steps_done
    usage = load_usage(row.usage)
    attempt = row.fence_attempt + 1 if row.fence_step == step else 1
    return RunProgress(
        run_id=row.id,
        step=step,
        attempt=2 if suspended else attempt,
        input_tokens=0 if usage is None else usage.input_tokens.value or 0,
        output_tokens=0 if usage is None else usage.output_tokens.value or 0,
        model=row.fence_model,
        # Whatever they waited for may have come while no lane was there to hear of it.
        suspended=tuple(call.model_copy(update={"suspension": None}) for call in suspended),
        asked=asked,
        complete=complete if is_answered else None,
    )


def _complete(connection: Connection, conversation_id: str, run_id: str, step: int) -> CompleteStep | None:
    """Return how a run's last answer ended, None if it was cut short or the ledger has much behind it."""
    for row in connection.execute(_LAST_RESPONSES, {"conversation_id": conversation_id}):
        said = json.loads(row.payload)
        if (said.get("run_id"), said.get("step")) == (run_id, step) and not said.get("late"):
            finish, response = said.get("finish"), said.get("response") or {}
            ended = {"code": said.get("code"), "provider": response.get("provider")}
            return CompleteStep(finish=finish, **ended) if finish else None
    return None


def _recent_receipts(connection: Connection, conversation_id: str, room: int) -> tuple[tuple[HeadReceipt, ...], bool]:
    """Return the last receipts that find room, oldest first, and whether those are all there are."""
    rows = connection.execute(_RECENT_RECEIPTS, {"conversation_id": conversation_id}).all()
    kept: list[HeadReceipt] = []
    size = 0
    for row in rows[:RECEIPTS]:
        receipt = _packed(conversation_id, row)
        size += len(canonical_json(list(receipt)).encode()) + 1
        if size > min(RECEIPT_BYTES, room):
            break
        kept.append(receipt)
    return tuple(reversed(kept)), len(kept) == len(rows)


def _packed(conversation_id: str, row: Any) -> HeadReceipt:
    """Pack a receipt: an id that follows from the key is left empty.

    An absorbed input is answered by the run that absorbed it, so its receipt names that one, as the
    head of the lane that saw it happen does.
    """
    derived = ids_for_key(conversation_id, row.idempotency_key)
    named = (row.input_message_id, row.run_id, row.assistant_message_id)
    short = ["" if name == usual else name for name, usual in zip(named, derived, strict=True)]
    if row.absorbed_into_run_id is not None:
        short[1:] = row.absorbed_into_run_id, row.absorbing_answer_id
    return HeadReceipt(row.idempotency_key, row.content_digest, row.policy, row.version, *short)
