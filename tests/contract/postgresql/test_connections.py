"""Connections are lost: to a server that restarts, to a network, to callers who do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import URL

from tests.contract.losing_link import losing_link
from tests.contract.postgresql.beside import (
    IN_TRANSACTION,
    WAIT_SECONDS,
    WAITING,
    backends,
    held,
    is_at_rest,
    is_waiting,
)
from tests.integration.stage import until
from tests.postgresql import Databases, connected
from turnlane.records.errors import StoreUnavailableError
from turnlane.records.mutations import CommitOutcome
from turnlane.store.sql import SqlStore, open_store

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_a_store_goes_on_when_its_server_was_restarted(lane: Lane, postgresql: Databases) -> None:
    if postgresql.server is None:
        pytest.skip("the server is not ours to restart")
    await lane.apply(lane.admit("a"))
    postgresql.server.stop()
    with pytest.raises(StoreUnavailableError):
        await lane.said()
    postgresql.server.start()
    async with connected(postgresql.admin):
        said = await lane.said()
    await lane.apply(lane.admit("b"))

    assert ["in-a"] == said
    assert ["in-a", "in-b"] == await lane.said()


async def test_an_idle_connection_that_the_server_closed_is_replaced(lane: Lane, watcher: Any) -> None:
    await lane.apply(lane.admit("a"))
    before = await backends(watcher, "state = 'idle'")
    for pid in before:
        await watcher.execute("SELECT pg_terminate_backend($1, 5000)", pid)

    assert ["in-a"] == await lane.said()
    assert not set(before) & set(await backends(watcher, "TRUE"))


@pytest.mark.parametrize(
    ("order", "states"), [("pg_terminate_backend", {"57P01", "08003"}), ("pg_cancel_backend", {"57014"})]
)
async def test_a_write_that_the_server_ends_is_unavailable_and_left_nothing(
    open_here: Callable[..., Awaitable[SqlStore]], lane: Lane, beside: Any, watcher: Any, order: str, states: set[str]
) -> None:
    patient = await open_here(busy_seconds=20)
    batch = lane.batch(lane.admit("a"))
    async with held(beside, lane.conversation_id):
        writing = asyncio.create_task(patient.commit(batch, lane.clock()))
        # The first time it may take its connection for one that had died before.
        while not writing.done():
            for pid in await backends(watcher, WAITING):
                await watcher.execute(f"SELECT {order}($1)", pid)
            await asyncio.wait([writing], timeout=0.01)
        with pytest.raises(StoreUnavailableError) as failed:
            await writing
    repeated = await lane.store.commit(batch, lane.clock())

    assert failed.value.details["sqlstate"] in states
    assert CommitOutcome.APPLIED is repeated.reply.outcome
    assert ["in-a"] == await lane.said()


async def test_a_commit_whose_answer_is_lost_is_unavailable_and_its_repeat_is_answered_from_the_rows(
    lane: Lane, url: URL
) -> None:
    if "host" not in url.query:
        pytest.skip("the server listens on no Unix socket")
    batch = lane.batch(lane.admit("a"))
    async with losing_link(url, b"COMMIT;") as link:
        store = await open_store(link.url)
        link.lose_next_answer()
        with pytest.raises(StoreUnavailableError):
            await store.commit(batch, lane.clock())
        applied = await lane.said()
        repeated = await store.commit(batch, lane.clock())
        await store.close()

    assert ["in-a"] == applied == await lane.said()
    assert (CommitOutcome.APPLIED, 1) == (repeated.reply.outcome, repeated.reply.results[0].ledger_seq)


async def test_a_cancelled_call_leaves_no_transaction_open_and_its_write_is_whole(
    open_here: Callable[..., Awaitable[SqlStore]], lane: Lane, beside: Any, watcher: Any
) -> None:
    patient = await open_here(busy_seconds=20)
    async with held(beside, lane.conversation_id):
        writing = asyncio.create_task(patient.commit(lane.batch(lane.admit("a")), lane.clock()))
        await until(is_waiting(watcher), WAIT_SECONDS)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    await patient.close()

    assert [] == await backends(watcher, IN_TRANSACTION)
    assert ["in-a"] == await lane.said()


async def test_a_storm_of_cancelled_calls_leaves_every_connection_usable(lane: Lane, watcher: Any) -> None:
    for delay in range(40):
        reading = asyncio.create_task(lane.said())
        writing = asyncio.create_task(lane.store.append_event("storm", "app/a", {}, lane.clock()))
        await asyncio.sleep(delay / 10_000)
        reading.cancel()
        writing.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)
    await asyncio.gather(*(lane.said() for _ in range(20)))
    await until(is_at_rest(watcher), WAIT_SECONDS)
    page = await lane.store.read_events("storm")

    assert list(range(1, len(page.items) + 1)) == [event.seq for event in page.items]
    assert 20 == len(await asyncio.gather(*(lane.said() for _ in range(20))))
