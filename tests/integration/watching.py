"""Watching: somebody who hears what is told of a conversation, from before something happens in it.

What streams is told to those who listen, once. Who subscribes after a submit may find the answer over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tests.integration.stage import BOUND
from turnlane.records.events import Event, TerminalEvent


class Watch:
    """Somebody who collects events in the background, up to a number of terminals."""

    def __init__(self, events: AsyncIterator[Event], terminals: int = 1) -> None:
        self.events: list[Event] = []
        self._left = terminals
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._collect(events))

    async def _collect(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            async with self._changed:
                self.events.append(event)
                self._changed.notify_all()
            self._left -= isinstance(event, TerminalEvent)
            if self._left == 0:
                return

    async def until(self, kind: str) -> None:
        """Return once an event of this type was told."""
        async with asyncio.timeout(BOUND), self._changed:
            await self._changed.wait_for(lambda: any(event.type == kind for event in self.events))

    async def finished(self) -> list[Event]:
        """Everything."""
        async with asyncio.timeout(BOUND):
            await self._task
        return self.events
