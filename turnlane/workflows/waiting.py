"""Waiting for results: handlers that stay until a run is terminal, and never hold anything up.

The server allows ten updates in flight to a workflow, so the lane lets six callers stay and answers
the others `again` at once. One clock serves them all: it starts with the first who stays, is not
cancelled when they leave (which would cost two history events each), and sends those who stayed a
whole round away to ask again. A lane about to continue as new, or to close, sends everybody away.
"""

from __future__ import annotations

import asyncio

from temporalio import workflow

from turnlane.records.admissions import Terminal
from turnlane.records.errors import RunNotFoundError, TurnlaneError
from turnlane.records.lane import RunStanding, WaitReply
from turnlane.records.mutations import RunLookup
from turnlane.workflows.calls import FIND_RUN, as_failure, store_call
from turnlane.workflows.core import LaneCore
from turnlane.workflows.until import until


class Waiting:
    """Lets callers stay for the end of a run."""

    def __init__(self, core: LaneCore) -> None:
        self._core = core
        self._clock: asyncio.Task[None] | None = None

    async def for_run(self, run_id: str) -> WaitReply:
        """Answer when the run is terminal, or `again`."""
        core = self._core
        end = core.ends.get(run_id)
        if end is not None:
            return WaitReply(terminal=end)
        if core.head.run(run_id) is None:
            return await self._look_up(run_id)
        return await self._stay(run_id)

    def end_of(self, run_id: str) -> WaitReply:
        """What the lane knows by heart: the end, `again` while the run is active, neither if it must be looked up."""
        end = self._core.ends.get(run_id)
        return WaitReply(terminal=end, again=end is None and self._core.head.run(run_id) is not None)

    async def _look_up(self, run_id: str) -> WaitReply:
        standing = await self.standing(run_id)
        if standing.terminal is None and standing.state is None:
            raise as_failure(RunNotFoundError("the conversation has no such run"))
        return WaitReply(terminal=standing.terminal, again=standing.terminal is None)

    async def standing(self, run_id: str) -> RunStanding:
        """How a run stands that is not in the head: what is remembered of its end, else what the store says."""
        core = self._core
        end = core.ends.get(run_id)
        if end is not None:
            return RunStanding(terminal=end, state=end.state)
        lookup = RunLookup(conversation_id=core.conversation_id, run_id=run_id)
        try:
            return await store_call(FIND_RUN, lookup, RunStanding, core.settings, core.outage)
        except TurnlaneError as error:
            # Handlers ask, and what is not a failure of Temporal's would fail the lane's task, over and over.
            raise as_failure(error) from error

    async def catch_up(self) -> bool:
        """Hear that the live run was ended by its own last step, if it was: a caller may know it from the store before
        the lane does. False if the run goes on, or none is live."""
        core = self._core
        live = core.head.live
        if live is None or not core.may_be_settled or (await self.standing(live.id)).terminal is None:
            return False
        await until(lambda: core.fresh(live) is None or core.outbox.lost is not None)
        return True

    async def _stay(self, run_id: str) -> WaitReply:
        core = self._core
        if core.waiters.count >= core.waiters.limit:
            return WaitReply(again=True)
        self._start_clock()
        leave_at = core.waiters.round + 2
        core.waiters.count += 1
        try:
            await until(lambda: self._may_leave(run_id, leave_at))
        finally:
            core.waiters.count -= 1
        end: Terminal | None = core.ends.get(run_id)
        return WaitReply(terminal=end, again=end is None)

    def _may_leave(self, run_id: str, leave_at: int) -> bool:
        core = self._core
        return (
            run_id in core.ends
            or (core.head.run(run_id) is None and core.outbox.is_empty)
            or core.is_draining
            or core.is_closing
            or core.outbox.lost is not None
            or core.waiters.round >= leave_at
        )

    def _start_clock(self) -> None:
        if self._clock is None:
            self._clock = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        waiters = self._core.waiters
        while True:
            await workflow.sleep(self._core.settings.wait_seconds / 2, summary="patience of those who wait")
            waiters.round += 1
            if waiters.count == 0:
                self._clock = None
                return
