"""The event bus: how news of a conversation reaches those who watch it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from turnlane.records.events import Event


@dataclass(frozen=True)
class Resync:
    """The watcher was too slow, or the link broke: events are missing. Catch up from the store."""


RESYNC = Resync()


class EventBus(Protocol):
    """Carries events from activities to watchers. Delivery is at most once; the ledger is the truth."""

    def publish(self, event: Event) -> None:
        """Hand an event to everyone who watches its conversation.

        Never blocks, never raises into a run: a watcher that does not keep up is told to resync.
        """
        ...

    def subscribe(
        self, conversation_id: str, *, capacity: int = 1024
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | Resync]]:
        """Watch a conversation while the context is open.

        On entering, everything published from then on is delivered, in each publisher's order. Past
        `capacity` undelivered events the queue is dropped and one `Resync` stands in its place.
        """
        ...

    async def close(self) -> None:
        """Release the bus; open subscriptions end."""
        ...


class Watch(AsyncIterator[Event | Resync]):
    """One watcher's bounded queue. Filled from the loop it was made in, or by `post` from any thread."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a watch holds at least one event")
        self._capacity = capacity
        self._queue: deque[Event | Resync] = deque()
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._ended = False

    def offer(self, item: Event | Resync) -> None:
        """Queue an item; over capacity, or for a `Resync`, everything queued becomes one `Resync`."""
        if self._ended:
            return
        if isinstance(item, Resync) or len(self._queue) >= self._capacity:
            self._queue.clear()
            item = RESYNC
        self._queue.append(item)
        self._wake.set()

    def post(self, item: Event | Resync) -> None:
        """Queue an item from any thread, in the order of the calls of that thread."""
        if running_loop() is self._loop:
            self.offer(item)
            return
        # A loop that was closed under its watcher has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.offer, item)

    def end(self) -> None:
        """Let the watcher read what is queued, and then end."""
        self._ended = True
        self._wake.set()

    @property
    def is_over(self) -> bool:
        """Whether everything was read, and nothing more will come."""
        return self._ended and not self._queue

    async def hear(self, seconds: float) -> Event | Resync | None:
        """The next item; None when there is none within `seconds`, or the watch is over. Nothing is lost by that."""
        if not self._queue and not self._ended:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        return self._queue.popleft() if self._queue else None

    async def __anext__(self) -> Event | Resync:
        while not self._queue:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Watches:
    """Who watches what: the open watches of each conversation.

    Tuples are replaced, never changed, so a publisher on another thread may walk one at any time.
    """

    def __init__(self) -> None:
        self._by_conversation: dict[str, tuple[Watch, ...]] = {}

    def of(self, conversation_id: str) -> tuple[Watch, ...]:
        """The watches of one conversation."""
        return self._by_conversation.get(conversation_id, ())

    def conversations(self) -> tuple[str, ...]:
        """The conversations that somebody watches."""
        return tuple(self._by_conversation)

    def add(self, conversation_id: str, watch: Watch) -> None:
        """Let `watch` be told of a conversation from now on."""
        self._by_conversation[conversation_id] = (*self.of(conversation_id), watch)

    def remove(self, conversation_id: str, watch: Watch) -> None:
        """Tell `watch` no more."""
        left = tuple(other for other in self.of(conversation_id) if other is not watch)
        if left:
            self._by_conversation[conversation_id] = left
        else:
            self._by_conversation.pop(conversation_id, None)

    def __iter__(self) -> Iterator[Watch]:
        return iter([watch for watches in self._by_conversation.values() for watch in watches])


class InProcessBus:
    """The bus of one process: publishers and watchers share memory."""

    def __init__(self) -> None:
        self._watches = Watches()
        self._closed = False

    def publish(self, event: Event) -> None:
        """Hand an event to everyone who watches its conversation, from any thread."""
        for watch in self._watches.of(event.conversation_id):
            watch.post(event)

    @asynccontextmanager
    async def subscribe(self, conversation_id: str, *, capacity: int = 1024) -> AsyncIterator[Watch]:
        """Watch a conversation while the context is open. On a closed bus the watch ends at once."""
        watch = Watch(capacity)
        self._watches.add(conversation_id, watch)
        if self._closed:
            watch.end()
        try:
            yield watch
        finally:
            self._watches.remove(conversation_id, watch)
            watch.end()

    async def close(self) -> None:
        """End every open subscription."""
        self._closed = True
        for watch in self._watches:
            watch.end()
