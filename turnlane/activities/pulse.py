"""The pulse of an activity: heartbeats from its first line to its last, and why it was cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from enum import StrEnum

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnlane.activities.failing import persist
from turnlane.records.runs import RunState
from turnlane.records.steps import Fence
from turnlane.store.protocol import Store

WORKER_SHUTDOWN = "WORKER_SHUTDOWN"
FIRST_BEAT_SECONDS = 0.25
BEAT_SECONDS = 2.0


@contextlib.asynccontextmanager
async def at_work() -> AsyncIterator[None]:
    """Heartbeat while the context is open; what its worker's shutdown cancels in there fails, to be tried elsewhere."""
    with _heartbeats(), _moved_at_shutdown():
        yield


@contextlib.contextmanager
def _heartbeats() -> Iterator[None]:
    """Heartbeat every two seconds while the context is open, whatever else goes on.

    The start of an activity counts as a beat; one that is over at once makes no other.
    """
    pulse = _Pulse()
    try:
        yield
    finally:
        pulse.stop()


class _Pulse:
    """A timer that beats: most activities are over before it does, and a task would cost more than it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(FIRST_BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        self._next = self._loop.call_later(BEAT_SECONDS, self._beat)
        activity.heartbeat()

    def stop(self) -> None:
        """Beat no more."""
        self._next.cancel()


class Cut(StrEnum):
    """Why an activity was told to stop."""

    ABORT = "abort"
    SHUTDOWN = "shutdown"
    LOST = "lost"


async def why_cut(store: Store, fence: Fence | None) -> Cut:
    """Tell why this activity is being cancelled, and let it await again for its last words.

    `ABORT`: the lane asked. `SHUTDOWN`: its worker is going away, which aborts nothing. `LOST`: the server
    has given this attempt up, or the lane was terminated: what this attempt still writes is not its run's.
    A terminated lane cancels its activities just as one that asks, but a lane asks in the store first. Work for no
    run (no fence) has nothing there to look at, and takes a request for what it is.
    """
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    details = activity.cancellation_details()
    if details is None or not details.cancel_requested:
        return Cut.SHUTDOWN if activity.is_worker_shutdown() else Cut.LOST
    if fence is None:
        return Cut.ABORT
    found = await persist(lambda: store.load_run_context(fence.conversation_id, fence.run_id))
    return Cut.LOST if found is not None and found.run.state is RunState.RUNNING else Cut.ABORT


@contextlib.contextmanager
def _moved_at_shutdown() -> Iterator[None]:
    """Let an activity that its worker's shutdown cancels fail, so that it is tried elsewhere.

    Cancelled is what it would be else, and to the lane that means that it was asked to stop.
    """
    try:
        yield
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        asked = details is not None and details.cancel_requested
        if asked or not activity.is_worker_shutdown():
            raise
        raise ApplicationError("the worker is shutting down", type=WORKER_SHUTDOWN) from None
