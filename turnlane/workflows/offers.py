"""Offers: injected inputs on their way into the run in flight, and what the store and the policies tell the head."""

from __future__ import annotations

from turnlane.records.admissions import Policy
from turnlane.records.base import json_bytes
from turnlane.records.lane import AbortReason, LaneHead, RunProgress, Taken
from turnlane.records.limits import KIB
from turnlane.records.mutations import Absorption
from turnlane.records.runs import RunState

RECORD_BYTES = 40
TAKEN_INPUTS = 256
TAKEN_BYTES = 32 * KIB
"""How many inputs one run takes on its way, and how long their names may be: each is in every later step's request."""


def observe(head: LaneHead, version: int, revisions: dict[str, int]) -> LaneHead:
    """Take over the counters that the store gave: activities write too, and only the store counts them.

    The caller adds what it has decided since and the store has not seen yet.
    """
    runs = tuple(
        run.model_copy(update={"revision": revisions[run.id]}) if run.id in revisions else run for run in head.runs
    )
    return head.model_copy(update={"version": version, "runs": runs})


def observe_end(head: LaneHead, run_id: str) -> LaneHead:
    """Take over that a run has ended by its own last step: the store had it before the head."""
    return head.model_copy(update={"runs": tuple(run for run in head.runs if run.id != run_id)})


def take_offers(
    head: LaneHead, live_run_id: str, taken_before: tuple[Taken, ...] = ()
) -> tuple[LaneHead, tuple[tuple[str, str], ...]]:
    """Take the injected inputs that wait, as (run id, input id) in queue order, except the live run's own.

    A run's offers are taken all or not at all, and only while there is room beside those taken before: what
    finds none is answered by its own run.
    """
    takers: dict[str, tuple[str, ...]] = {}
    room = TAKEN_INPUTS - len(taken_before)
    bytes_left = TAKEN_BYTES - sum(_name_bytes(item.run_id, item.input_id) for item in taken_before)
    for run in head.queued:
        if run.offered and run.id != live_run_id:
            room -= len(run.offered)
            bytes_left -= sum(_name_bytes(run.id, name) for name in run.offered)
            if room < 0 or bytes_left < 0:
                break
            takers[run.id] = run.offered
    if not takers:
        return head, ()
    runs = tuple(run.model_copy(update={"offered": ()}) if run.id in takers else run for run in head.runs)
    taken = tuple((run_id, input_id) for run_id, offered in takers.items() for input_id in offered)
    return head.model_copy(update={"runs": runs}), taken


def _name_bytes(*names: str) -> int:
    """How long a record with these names is as JSON, about."""
    return sum(json_bytes(name) for name in names) + RECORD_BYTES


def absorptions(head: LaneHead, taken: tuple[tuple[str, str], ...]) -> tuple[Absorption, ...]:
    """Turn what the live run took into claims on its successors, in the order taken.

    Claims on a run that no longer waits, or was only taken in part, are left out; the reducer judges the
    rest again.
    """
    by_run: dict[str, list[str]] = {}
    for run_id, input_id in taken:
        by_run.setdefault(run_id, []).append(input_id)
    claims = (Absorption(run_id=run_id, input_ids=tuple(ids)) for run_id, ids in by_run.items())
    return tuple(claim for claim in claims if is_absorbable(head, claim))


def without_last_taken(progress: RunProgress) -> RunProgress:
    """Give back what was taken at the boundary of the step that `progress` stands at: no model heard it."""
    taken = tuple(item for item in progress.taken if item.step < progress.step)
    return progress.model_copy(update={"taken": taken})


def abort_reason(policy: Policy) -> AbortReason | None:
    """What a policy does to the run in flight: the reason to stop it with, or None to let it be."""
    if policy is Policy.SUPERSEDE:
        return AbortReason.SUPERSEDE
    if policy in (Policy.INTERRUPT, Policy.INTERRUPT_NEXT):
        return AbortReason.INTERRUPT
    return None


def is_absorbable(head: LaneHead, entry: Absorption) -> bool:
    """All of a successor or none of it: it still waits, and its inputs are exactly those that were answered."""
    run = head.run(entry.run_id)
    return run is not None and run.state is RunState.QUEUED and run.input_ids == entry.input_ids
