"""Decisions: what the reducer answers, and how its rules build one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from turnlane.records.commands import Duplicate, Refusal, RefusalCode
from turnlane.records.lane import LaneHead, LaneRun
from turnlane.records.mutations import Effect, Mutation, MutationKind


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What a command does: the head after it, and the mutation to commit. `run_id` is the run it is about."""

    head: LaneHead
    mutation: Mutation
    run_id: str | None = None
    coalesced: bool = False


Decision = Transition | Refusal | Duplicate


def apply(
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


def refuse(
    head: LaneHead,
    code: RefusalCode,
    run: LaneRun | None = None,
    *,
    run_ids: tuple[str, ...] = (),
    detail: str = "",
) -> Refusal:
    """A refusal that names the head's version and the run's revision."""
    return Refusal(
        code=code,
        head_version=head.version,
        run_revision=None if run is None else run.revision,
        run_ids=run_ids or (() if run is None else (run.id,)),
        detail=detail,
    )


def conflict(head: LaneHead, run: LaneRun) -> Refusal:
    """The refusal of a command about a run that is not in the state it needs."""
    return refuse(head, RefusalCode.CONFLICT, run)


def revision_fits(run: LaneRun, expected: int | None) -> bool:
    """Whether the caller's revision, if it named one, is the run's."""
    return expected is None or expected == run.revision


def with_run(head: LaneHead, run: LaneRun) -> LaneHead:
    """The head with one of its runs replaced, in queue order again."""
    runs = tuple(run if old.id == run.id else old for old in head.runs)
    return head.model_copy(update={"runs": in_queue_order(runs)})


def in_queue_order(runs: tuple[LaneRun, ...]) -> tuple[LaneRun, ...]:
    """Runs in the order in which they run: see the reducer."""
    return tuple(sorted(runs, key=lambda run: (not run.started, not run.urgent, run.order)))
