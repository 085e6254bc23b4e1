"""What a conversation spent in all: counted when a run ends, in the transaction that ends it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.ledger import SPENT, LedgerKind
from turnlane.records.runs import ACTIVE_STATES
from turnlane.records.spending import ConversationSpend, Spent, Tally
from turnlane.records.usage import TOKEN_FIELDS, UNREPORTED, Usage, add_usage, stated
from turnlane.store.reads import find_known
from turnlane.store.rows import active_runs, load_usage
from turnlane.store.tables import RUN, ConversationRow, RunRow
from turnlane.store.work import Work


def run_spent(run: RunRow) -> Usage | None:
    """What a run spent, None if it called nobody. An attempt whose end was never stored was spend all the same."""
    return add_usage(load_usage(run.usage), UNREPORTED if run.attempt_open else None)


def count_spend(work: Work, usage: Usage | None) -> None:
    """Add to the conversation's total what a run that ends here spent, or what was spent without a run."""
    if usage is None:
        return
    tally = _tally(work.connection, work.head)
    work.head.spent = tally.plus(usage).model_dump_json(exclude_none=True)


def spent_without_run(kind: str, payload: JsonObject) -> Usage | None:
    """What an event tells that was spent without a run: by a compaction that somebody asked for, by a completion."""
    usage = None
    if kind == LedgerKind.COMPACTION_FINISHED and payload.get("run_id") is None:
        usage = payload.get("usage")
    elif kind == LedgerKind.PROVIDER_RESPONSE:
        usage = payload.get(SPENT)
    return None if usage is None else Usage.model_validate_json(canonical_json(usage))


def conversation_spend(connection: Connection, conversation_id: str, tenant: str | None) -> ConversationSpend:
    """Return the total of the ended runs, and what the run in flight spent. Nothing for an unknown conversation."""
    # Completions may be spent before anything is committed.
    head = find_known(connection, conversation_id, tenant)
    if head is None:
        return ConversationSpend(conversation_id=conversation_id, total=stated(None))
    active = _active(connection, conversation_id)
    return ConversationSpend(
        conversation_id=conversation_id,
        **_sums(_tally(connection, head)),
        active_run_id=None if active is None else active.id,
        # Without the attempt under way: what it will come to is not unknown, it is not there yet.
        active=None if active is None else load_usage(active.usage),
        inherited=None if head.inherited is None else Spent(**_sums(Tally.model_validate_json(head.inherited))),
    )


def _sums(tally: Tally) -> dict[str, Any]:
    return {
        "runs": tally.entries,
        "missing": tally.missing,
        "total": stated(tally.usage),
        "costs": tally.costs,
        "unpriced": tally.unpriced,
    }


def _active(connection: Connection, conversation_id: str) -> RunRow | None:
    """The active run that began to spend: a lane has at most one, in flight or waiting to go on."""
    return next((row for row in active_runs(connection, conversation_id) if row.execution_sequence is not None), None)


def _tally(connection: Connection, head: ConversationRow) -> Tally:
    if head.spent is not None:
        return Tally.model_validate_json(head.spent)
    return _summed(connection, head.id)


def _summed(connection: Connection, conversation_id: str) -> Tally:
    """Sum up a conversation from before totals were kept: its ended runs that called a model."""
    ended = (RUN.c.conversation_id == conversation_id, RUN.c.state.not_in(ACTIVE_STATES), RUN.c.usage.is_not(None))
    tally = Tally()
    query = select(RUN.c.usage, RUN.c.fence_step).where(*ended).order_by(RUN.c.admission_order)
    for row in connection.execute(query):
        usage = load_usage(row.usage)
        if usage is not None and called_somebody(usage, row.fence_step):
            tally = tally.plus(usage)
    return tally


def called_somebody(usage: Usage, fence_step: int) -> bool:
    """Whether an ended run called a model, by its figures and the last step that it began."""
    return fence_step >= 0 or usage.partial or _says_something(usage)


def _says_something(usage: Usage) -> bool:
    full = stated(usage)
    figures = (*(getattr(full, name) for name in TOKEN_FIELDS), full.cost)
    return any(figure is not None and figure.value is not None for figure in figures)
