"""Watching: each durable event once, however much comes without a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from turnlane.client.watching import REMEMBERED_IDS, Watcher
from turnlane.records.events import Event, RunStateEvent
from turnlane.records.runs import RunState
from turnlane.store.bus import Resync

MANY = REMEMBERED_IDS * 3


def _event(version: int) -> RunStateEvent:
    return RunStateEvent(
        conversation_id="c",
        run_id="r",
        emitted_at=datetime(2026, 1, 1, tzinfo=UTC),
        snapshot_version=version,
        state=RunState.RUNNING,
    )


EVENTS = tuple(_event(number) for number in range(1, MANY + 2))


class Ledger:
    """A store of a ledger that has everything that was told, and no more."""

    def __init__(self) -> None:
        self.told = 0

    async def events_since(self, conversation_id: str, seq: int, **_: Any) -> tuple[tuple[RunStateEvent, ...], int]:
        page = EVENTS[seq : min(self.told, seq + 200)]
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


async def test_what_came_without_a_pause_is_not_told_again_when_the_ledger_is_read() -> None:
    ledger = Ledger()
    told: list[int] = []
    async with asyncio.timeout(10):
        watcher = Watcher(ledger, TirelessBus(ledger), "c", 0, None)  # type: ignore[arg-type]
        async for event in watcher.events():
            assert isinstance(event, RunStateEvent)
            told.append(event.snapshot_version)
            if event is EVENTS[-1]:
                break

    assert list(range(1, MANY + 2)) == told
