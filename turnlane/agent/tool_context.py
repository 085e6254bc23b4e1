"""What a tool knows of the call it works for, and how it hears that the call is no longer wanted."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

from turnlane.records.base import JsonObject, derived_id


class ToolCancelled(Exception):
    """Raised in a tool by `ToolContext.check` when its run was asked to stop."""


class Cancellation:
    """A flag that is raised once and seen by threads and coroutines alike."""

    def __init__(self) -> None:
        self._raised = threading.Event()
        self._lock = threading.Lock()
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Raise the flag and wake everybody who waits for it. May be called from any thread, and again."""
        with self._lock:
            self._raised.set()
            waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            loop = waiter.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)

    def is_set(self) -> bool:
        """Whether the flag was raised."""
        return self._raised.is_set()

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is raised; False when `timeout` seconds passed first."""
        return self._raised.wait(timeout)

    async def wait(self) -> None:
        """Return once the flag is raised."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._raised.is_set():
                return
            self._waiters.add(waiter)
        try:
            await waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """Which call of which run a tool is working for. A parameter of this type is filled in by turnlane."""

    conversation_id: str
    run_id: str
    step: int
    call_id: str
    agent: str
    tenant: str | None = None
    context: JsonObject | None = None
    metadata: JsonObject | None = None
    attempt: int = 1
    cancelled: Cancellation = field(default_factory=Cancellation, compare=False)

    @property
    def idempotency_key(self) -> str:
        """Names this call, the same for every attempt of it: pass it to services that de-duplicate."""
        return derived_id("call", self.conversation_id, self.run_id, str(self.step), self.call_id)

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was asked to stop. May be read from any thread."""
        return self.cancelled.is_set()

    def check(self) -> None:
        """Raise ToolCancelled if the run was asked to stop. For loops of tools that run in a thread."""
        if self.cancelled.is_set():
            raise ToolCancelled

    async def wait_cancelled(self) -> None:
        """Return once the run was asked to stop."""
        await self.cancelled.wait()
