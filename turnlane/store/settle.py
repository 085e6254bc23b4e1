"""How a run's end is written: its answer's status, its open calls, and the successors that it answered."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from turnlane.records.base import elapsed_ms
from turnlane.records.events import Metrics
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ControlPart, MessageStatus
from turnlane.records.mutations import Absorption, SettleRun
from turnlane.records.runs import ENDINGS, LIVE_STATES, RunState, TerminalReason
from turnlane.records.usage import computed
from turnlane.store.content import CONTROL, CONTROL_STEP
from turnlane.store.delivery import Note, TerminalNote
from turnlane.store.describe import describe_effect
from turnlane.store.effects import Change, insert_draft, require, state_note
from turnlane.store.open_calls import close_answered_calls, close_calls, interrupted_result, record_cut_calls
from turnlane.store.order import move_block
from turnlane.store.rows import dump_ids, dump_parts, dump_usage, load_ids, load_usage, run_record
from turnlane.store.spending import count_spend, run_spent
from turnlane.store.statements import change_row, insert_rows, new_row
from turnlane.store.tables import LEDGER, MessageRow, RunRow, SegmentRow
from turnlane.store.work import Work

_ANSWERED = frozenset(
    {
        TerminalReason.SUCCESS,
        TerminalReason.POLICY_STOP,
        TerminalReason.PROVIDER_STOP,
        TerminalReason.OUTPUT_REJECTED,
    }
)
"""The reasons of runs whose last model call was heard to its end: what they spent is the whole of it."""


def settle(work: Work, effect: SettleRun, at: datetime) -> Change:
    """End a run. Its successors' inputs, if it answered any, move in front of its answer."""
    run = work.run(effect.run_id)
    ending = ENDINGS[effect.reason]
    require(ending.message_status is not None, "a run is absorbed through the one that absorbs it", run)
    require(_may_end(run, ending.state), "the run cannot end this way", run)
    require(not effect.absorbed or ending.state is RunState.COMPLETED, "only a completed run absorbs", run)
    status = ending.message_status or MessageStatus.FAILED
    if effect.answers:
        close_answered_calls(work, run)
    absorbed = _end_message(work, run, effect, status, at)
    _end_run(work, run, effect, ending.state)
    work.touch(run, at)
    return Change((run, *absorbed), _notes(run, effect, absorbed, at), describe_effect(effect))


def find_own_end(connection: Connection, run: RunRow) -> Any | None:
    """Return the ledger's row of the end of a run that its own last step wrote, before the lane heard of it."""
    if run.terminal_reason != TerminalReason.SUCCESS:
        return None
    where = (LEDGER.c.conversation_id == run.conversation_id, LEDGER.c.kind == LedgerKind.TRANSITION)
    return connection.execute(select(LEDGER).where(*where, LEDGER.c.once_key == run.id)).first()


def _may_end(run: RunRow, state: RunState) -> bool:
    """Whether a run may end in `state`: a live one in any, a queued one in any but completed."""
    return run.state in LIVE_STATES or (run.state == RunState.QUEUED and state is not RunState.COMPLETED)


def _end_message(work: Work, run: RunRow, effect: SettleRun, status: MessageStatus, at: datetime) -> tuple[RunRow, ...]:
    if run.execution_sequence is None:
        move_block(work, run)
        insert_draft(work, run, status, at)
        _add_control(work, run, effect)
        return ()
    record_cut_calls(work, run)
    # What waits for approval in an answer that ended well goes on waiting.
    close_calls(work, run, interrupted_result, keep_pending=status is MessageStatus.COMPLETED)
    _add_control(work, run, effect)
    absorbed = tuple(_absorb(work, run, entry, at) for entry in effect.absorbed)
    values: dict[str, object] = {"status": status, "updated_at": at}
    if absorbed:
        values["position"] = work.take_position()
    change_row(work.connection, MessageRow, (work.conversation_id, run.assistant_message_id), **values)
    return absorbed


def _end_run(work: Work, run: RunRow, effect: SettleRun, state: RunState) -> None:
    spent = run_spent(run)
    count_spend(work, spent)
    run.usage = dump_usage(computed(spent))
    # What was prepared is for steps to come; the rows of ended runs are read often, and it may be large.
    run.attempt_open, run.checkpoint_seq, run.prepared = False, None, None
    run.state, run.terminal_reason = state, effect.reason
    run.terminal_policy_name = effect.policy_name
    run.failure = None if effect.failure is None else effect.failure.model_dump_json()
    own = load_ids(run.input_ids)
    taken = [name for entry in effect.absorbed for name in entry.input_ids if name not in own]
    run.input_ids = dump_ids([*own, *taken])


def _absorb(work: Work, run: RunRow, entry: Absorption, at: datetime) -> RunRow:
    """End a queued run whose inputs `run` answered: all of them move to it, in front of its answer."""
    other = work.run(entry.run_id)
    require(other.id != run.id and other.state == RunState.QUEUED, "only another, queued run is absorbed", other)
    require(load_ids(other.input_ids) == entry.input_ids, "a run is absorbed with all of its inputs", other)
    move_block(work, other)
    if other.execution_sequence is not None:
        draft = (work.conversation_id, other.assistant_message_id)
        change_row(work.connection, MessageRow, draft, status=MessageStatus.SUPERSEDED, updated_at=at)
    for input_id in entry.input_ids:
        change_row(work.connection, MessageRow, (work.conversation_id, input_id), run_id=run.id)
    count_spend(work, run_spent(other))
    other.state, other.terminal_reason = RunState.SUPERSEDED, TerminalReason.ABSORBED
    other.absorbed_into_run_id, other.checkpoint_seq = run.id, None
    work.touch(other, at)
    return other


def _add_control(work: Work, run: RunRow, effect: SettleRun) -> None:
    if effect.control is None:
        return
    row = new_row(
        SegmentRow,
        conversation_id=work.conversation_id,
        message_id=run.assistant_message_id,
        step=CONTROL_STEP,
        slot=0,
        kind=CONTROL,
        parts=dump_parts([ControlPart(reason=effect.control)]),
    )
    insert_rows(work.connection, SegmentRow, row)


def _notes(run: RunRow, effect: SettleRun, absorbed: tuple[RunRow, ...], at: datetime) -> tuple[Note, ...]:
    """Return what watchers are told: giving a run up has no terminal event, a cancel has both."""
    if effect.reason is TerminalReason.ABANDONED:
        return (state_note(run),)
    own = (state_note(run),) if effect.reason is TerminalReason.CANCELLED else ()
    terminal = TerminalNote(
        run_id=run.id,
        message_id=run.assistant_message_id,
        reason=effect.reason,
        policy_name=effect.policy_name,
        failure=effect.failure,
        metrics=_metrics(run, effect, at),
        run=run_record(run),
    )
    return (*(state_note(other) for other in absorbed), *own, terminal)


def _metrics(run: RunRow, effect: SettleRun, at: datetime) -> Metrics:
    usage = computed(load_usage(run.usage))
    return Metrics(
        partial=usage.partial or effect.reason not in _ANSWERED,
        usage=usage,
        duration_ms=elapsed_ms(run.started_at, at),
        ttft_ms=elapsed_ms(run.started_at, run.first_output_at),
    )
