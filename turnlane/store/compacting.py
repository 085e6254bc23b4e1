"""Fenced writes of a run's compaction: it is told when it begins, and what it spent is counted once.

A compaction comes before the first step of its run, so its fence holds only while no step has begun. An
attempt that never ended counts as spend that nobody reported, as one of a step does.
"""

from __future__ import annotations

import json
from datetime import datetime

from sqlalchemy import Connection, select

from turnlane.records.base import JsonObject
from turnlane.records.ledger import LedgerKind, observed
from turnlane.records.mutations import MutationKind
from turnlane.records.runs import Operation, RunState
from turnlane.records.steps import Fence
from turnlane.records.usage import UsageValue, add_usage
from turnlane.store.fenced import (
    ALSO_ASKED_TO_STOP,
    ONLY_RUNNING,
    Fenced,
    check_run,
    stale,
    tell_operation,
    unchanged,
    written,
)
from turnlane.store.payloads import CompactionFinish, CompactionStart, Written
from turnlane.store.rows import dump_usage, load_usage
from turnlane.store.spending import run_spent
from turnlane.store.tables import LEDGER, RunRow

_LOOKED_BACK = 256


def begin_compaction(connection: Connection, start: CompactionStart, now: datetime) -> Written:
    """Record that an attempt at a compaction calls a model. The same attempt again changes nothing."""
    work, run = _check(connection, start.fence, start.assistant_message_id, ONLY_RUNNING)
    if _last_id(run) == start.operation.operation_id:
        return unchanged(work, run)
    run.usage = dump_usage(run_spent(run))
    run.attempt_open = True
    tell_operation(work, run, start.operation, now)
    return written(work, run, now)


def finish_compaction(connection: Connection, finish: CompactionFinish, now: datetime) -> Written:
    """Record how an attempt ended, and add what it spent to its run. Repeated, it changes nothing."""
    work, run = _check(connection, finish.fence, finish.assistant_message_id, ALSO_ASKED_TO_STOP)
    if _last_id(run) != finish.operation.operation_id:
        raise stale(finish.fence)
    if not run.attempt_open:
        return unchanged(work, run)
    run.attempt_open = False
    run.usage = dump_usage(add_usage(load_usage(run.usage), finish.usage))
    tell_operation(work, run, finish.operation, now)
    work.record(LedgerKind.COMPACTION_FINISHED, now, finish.evidence)
    return written(work, run, now)


def _check(connection: Connection, fence: Fence, assistant_id: str, states: frozenset[RunState]) -> Fenced:
    fenced = check_run(connection, fence, assistant_id, states)
    if fenced.run.fence_step >= 0:
        raise stale(fence)
    return fenced


def _last_id(run: RunRow) -> str | None:
    last = Operation.model_validate_json(run.last_operation) if run.last_operation else None
    return last.operation_id if last is not None else None


_LATEST = (LedgerKind.PROVIDER_RESPONSE, LedgerKind.TRANSITION, LedgerKind.BRANCH_OBSERVATION)


def last_input_tokens(connection: Connection, conversation_id: str) -> int | None:
    """Return what the last model call of the conversation took in, as its provider counted it.

    None when nobody counted, or when the conversation was compacted since: the figure is of a longer one.
    """
    query = select(LEDGER.c.kind, LEDGER.c.payload).where(
        LEDGER.c.conversation_id == conversation_id, LEDGER.c.kind.in_(_LATEST)
    )
    for row in connection.execute(query.order_by(LEDGER.c.seq.desc()).limit(_LOOKED_BACK)):
        kind, payload = observed(row.kind, json.loads(row.payload))
        if kind == LedgerKind.PROVIDER_RESPONSE and "run_id" in payload:
            return _input_tokens(payload)
        if kind == LedgerKind.TRANSITION and payload.get("type") == MutationKind.COMPACT:
            return None
    return None


def _input_tokens(payload: JsonObject) -> int | None:
    usage = payload.get("usage")
    counted = usage.get("input_tokens") if isinstance(usage, dict) else None
    return UsageValue.reported(counted.get("value") if isinstance(counted, dict) else None).value
