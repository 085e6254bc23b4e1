"""Watching a conversation of the demo: every event is shown, kept, and can be waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from turnlane.client.cli.transcript import Transcript
from turnlane.client.client import Turnlane
from turnlane.records.cursors import LiveText, follow
from turnlane.records.events import Event, TerminalEvent
from turnlane.store.bus import EventBus

PATIENCE = 25.0

E = TypeVar("E", bound=Event)


class Watch:
    """The events of one conversation from its beginning, while the context is open."""

    def __init__(self, client: Turnlane, bus: EventBus, conversation_id: str, transcript: Transcript | None) -> None:
        self.events: list[Event] = []
        self._client = client
        self._bus = bus
        self._conversation_id = conversation_id
        self._transcript = transcript
        self._live: dict[str, LiveText] = {}
        self._news = asyncio.Condition()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Watch:
        # Subscribed before the first input is sent, so that not even the first word is missed.
        await self._stack.enter_async_context(self._bus.subscribe(self._conversation_id))
        self._stack.push_async_callback(_ended, asyncio.create_task(self._follow()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _follow(self) -> None:
        async for event in self._client.events(self._conversation_id, from_seq=0):
            async with self._news:
                self._take(event)
                self._news.notify_all()

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._live[event.run_id] = follow(self._live.get(event.run_id, LiveText(event.run_id)), event)
        if self._transcript is not None:
            self._transcript.show(event)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds()` is true, asked anew after each event. Raises TimeoutError when patience ends."""
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(holds)

    async def until_said(self, run_id: str, text: str) -> None:
        """Return once a run's answer reads exactly so."""
        await self.until(lambda: self.text(run_id) == text)

    async def until_ended(self, run_id: str) -> None:
        """Return once a run has ended, with its last event shown."""
        await self.until(lambda: any(event.run_id == run_id for event in self.of(TerminalEvent)))

    def text(self, run_id: str) -> str:
        """A run's answer as a person who watches sees it now."""
        return self._live.get(run_id, LiveText(run_id)).shown.text

    def text_after(self, event: Event) -> str:
        """The answer of the event's run as it was shown right after the event."""
        live = LiveText(event.run_id)
        for seen in self.events[: self.events.index(event) + 1]:
            live = follow(live, seen)
        return live.shown.text

    def of(self, kind: type[E]) -> list[E]:
        """The events of one type so far."""
        return [event for event in self.events if isinstance(event, kind)]


async def _ended(following: asyncio.Task[None]) -> None:
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
