"""Buses carry events to watchers: bounded, in order, never in a publisher's way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from turnlane.records.errors import StackError
from turnlane.records.events import AssistantDeltaEvent, Event
from turnlane.store.bus import RESYNC, InProcessBus, Resync
from turnlane.store.bus_socket import BusServer, SocketBus, socket_path
from turnlane.store.bus_wire import MAX_PENDING, Op, Packet, read_packet

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


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[BusServer]:
    async with BusServer(socket_path(tmp_path)) as server:
        yield server


@contextlib.asynccontextmanager
async def linked(path: Path) -> AsyncIterator[SocketBus]:
    bus = SocketBus(path)
    try:
        yield bus
    finally:
        await bus.close()


async def test_events_reach_the_watchers_of_other_clients_in_order(hub: BusServer) -> None:
    async with linked(hub.path) as here, linked(hub.path) as there, there.subscribe("c") as watch:
        for sequence in (1, 2, 3):
            here.publish(delta(sequence))
        here.publish(delta(1, "other"))
        here.publish(delta(4))

        assert [delta(1), delta(2), delta(3), delta(4)] == await take(watch, 4)


async def test_a_client_hears_its_own_events_through_the_hub(hub: BusServer) -> None:
    async with linked(hub.path) as bus, bus.subscribe("c") as one, bus.subscribe("c") as two:
        bus.publish(delta(1))

        assert [[delta(1)], [delta(1)]] == [await take(one, 1), await take(two, 1)]


async def test_every_event_published_after_entering_arrives_however_often_one_comes_and_goes(hub: BusServer) -> None:
    async with linked(hub.path) as here, linked(hub.path) as there:
        for sequence in range(1, 201):
            async with there.subscribe("c") as watch:
                here.publish(delta(sequence))

                assert [delta(sequence)] == await take(watch, 1)


async def test_a_slow_process_is_told_to_resync_and_holds_up_nobody(hub: BusServer) -> None:
    reader, writer = await asyncio.open_unix_connection(str(hub.path))
    writer.write(Packet(Op.SUBSCRIBE, "c", b"1").encode())
    assert Packet(Op.SUBSCRIBED, "c", b"1") == await read_packet(reader)
    big = delta(1).model_copy(update={"text_delta": "x" * 100_000})

    async with linked(hub.path) as bus, bus.subscribe("c") as watch:
        for _ in range(1000):
            bus.publish(big)
            assert [big] == await take(watch, 1)
    packets = [await read_packet(reader) for _ in range(2)]
    while packets[-1] is not None and packets[-1].op is not Op.RESYNC:
        packets.append(await read_packet(reader))
    writer.close()
    await writer.wait_closed()

    assert Packet(Op.RESYNC) == packets[-1]
    assert 1000 > len(packets)


async def test_watchers_resync_and_go_on_when_the_hub_comes_back(tmp_path: Path) -> None:
    path = socket_path(tmp_path)
    async with linked(path) as here, linked(path) as there:
        async with contextlib.AsyncExitStack() as stack:
            async with BusServer(path):
                watch = await stack.enter_async_context(there.subscribe("c"))
                here.publish(delta(1))
                before = await take(watch, 1)
            async with BusServer(path):
                again = await take(watch, 1)
                here.publish(delta(2))
                while (item := (await take(watch, 1))[0]) == RESYNC:
                    again.append(item)

                assert [delta(1)] == before
                assert {RESYNC} == set(again)
                assert delta(2) == item


async def first_of(bus: SocketBus) -> Event | Resync:
    async with bus.subscribe("c") as watch:
        return (await take(watch, 1))[0]


async def test_an_event_published_before_the_hub_is_up_waits_for_it(tmp_path: Path) -> None:
    path = socket_path(tmp_path)
    async with linked(path) as bus:
        first = asyncio.create_task(first_of(bus))
        await asyncio.sleep(0)
        bus.publish(delta(1))
        async with BusServer(path):
            assert delta(1) == await first


async def test_without_a_hub_a_watch_starts_with_a_resync(tmp_path: Path) -> None:
    async with linked(socket_path(tmp_path)) as bus, bus.subscribe("c") as watch:
        assert [RESYNC] == await take(watch, 1)


async def test_what_waits_for_a_hub_that_never_comes_is_bounded(tmp_path: Path) -> None:
    async with linked(socket_path(tmp_path)) as bus:
        for sequence in range(1, 3 * MAX_PENDING):
            bus.publish(delta(sequence))
        outbox = bus._outbox

        assert outbox is not None
        assert MAX_PENDING >= len(outbox._events)


async def test_an_event_that_cannot_be_read_becomes_a_resync(hub: BusServer) -> None:
    _, writer = await asyncio.open_unix_connection(str(hub.path))
    async with linked(hub.path) as bus, bus.subscribe("c") as watch:
        writer.write(Packet(Op.EVENT, "c", b'{"type":"from-the-future"}').encode())

        assert [RESYNC] == await take(watch, 1)
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_speaks_nonsense_is_dropped_and_nobody_else(hub: BusServer) -> None:
    reader, writer = await asyncio.open_unix_connection(str(hub.path))
    async with linked(hub.path) as bus, bus.subscribe("c") as watch:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        bus.publish(delta(1))

        assert b"" == answer
        assert [delta(1)] == await take(watch, 1)
    writer.close()
    await writer.wait_closed()


async def test_what_was_published_last_is_sent_before_a_client_closes(hub: BusServer) -> None:
    async with linked(hub.path) as there, there.subscribe("c") as watch:
        async with linked(hub.path) as here:
            here.publish(delta(1))

        assert [delta(1)] == await take(watch, 1)


async def test_the_socket_is_for_its_user_alone_and_goes_with_the_hub(tmp_path: Path) -> None:
    path = socket_path(tmp_path)
    async with BusServer(path):
        mode = stat.S_IMODE(path.stat().st_mode)

    assert 0o600 == mode
    assert not path.exists()


async def test_a_second_hub_is_refused_and_a_dead_one_replaced(tmp_path: Path) -> None:
    path = socket_path(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with BusServer(path):
        with pytest.raises(StackError, match="already running"):
            async with BusServer(path):
                raise AssertionError("two hubs at one place")


def test_a_state_folder_with_a_long_path_gets_a_short_private_socket(tmp_path: Path) -> None:
    path = socket_path(tmp_path / ("deep" * 30))

    assert 100 >= len(str(path))
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
    path.parent.rmdir()


async def test_who_hears_gets_what_is_there_what_comes_in_time_and_no_more() -> None:
    bus = InProcessBus()
    async with bus.subscribe("c") as watch:
        first, second = delta(1), delta(2)
        bus.publish(first)
        assert first == await watch.hear(60)
        hearing = asyncio.create_task(watch.hear(60))
        await asyncio.sleep(0)
        bus.publish(second)
        assert (second, None, False) == (await hearing, await watch.hear(0.001), watch.is_over)
        hearing = asyncio.create_task(watch.hear(60))
        await asyncio.sleep(0)
        hearing.cancel()
        await asyncio.wait({hearing})
        bus.publish(first)
        assert first == await watch.hear(60)
        hearing = asyncio.create_task(watch.hear(60))
        await asyncio.sleep(0)
        bus.publish(second)
        await bus.close()
        assert (second, None, True) == (await hearing, await watch.hear(60), watch.is_over)
