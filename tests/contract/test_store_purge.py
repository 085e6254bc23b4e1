"""Purge: nothing stays but a tombstone, and every write checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnlane.records.errors import ConversationPurgedError, StoreIntegrityError
from turnlane.records.messages import TextPart
from turnlane.records.mutations import CommitOutcome

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_a_purged_conversation_answers_as_an_unknown_one(lane: Lane) -> None:
    await lane.answer("a")
    blob = await lane.store.put_blob(lane.conversation_id, b"[]", "application/json", lane.clock())
    (purged,) = await lane.apply(lane.purge())
    snapshot = await lane.store.load_snapshot(lane.conversation_id)

    assert 6 == purged.version
    assert (0, (), ()) == (snapshot.version, snapshot.messages, snapshot.runs)
    assert await lane.store.load_run(lane.conversation_id, "run-a") is None
    assert await lane.store.get_blob(lane.conversation_id, blob.id) is None
    assert () == (await lane.store.read_events(lane.conversation_id)).items
    assert {} == await lane.store.find_receipts(lane.conversation_id, ["a"])
    assert () == (await lane.store.list_conversations()).items
    assert await lane.store.is_purged(lane.conversation_id)


async def test_a_repeated_purge_is_answered_as_the_first_time(lane: Lane) -> None:
    await lane.begin_run("a")
    batch = lane.batch(lane.settle("run-a"), lane.purge())
    first = await lane.store.commit(batch, lane.clock())
    again = await lane.store.commit(batch, lane.clock())

    assert (CommitOutcome.APPLIED, first.reply) == (first.reply.outcome, again.reply)


async def test_any_other_commit_after_a_purge_is_answered_purged(lane: Lane) -> None:
    await lane.answer("a")
    await lane.apply(lane.purge())
    later = await lane.commit(lane.admit("b"))
    lane.seq -= 2
    other = await lane.commit(lane.admit("b"))

    assert [CommitOutcome.PURGED] * 2 == [later.reply.outcome, other.reply.outcome]


async def test_every_write_after_a_purge_is_refused(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    await lane.apply(lane.settle("run-a"), lane.purge())
    writes = (
        lane.begin_step(fence),
        lane.checkpoint(fence, TextPart(text="late")),
        lane.finish_step(fence, TextPart(text="late")),
        lane.store.begin_call(fence, "out-a", 1, lane.clock()),
        lane.store.finish_call(fence, "out-a", 1, lane.result("c1"), lane.clock()),
        lane.store.put_blob(lane.conversation_id, b"[]", "application/json", lane.clock()),
        lane.store.append_event(lane.conversation_id, "app/late", {}, lane.clock()),
    )

    for write in writes:
        with pytest.raises(ConversationPurgedError):
            await write


async def test_a_lane_that_opens_on_a_tombstone_learns_it(lane: Lane) -> None:
    await lane.apply(lane.purge())
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert opened.head.purged
    assert 0 == (await lane.store.load_snapshot(lane.conversation_id)).version


async def test_a_conversation_with_an_active_run_is_not_purged(lane: Lane) -> None:
    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.admit("a"), lane.purge())

    assert not await lane.store.is_purged(lane.conversation_id)


async def test_a_purge_leaves_other_conversations_alone(lane: Lane) -> None:
    other = await lane.beside().open()
    await other.answer("a")
    await lane.answer("a")
    await lane.apply(lane.purge())

    assert ["in-a", "out-a"] == [
        message.id for message in (await lane.store.load_snapshot(other.conversation_id)).messages
    ]
