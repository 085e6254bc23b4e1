"""Watching a conversation: durable events from the ledger and live news from the bus, as one stream.

The ledger is the truth. News from the bus comes at once but at most once, so the watcher reads the
ledger when it starts, whenever the bus says that something was lost, every second that nothing came, and
now and then while much comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from turnlane.records.events import DURABLE_TYPES, Event
from turnlane.store.bus import EventBus, Resync, Watch
from turnlane.store.protocol import Store

QUIET_SECONDS = 1.0
FIRST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 0.5
REMEMBERED_IDS = 4096
AHEAD = REMEMBERED_IDS // 2
"""How many events are told before the ledger is read up to them: their ids must still be remembered then."""


PAGE = 200
"""How many ledger events are read at once."""

Start = Callable[[], Awaitable[int]]
"""Says behind which ledger event to begin. It is asked when the watcher listens already: no news is lost to it."""


class Watcher:
    """Reads one conversation from a ledger position on, each durable event once, for ever."""

    def __init__(
        self, store: Store, bus: EventBus | None, conversation_id: str, start: Start, tenant: str | None
    ) -> None:
        self._store = store
        self._bus = bus
        self._conversation_id = conversation_id
        self._tenant = tenant
        self._start = start
        self._seq = 0
        self._told: dict[str, None] = {}
        self._ahead = 0

    async def events(self) -> AsyncIterator[Event]:
        """Every durable event after the position, and what is transient from now on."""
        if self._bus is None:
            self._seq = await self._start()
            async for event in self._polled():
                yield event
            return
        async with self._bus.subscribe(self._conversation_id) as news:
            self._seq = await self._start()
            async for event in self._live(news):
                yield event

    async def _polled(self) -> AsyncIterator[Event]:
        wait = FIRST_POLL_SECONDS
        while True:
            quiet = True
            async for event in self._caught_up():
                quiet = False
                yield event
            wait = min(wait * 1.5, LONGEST_POLL_SECONDS) if quiet else FIRST_POLL_SECONDS
            await asyncio.sleep(wait)

    async def _live(self, news: AsyncIterator[Event | Resync]) -> AsyncIterator[Event]:
        # Only up to now: what comes later the bus tells in its order, a delta before the end of its answer.
        end = await self._store.last_seq(self._conversation_id, tenant=self._tenant)
        async for event in self._caught_up(end):
            yield event
        async with listening(news) as listener:
            while not listener.has_ended:
                item = await listener.hear(QUIET_SECONDS)
                if item is not None and not isinstance(item, Resync):
                    if self._is_new(item):
                        yield item
                    if self._ahead < AHEAD:
                        continue
                async for event in self._caught_up():
                    yield event

    async def _caught_up(self, end: int | None = None) -> AsyncIterator[Event]:
        """The durable events that were not told yet, up to a ledger position or to the last."""
        while end is None or self._seq < end:
            limit = PAGE if end is None else min(PAGE, end - self._seq)
            events, seq = await self._store.events_since(
                self._conversation_id, self._seq, limit=limit, tenant=self._tenant
            )
            for event in events:
                if self._is_new(event):
                    yield event
            if seq == self._seq:
                break
            self._seq = seq
        self._ahead = 0

    def _is_new(self, event: Event) -> bool:
        """Whether a durable event was not told yet. Transient ones are always new: they are never caught up."""
        if not isinstance(event, DURABLE_TYPES):
            return True
        if event.event_id in self._told:
            return False
        self._told[event.event_id] = None
        self._ahead += 1
        if len(self._told) > REMEMBERED_IDS:
            del self._told[next(iter(self._told))]
        return True


class Listener:
    """Hears news within a time, without losing what arrives just as the time is over."""

    def __init__(self, news: AsyncIterator[Event | Resync]) -> None:
        self._news = news
        self._next: asyncio.Task[Event | Resync | None] | None = None
        self.has_ended = False

    async def hear(self, seconds: float) -> Event | Resync | None:
        """The next news, or None when there is none in time, or never again (`has_ended`)."""
        if isinstance(self._news, Watch):
            heard = await self._news.hear(seconds)
            self.has_ended = heard is None and self._news.is_over
            return heard
        if self._next is None:
            self._next = asyncio.ensure_future(_next(self._news))
        done, _ = await asyncio.wait({self._next}, timeout=seconds)
        if not done:
            return None
        item, self._next = self._next.result(), None
        self.has_ended = item is None
        return item

    async def close(self) -> None:
        """Stop listening."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})


@contextlib.asynccontextmanager
async def listening(news: AsyncIterator[Event | Resync]) -> AsyncIterator[Listener]:
    """Listen to news while the context is open."""
    listener = Listener(news)
    try:
        yield listener
    finally:
        await listener.close()


async def _next(news: AsyncIterator[Event | Resync]) -> Event | Resync | None:
    return await anext(news, None)
