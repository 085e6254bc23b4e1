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
    async with _heartbeats():
        with _moved_at_shutdown():
            yield


@contextlib.asynccontextmanager
async def _heartbeats() -> AsyncIterator[None]:
    """Heartbeat every two seconds while the context is open, whatever else goes on.

    The start of an activity counts as a beat; one that is over at once makes no other.
    """
    task = asyncio.create_task(_beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _beat() -> None:
    await asyncio.sleep(FIRST_BEAT_SECONDS)
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT_SECONDS)


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
