"""The event bus: how news of a conversation reaches those who watch it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from turnlane.records.events import Event


@dataclass(frozen=True)
class Resync:
    """The watcher was too slow, or the link broke: events are missing. Catch up from the store."""


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
