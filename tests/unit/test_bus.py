"""Buses carry events to watchers: bounded, in order, never in a publisher's way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from turnlane.records.events import AssistantDeltaEvent, Event
from turnlane.store.bus import RESYNC, InProcessBus, Resync

NOW = datetime(2025, 1, 1, tzinfo=UTC)


def delta(sequence: int, conversation_id: str = "c") -> AssistantDeltaEvent:
    return AssistantDeltaEvent(
        conversation_id=conversation_id,
        run_id="r",
        emitted_at=NOW,
        epoch="r:1:1:model:1",
        sequence=sequence,
        text_delta=f"word {sequence}",
    )


async def take(watch: AsyncIterator[Event | Resync], count: int) -> list[Event | Resync]:
    async with asyncio.timeout(5):
        return [await anext(watch) for _ in range(count)]


async def drain(watch: AsyncIterator[Event | Resync]) -> list[Event | Resync]:
    async with asyncio.timeout(5):
        return [item async for item in watch]


async def test_every_watcher_of_a_conversation_gets_every_event_in_order() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c") as one, bus.subscribe("c") as two:
        for sequence in (1, 2, 3):
            bus.publish(delta(sequence))

        expected = [delta(1), delta(2), delta(3)]
        assert [expected, expected] == [await take(one, 3), await take(two, 3)]


async def test_a_watcher_hears_nothing_of_other_conversations() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c") as watch:
        bus.publish(delta(1, "other"))
        bus.publish(delta(2))
        await bus.close()

        assert [delta(2)] == await drain(watch)


async def test_a_full_queue_becomes_one_resync_and_goes_on() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c", capacity=3) as watch:
        for sequence in range(1, 6):
            bus.publish(delta(sequence))
        await bus.close()

        assert [RESYNC, delta(5)] == await drain(watch)


async def test_a_watcher_that_never_reads_costs_a_bounded_queue() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c", capacity=10) as watch:
        for sequence in range(1, 10_001):
            bus.publish(delta(sequence))
        await bus.close()

        assert 10 >= len(await drain(watch))


async def test_an_event_published_between_entering_and_reading_is_not_lost() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c") as watch:
        bus.publish(delta(1))

        assert [delta(1)] == await take(watch, 1)


async def test_a_waiting_reader_is_woken_by_a_publish_from_another_thread() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c") as watch:
        reader = asyncio.create_task(take(watch, 2))
        for sequence in (1, 2):
            await asyncio.to_thread(bus.publish, delta(sequence))

        assert [delta(1), delta(2)] == await reader


async def test_a_cancelled_reader_loses_no_event() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c") as watch:
        reader = asyncio.create_task(take(watch, 1))
        await asyncio.sleep(0)
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        bus.publish(delta(1))

        assert [delta(1)] == await take(watch, 1)


async def test_leaving_ends_the_subscription() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c") as watch:
        pass
    bus.publish(delta(1))

    assert [] == await drain(watch)


async def test_closing_the_bus_ends_a_waiting_reader() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c") as watch:
        reader = asyncio.create_task(drain(watch))
        await asyncio.sleep(0)
        await bus.close()

        assert [] == await reader


async def test_a_watch_holds_at_least_one_event() -> None:
    with pytest.raises(ValueError, match="at least one"):
        async with InProcessBus().subscribe("c", capacity=0):
            raise AssertionError("entered a watch that can hold nothing")
