"""Heeding a request to stop while the application is asked something: it acts at once, whatever is being asked."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from temporalio.exceptions import ActivityError

from turnlane.records.errors import LaneSupersededError, StaleFenceError
from turnlane.records.lane import LaneRun
from turnlane.records.runs import RunState
from turnlane.workflows.calls import store_call
from turnlane.workflows.core import LaneCore
from turnlane.workflows.until import until

R = TypeVar("R")


async def ask_unless_stopped(core: LaneCore, run: LaneRun, name: str, argument: Any, result: type[R]) -> R | None:
    """Make a short call for a run and return its answer, or None once the run was asked to stop, or is ours no more.

    Raises the `TurnlaneError` behind an error that retrying cannot change.
    """
    call = asyncio.create_task(store_call(name, argument, result, core.settings, core.outage))
    await until(lambda: call.done() or has_stopped(core, run))
    if not call.done():
        call.cancel()
        await asyncio.wait({call})
    if call.cancelled() or isinstance(call.exception(), ActivityError):
        return None
    try:
        return call.result()
    except StaleFenceError:
        # Another incarnation has the conversation: this one takes along what only it has, and leaves.
        core.outbox.lose(LaneSupersededError("another incarnation of the lane has the conversation"))
        return None


def has_stopped(core: LaneCore, run: LaneRun) -> bool:
    """Whether nobody is to work on a run any more."""
    fresh = core.fresh(run)
    return core.outbox.lost is not None or fresh is None or fresh.state is not RunState.RUNNING
