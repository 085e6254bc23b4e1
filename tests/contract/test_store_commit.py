"""The commit protocol: epochs, seqs, repeats, and one transaction a batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnlane.records.errors import StoreIntegrityError
from turnlane.records.mutations import CommitOutcome
from turnlane.records.runs import RunState
from turnlane.store.sql import SqlStore

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_a_lane_that_opens_again_gets_the_epoch_it_has_and_another_the_next(lane: Lane) -> None:
    again = await lane.store.open_lane(lane.conversation_id, "lane-1", None)
    other = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert (1, 2) == (again.epoch, other.epoch)


async def test_a_successor_takes_the_next_epoch_only_while_the_carried_one_is_in_force(lane: Lane) -> None:
    kept = await lane.store.open_lane(lane.conversation_id, "lane-1b", 1)
    await lane.store.open_lane(lane.conversation_id, "lane-2", None)
    lost = await lane.store.open_lane(lane.conversation_id, "lane-1c", 1)
    now = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert (2, None, 3) == (kept.epoch, lost.epoch, now.epoch)


async def test_a_conversation_is_unknown_until_something_is_committed(lane: Lane) -> None:
    snapshot = await lane.store.load_snapshot(lane.conversation_id)
    listed = await lane.store.list_conversations()

    assert (0, (), ()) == (snapshot.version, snapshot.messages, listed.items)


async def test_a_batch_says_where_each_mutation_landed(lane: Lane) -> None:
    accepted, acquired = await lane.apply(lane.admit("a"), lane.start("run-a"))

    assert (1, 1, {"run-a": 0}) == (accepted.version, accepted.ledger_seq, accepted.revisions)
    assert (2, 2, {"run-a": 1}) == (acquired.version, acquired.ledger_seq, acquired.revisions)


async def test_a_repeated_batch_is_answered_as_the_first_time(lane: Lane) -> None:
    batch = lane.batch(lane.admit("a"), lane.start("run-a"))
    first = await lane.store.commit(batch, lane.clock())
    again = await lane.store.commit(batch, lane.clock())

    assert first.reply == again.reply
    assert [event.event_id for event in first.events] == [event.event_id for event in again.events]
    assert 2 == (await lane.store.load_snapshot(lane.conversation_id)).version


async def test_a_batch_that_overlaps_one_seen_applies_only_what_is_new(lane: Lane) -> None:
    first = lane.admit("a")
    (accepted,) = await lane.apply(first)
    results = await lane.apply(first, lane.start("run-a"))

    assert (accepted, 2) == (results[0], results[1].version)


async def test_clocks_do_not_make_a_repeat_another_mutation(lane: Lane) -> None:
    batch = lane.batch(lane.admit("a"))
    await lane.store.commit(batch, lane.clock())
    later = batch.mutations[0].model_copy(update={"at": lane.clock()})
    again = await lane.commit(later)

    assert CommitOutcome.APPLIED is again.reply.outcome


async def test_another_mutation_at_a_seen_seq_is_diverged_and_writes_nothing(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    lane.seq = 0
    answer = await lane.commit(lane.admit("b"), lane.admit("c"))

    assert (CommitOutcome.DIVERGED, ()) == (answer.reply.outcome, answer.reply.results)
    assert ["run-a"] == [run.id for run in await lane.store.list_active_runs(lane.conversation_id)]


async def test_a_superseded_lane_writes_nothing(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    await lane.store.open_lane(lane.conversation_id, "lane-2", None)
    answer = await lane.commit(lane.start("run-a"))

    assert CommitOutcome.SUPERSEDED is answer.reply.outcome
    assert [RunState.QUEUED] == [run.state for run in await lane.store.list_active_runs(lane.conversation_id)]


async def test_an_epoch_that_nobody_took_is_superseded(store: SqlStore, lane: Lane) -> None:
    stranger = lane.beside()
    stranger.epoch = 1
    answer = await stranger.commit(stranger.admit("a"))

    assert CommitOutcome.SUPERSEDED is answer.reply.outcome


async def test_a_gap_in_the_seqs_is_an_integrity_error(lane: Lane) -> None:
    lane.seq = 1

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.admit("a"))


async def test_a_batch_that_fails_in_the_middle_leaves_nothing_behind(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    bad = (lane.start("run-a"), lane.start("run-a"))
    with pytest.raises(StoreIntegrityError):
        await lane.commit(*bad)
    opened = await lane.store.open_lane(lane.conversation_id, "lane-1", None)

    assert (1, 1) == (opened.head.version, opened.head.seq)
    assert [RunState.QUEUED] == [run.state for run in opened.head.runs]
    assert 1 == len((await lane.store.read_events(lane.conversation_id)).items)


async def test_a_note_moves_the_ledger_and_not_the_version(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    (noted,) = await lane.apply(lane.note())

    assert (1, 2) == (noted.version, noted.ledger_seq)


async def test_a_repeated_note_is_appended_once(lane: Lane) -> None:
    note = lane.note()
    first = await lane.apply(note)
    again = await lane.apply(note)

    assert first == again
    assert 1 == len((await lane.store.read_events(lane.conversation_id)).items)


async def test_the_agent_of_a_conversation_is_fixed_by_its_first_admission(lane: Lane) -> None:
    await lane.apply(lane.admit("a", agent="helper", tenant="t-1"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.admit("b", agent="other", tenant="t-1"))


async def test_twenty_rounds_of_fifty_parallel_submits_lose_nothing(lane: Lane) -> None:
    lanes = [await lane.beside().open() for _ in range(50)]
    for number in range(20):
        await asyncio.gather(*(each.apply(each.admit(f"k{number}")) for each in lanes))
    snapshots = [await lane.store.load_snapshot(each.conversation_id) for each in lanes]

    assert [20] * 50 == [snapshot.version for snapshot in snapshots]
    assert {tuple(f"in-k{number}" for number in range(20))} == {
        tuple(message.id for message in snapshot.messages) for snapshot in snapshots
    }


async def test_two_lanes_that_race_for_one_seq_have_one_winner(lane: Lane) -> None:
    first, second = lane.batch(lane.admit("a")), lane.beside(lane.conversation_id)
    second.epoch = lane.epoch
    answers = await asyncio.gather(lane.store.commit(first, lane.clock()), second.commit(second.admit("b")))

    outcomes = sorted(answer.reply.outcome for answer in answers)
    assert [CommitOutcome.APPLIED, CommitOutcome.DIVERGED] == outcomes
