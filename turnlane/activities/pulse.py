"""The pulse of an activity: heartbeats from its first line to its last, and why it was cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from enum import StrEnum

from temporalio import activity

BEAT_SECONDS = 2.0


@contextlib.asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat every two seconds while the context is open, whatever else goes on."""
    task = asyncio.create_task(_beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT_SECONDS)


class Cut(StrEnum):
    """Why an activity was told to stop."""

    ABORT = "abort"
    SHUTDOWN = "shutdown"
    LOST = "lost"


def why_cut() -> Cut:
    """Tell why this activity is being cancelled, and let it await again for its last words.

    `ABORT`: the lane asked. `SHUTDOWN`: its worker is going away, which aborts nothing. `LOST`: the server
    has given this attempt up, so whatever it still writes is stale.
    """
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    details = activity.cancellation_details()
    if activity.is_worker_shutdown():
        return Cut.SHUTDOWN
    if details is not None and details.cancel_requested:
        return Cut.ABORT
    return Cut.LOST
