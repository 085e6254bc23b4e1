"""Watching: each durable event once, however much comes without a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from turnlane.client.watching import REMEMBERED_IDS, Watcher
from turnlane.records.events import AssistantDeltaEvent, Event, RunStateEvent
from turnlane.records.runs import RunState
from turnlane.store.bus import InProcessBus, Resync

MANY = REMEMBERED_IDS * 3
AT = datetime(2026, 1, 1, tzinfo=UTC)


def _event(version: int) -> RunStateEvent:
    return RunStateEvent(
        conversation_id="c",
        run_id="r",
        emitted_at=AT,
        snapshot_version=version,
        state=RunState.RUNNING,
    )


EVENTS = tuple(_event(number) for number in range(1, MANY + 2))


class Ledger:
    """A store of a ledger that has everything that was told, and no more."""

    def __init__(self) -> None:
        self.told = 0

    async def last_seq(self, conversation_id: str, **_: Any) -> int:
        return self.told

    async def events_since(
        self, conversation_id: str, seq: int, limit: int, **_: Any
    ) -> tuple[tuple[RunStateEvent, ...], int]:
        page = EVENTS[seq : min(self.told, seq + limit)]
        return page, seq + len(page)


class TirelessBus:
    """A bus on which one event follows the other, and which loses the last one."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def publish(self, event: Event) -> None:
        """Nobody publishes here."""

    @asynccontextmanager
    async def subscribe(self, conversation_id: str) -> AsyncIterator[AsyncIterator[Event | Resync]]:
        yield self._news()

    async def _news(self) -> AsyncIterator[Event | Resync]:
        for event in EVENTS[:-1]:
            self._ledger.told += 1
            yield event
        self._ledger.told += 1
        yield Resync()
        await asyncio.Event().wait()


async def beginning() -> int:
    return 0


async def test_what_comes_while_the_past_is_told_keeps_its_order() -> None:
    ledger, bus = Ledger(), InProcessBus()
    ledger.told = 3
    delta = AssistantDeltaEvent(
        conversation_id="c", run_id="r", emitted_at=AT, epoch="e", sequence=1, text_delta="word"
    )
    watcher = Watcher(ledger, bus, "c", beginning, None)  # type: ignore[arg-type]
    told: list[Event] = []
    async with asyncio.timeout(10):
        async for event in watcher.events():
            told.append(event)
            if len(told) == 1:
                ledger.told = 5
                bus.publish(delta)
                for news in EVENTS[3:5]:
                    bus.publish(news)
            if event is EVENTS[4]:
                break

    assert [*EVENTS[:3], delta, *EVENTS[3:5]] == told


async def test_nothing_is_missed_that_comes_while_the_beginning_is_looked_up() -> None:
    bus = InProcessBus()
    delta = AssistantDeltaEvent(
        conversation_id="c", run_id="r", emitted_at=AT, epoch="e", sequence=1, text_delta="word"
    )

    async def late() -> int:
        bus.publish(delta)
        return 0

    watcher = Watcher(Ledger(), bus, "c", late, None)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        assert delta == await anext(watcher.events())


async def test_what_came_without_a_pause_is_not_told_again_when_the_ledger_is_read() -> None:
    ledger = Ledger()
    told: list[int] = []
    async with asyncio.timeout(10):
        watcher = Watcher(ledger, TirelessBus(ledger), "c", beginning, None)  # type: ignore[arg-type]
        async for event in watcher.events():
            assert isinstance(event, RunStateEvent)
            told.append(event.snapshot_version)
            if event is EVENTS[-1]:
                break

    assert list(range(1, MANY + 2)) == told
