"""Steps that end their run in the store, and what a lane decides about such a run before it hears of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from turnlane.records.errors import StaleFenceError
from turnlane.records.events import TerminalEvent
from turnlane.records.messages import MessageStatus, TextPart
from turnlane.records.mutations import CommitOutcome, Landing, Mutation
from turnlane.records.runs import RunState, TerminalReason
from turnlane.records.steps import Fence
from turnlane.records.usage import computed
from turnlane.store.payloads import Written
from turnlane.store.sql import open_store

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def settled(lane: Lane, key: str = "a") -> tuple[Fence, Written]:
    """A run that its only step ended."""
    fence = await lane.begin_run(key)
    await lane.begin_step(fence)
    return fence, await lane.finish_step(fence, TextPart(text="42"), usage=lane.reported(7, 0.25), settles=True)


async def whole(lane: Lane) -> bytes:
    """All that the store has of the conversation."""
    return await lane.store.export_conversation(lane.conversation_id)


async def test_a_step_that_settles_ends_its_run_as_the_lane_would(lane: Lane) -> None:
    other = await lane.beside("other").open()
    _, written = await settled(lane)
    await other.begin_run("a")
    await other.begin_step(other.fence("run-a"))
    await other.finish_step(other.fence("run-a"), TextPart(text="42"), usage=other.reported(7, 0.25))
    (result,) = await other.apply(other.settle("run-a"))
    mine, theirs = await lane.stored("run-a"), await other.stored("run-a")
    view = await lane.store.load_run(lane.conversation_id, "run-a")

    assert Landing(result.version, result.revisions["run-a"]) == written.settled
    assert (theirs.state, theirs.terminal_reason, theirs.usage) == (mine.state, mine.terminal_reason, mine.usage)
    assert (RunState.COMPLETED, computed(lane.reported(7, 0.25))) == (mine.state, mine.usage)
    assert view is not None and view.assistant is not None
    assert (MessageStatus.COMPLETED, "42") == (view.assistant.status, view.assistant.text)
    assert () == await lane.store.list_active_runs(lane.conversation_id)


async def test_what_a_settling_step_did_is_told_and_recorded_in_the_order_in_which_a_lane_does_it(lane: Lane) -> None:
    other = await lane.beside("other").open()
    _, written = await settled(lane)
    await other.answer("a", "42")
    mine = (await lane.store.read_events(lane.conversation_id)).items
    theirs = (await other.store.read_events(other.conversation_id)).items
    caught_up, _ = await lane.store.events_since(lane.conversation_id, 0)

    assert [(event.kind, event.payload.get("type")) for event in theirs] == [
        (event.kind, event.payload.get("type")) for event in mine
    ]
    assert ["run-operation", "assistant-checkpoint", "terminal"] == [event.type for event in written.events]
    assert written.events[-1] == caught_up[-1]
    assert written.settled is not None and written.events[-1].snapshot_version == written.settled.version


async def test_a_run_that_was_asked_to_stop_is_left_to_its_lane(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.apply(lane.interrupt("run-a"))
    written = await lane.finish_step(fence, TextPart(text="42"), settles=True)

    assert (None, RunState.INTERRUPT_REQUESTED) == (written.settled, (await lane.stored("run-a")).state)
    assert not any(isinstance(event, TerminalEvent) for event in written.events)
    await lane.apply(lane.settle("run-a", TerminalReason.INTERRUPTED))


async def test_a_settling_step_that_is_repeated_changes_nothing_and_tells_the_end_again(lane: Lane) -> None:
    fence, first = await settled(lane)
    await lane.apply(lane.admit("b"))
    before = await whole(lane)
    again = await lane.finish_step(fence, TextPart(text="other"), settles=True)

    assert (first.settled, [first.events[-1]]) == (again.settled, list(again.events))
    assert before == await whole(lane)


@pytest.mark.parametrize("reason", [None, TerminalReason.ABANDONED, TerminalReason.STORAGE_CONFLICT])
async def test_what_a_lane_decides_about_a_settled_run_changes_nothing_and_says_so_each_time(
    lane: Lane, reason: TerminalReason | None
) -> None:
    await settled(lane)
    late: Mutation = lane.interrupt("run-a") if reason is None else lane.settle("run-a", reason)
    batch = lane.batch(late, lane.admit("b"))
    run, version = await lane.stored("run-a"), (await lane.store.load_snapshot(lane.conversation_id)).version
    committed = await lane.store.commit(batch, lane.clock())
    repeated = await lane.store.commit(batch, lane.clock())
    nothing, admitted = committed.reply.results

    assert CommitOutcome.APPLIED is committed.reply.outcome
    assert (version, {}, version + 1) == (nothing.version, nothing.revisions, admitted.version)
    assert (run, committed.reply) == (await lane.stored("run-a"), repeated.reply)
    other = lane.note().model_copy(update={"seq": late.seq})
    assert CommitOutcome.DIVERGED is (await lane.commit(other)).reply.outcome


async def test_the_end_is_found_by_a_later_attempt_of_the_same_step_alone(lane: Lane) -> None:
    fence, written = await settled(lane)
    later = fence.model_copy(update={"attempt": 2})
    found = await lane.store.find_settled(later, "out-a")
    others: list[dict[str, Any]] = [
        {"token": 2},
        {"step": 1},
        {"epoch": fence.epoch + 1},
        {"run_id": "run-b"},
        {"conversation_id": "none"},
    ]

    assert found is not None and (written.settled, (written.events[-1],)) == (found.settled, found.events)
    assert [None] * 5 == [await lane.store.find_settled(later.model_copy(update=change), "out-a") for change in others]
    with pytest.raises(StaleFenceError):
        await lane.begin_step(later)


async def test_an_end_that_the_lane_wrote_is_no_end_of_a_step(lane: Lane) -> None:
    await lane.answer("a")

    assert await lane.store.find_settled(lane.fence("run-a"), "out-a") is None


async def test_a_lane_that_opens_behind_a_settled_run_finds_it_ended_and_its_seq_untouched(lane: Lane) -> None:
    fence, _ = await settled(lane)
    opened = await lane.store.open_lane(lane.conversation_id, "another", None)

    assert (2, ()) == (opened.head.seq, opened.head.runs)
    assert await lane.store.find_settled(fence, "out-a") is None


async def test_an_archive_of_a_settled_run_is_restored_as_it_was(lane: Lane) -> None:
    await settled(lane)
    await lane.apply(lane.interrupt("run-a"))
    archive = await whole(lane)
    restored = await open_store(":memory:")
    try:
        await restored.import_conversation(archive, lane.clock())
        assert archive == await restored.export_conversation(lane.conversation_id)
    finally:
        await restored.close()
