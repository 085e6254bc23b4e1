"""Many write at once: what one decides by, no other changes; and one conversation holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.postgresql.beside import WAIT_SECONDS, failure, held, is_waiting
from tests.integration.stage import until
from turnlane.records.errors import ConversationPurgedError, StoreUnavailableError
from turnlane.records.mutations import CommitOutcome
from turnlane.store.sql import SqlStore

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_twenty_commits_at_once_on_one_conversation_apply_each_mutation_once(
    lane: Lane, open_here: Callable[..., Awaitable[SqlStore]]
) -> None:
    stores = (await open_here(), await open_here())
    notes = [lane.note(f"app/{number}") for number in range(20)]
    batches = [lane.batch(*notes[:length]) for length in range(1, 21)]
    committed = await asyncio.gather(
        *(stores[place % 2].commit(batch, lane.clock()) for place, batch in enumerate(reversed(batches)))
    )
    page = await lane.store.read_events(lane.conversation_id)

    assert {CommitOutcome.APPLIED} == {each.reply.outcome for each in committed}
    assert [(number + 1, f"app/{number}") for number in range(20)] == [(event.seq, event.kind) for event in page.items]


async def test_forty_events_at_once_get_forty_places(lane: Lane, open_here: Callable[..., Awaitable[SqlStore]]) -> None:
    stores = (await open_here(), await open_here())
    events = await asyncio.gather(
        *(stores[number % 2].append_event("fresh", "app/a", {"n": number}, lane.clock()) for number in range(40))
    )

    assert list(range(1, 41)) == sorted(event.seq for event in events)


async def test_lanes_that_open_a_new_conversation_at_once_get_an_epoch_each(
    open_here: Callable[..., Awaitable[SqlStore]],
) -> None:
    stores = (await open_here(), await open_here())
    opened = await asyncio.gather(
        *(stores[number % 2].open_lane("new", f"owner-{number}", None) for number in range(20))
    )

    assert list(range(1, 21)) == sorted(each.epoch or 0 for each in opened)


async def test_one_content_put_by_many_at_once_is_one_blob(
    lane: Lane, open_here: Callable[..., Awaitable[SqlStore]], beside: Any
) -> None:
    stores = (await open_here(), await open_here())
    put = [stores[number % 2].put_blob("unknown", b"same", "text/plain", lane.clock()) for number in range(20)]
    blobs = await asyncio.gather(*put)
    uses = await beside.fetch("SELECT id, uses FROM turnlane_blob")

    assert [(blobs[0].id, 20)] == [tuple(row) for row in uses]


async def test_a_blob_put_while_its_conversation_is_purged_leaves_nothing_behind(
    lane: Lane, open_here: Callable[..., Awaitable[SqlStore]], beside: Any, watcher: Any
) -> None:
    patient = await open_here(busy_seconds=20)
    async with held(beside, lane.conversation_id):
        putting = asyncio.create_task(patient.put_blob(lane.conversation_id, b"late", "text/plain", lane.clock()))
        await until(is_waiting(watcher), WAIT_SECONDS)
        await beside.execute("DELETE FROM turnlane_conversation")
        stone = (
            "INSERT INTO turnlane_tombstone (conversation_id, epoch, answers, purged_at) VALUES ($1, 1, '[]', now())"
        )
        await beside.execute(stone, lane.conversation_id)
    error = await failure(putting)

    assert isinstance(error, ConversationPurgedError)
    assert [] == await beside.fetch("SELECT FROM turnlane_blob")


async def test_a_conversation_that_is_held_holds_up_no_other_and_no_reader(lane: Lane, beside: Any) -> None:
    other = await lane.beside().open()
    async with held(beside, lane.conversation_id):
        with pytest.raises(StoreUnavailableError) as refused:
            await lane.commit(lane.note())
        applied = await other.commit(other.note())
        snapshot = await lane.store.load_snapshot(lane.conversation_id)

    assert "55P03" == refused.value.details["sqlstate"]
    assert CommitOutcome.APPLIED is applied.reply.outcome
    assert lane.conversation_id == snapshot.conversation_id
