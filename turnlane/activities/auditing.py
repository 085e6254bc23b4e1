"""Auditing: what a model step asks of whoever keeps receipts of its attempts; usually nobody does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from turnlane.activities.providers.base import ProviderRequest, StreamPart, closing
from turnlane.records.base import JsonObject
from turnlane.records.runs import OperationPhase
from turnlane.records.steps import Fence
from turnlane.records.usage import Usage
from turnlane.store.protocol import Store


class Audit(Protocol):
    """The audit of one attempt. `is_refused` says that the call was not made, since the application forbade it."""

    is_refused: bool

    @property
    def operation_id(self) -> str | None:
        """What the application calls the operation, where it has receipts."""
        ...

    async def open(self) -> JsonObject:
        """Return what the event that begins the attempt says besides."""
        ...

    async def announce(self) -> None:
        """Called once that event is stored, and before the provider is."""
        ...

    def stream(self, stream: AsyncIterator[StreamPart]) -> AsyncGenerator[StreamPart, None]:
        """Pass the provider's stream on; closing what is returned closes it."""
        ...

    async def close(self, phase: OperationPhase, usage: Usage | None) -> JsonObject:
        """Return what the event that ends the attempt says besides."""
        ...


class Auditor(Protocol):
    """Keeps receipts of the attempts of agent runs, in a store: `ModelInvocations` does."""

    @property
    def store(self) -> Store:
        """The store whose runs it keeps receipts of."""
        ...

    def audit(self, fence: Fence, request: ProviderRequest) -> Audit:
        """The audit of one attempt."""
        ...


class NoAudit:
    """Nobody keeps receipts."""

    is_refused = False
    operation_id: str | None = None

    async def open(self) -> JsonObject:
        return {}

    async def announce(self) -> None:
        return

    async def stream(self, stream: AsyncIterator[StreamPart]) -> AsyncGenerator[StreamPart, None]:
        """Any iterator as a generator, so that leaving it early closes it."""
        async with closing(stream) as parts:
            async for part in parts:
                yield part

    async def close(self, phase: OperationPhase, usage: Usage | None) -> JsonObject:
        return {}
