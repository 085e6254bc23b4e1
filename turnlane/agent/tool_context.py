"""What a tool knows of the call it works for, and how it hears that the call is no longer wanted."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from turnlane.agent.durable import RECONCILE_SECONDS, Body, DurableBody, EffectResult
from turnlane.agent.tool_reply import ToolError
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


class CallNote(NamedTuple):
    """A ledger event about a call: counts and codes, never content."""

    kind: str
    payload: JsonObject


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """Which call of which run a tool is working for. A parameter of this type is filled in by turnlane."""

    conversation_id: str
    run_id: str
    step_number: int
    call_id: str
    agent: str
    tenant: str | None = None
    context: JsonObject | None = None
    metadata: JsonObject | None = None
    attempt: int = 1
    cancelled: Cancellation = field(default_factory=Cancellation, compare=False)
    surface: str | None = None
    notes: list[CallNote] = field(default_factory=list, compare=False, repr=False)
    durable: DurableBody | None = field(default=None, compare=False, repr=False)

    @property
    def idempotency_key(self) -> str:
        """Names this call, the same for every attempt of it: pass it to services that de-duplicate."""
        return derived_id("call", self.conversation_id, self.run_id, str(self.step_number), self.call_id)

    def note(self, kind: str, payload: JsonObject) -> None:
        """Have a ledger event appended when the call has ended."""
        self.notes.append(CallNote(kind, payload))

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

    # --- durable bodies -------------------------------------------------------------------------

    async def step(self, name: str, body: Body) -> Any:
        """Run `body` once for this call and return what it returned, now and whenever the tool runs again.

        What it raises is not recorded. Its value has to be lossless JSON (`turnlane.records.lossless`), and
        each caller gets a copy of its own. A name used by two at once is run once.
        """
        return await self._body.step(name, body)

    async def sleep(self, seconds: float, name: str | None = None) -> None:
        """Return once `seconds` have passed since this call first came here, whatever became of its worker.

        A longer sleep gives the worker back: the tool is run again from its start when it is over.
        """
        await self._body.sleep(seconds, name)

    async def wait_for(self, event: str, event_id: str) -> Any:
        """Return the payload that `Turnlane.deliver` brought for this event, however long that takes.

        Until then no worker is held: the tool is run again from its start when the event is delivered.
        """
        return await self._body.wait_for(event, event_id)

    async def effect(
        self, name: str, *, run: Body, reconcile: Body, timeout: float = RECONCILE_SECONDS
    ) -> EffectResult:
        """Make an effect at most once. When a worker was lost after `run` began, `reconcile` is asked instead.

        `run` returns proof of the effect, at most 64 KiB of lossless JSON. `reconcile` looks for it: the proof,
        or None if it cannot be found, which leaves the effect uncertain for good. If it raises, or takes
        longer than `timeout` seconds, nothing is decided and a `ToolError` says so.
        """
        return await self._body.effect(name, run, reconcile, timeout)

    @property
    def _body(self) -> DurableBody:
        if self.durable is None:
            raise ToolError("NOT_DURABLE", "the tool is not durable: it has to be declared with @tool(durable=True)")
        return self.durable
