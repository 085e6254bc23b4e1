"""The floor: the least that a turn with these guarantees can cost on this Temporal, on this machine.

A bare workflow with the hops of a plain turn and nothing else: an update that starts it if need be, a
local activity where turnlane commits the admission, one activity where it calls the model, a local
activity where it commits the end. It stores nothing, checks nothing, and streams nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateStage
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

COMMIT = "floor_commit"
STEP = "floor_step"
PREFIX = "floor/"


class FloorInput(BaseModel):
    """What is submitted."""

    key: str
    text: str


class FloorRecord(BaseModel):
    """What is committed, and what an admission is answered with."""

    key: str
    state: str
    version: int = 0


@workflow.defn
class FloorLane:
    """One conversation of the floor."""

    def __init__(self) -> None:
        self._inbox: deque[FloorInput] = deque()
        self._states: dict[str, FloorRecord] = {}

    @workflow.run
    async def run(self) -> None:
        """Answer inputs, one after the other, for ever."""
        while True:
            await workflow.wait_condition(lambda: bool(self._inbox))
            given = self._inbox.popleft()
            await self._commit(given.key, "admitted")
            await workflow.execute_activity(
                STEP, given, result_type=FloorRecord, start_to_close_timeout=timedelta(seconds=60)
            )
            await self._commit(given.key, "ended")

    async def _commit(self, key: str, state: str) -> None:
        self._states[key] = await workflow.execute_local_activity(
            COMMIT,
            FloorRecord(key=key, state=state),
            result_type=FloorRecord,
            schedule_to_close_timeout=timedelta(seconds=10),
        )

    @workflow.update
    async def submit(self, given: FloorInput) -> FloorRecord:
        """Answer when the input is admitted."""
        self._inbox.append(given)
        await workflow.wait_condition(lambda: given.key in self._states)
        return self._states[given.key]

    @workflow.update
    async def wait(self, key: str) -> FloorRecord:
        """Answer when the input's turn has ended."""
        await workflow.wait_condition(lambda: key in self._states and self._states[key].state == "ended")
        return self._states[key]


class FloorWork:
    """The floor's activities, and who in this process waits for an end."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Future[None]] = {}
        self._version = 0

    def end_of(self, key: str) -> asyncio.Future[None]:
        """A future that is done when the input's turn has ended."""
        return self._ends.setdefault(key, asyncio.get_running_loop().create_future())

    async def keep(self, conversation: str, record: FloorRecord) -> None:
        """Store a record. The floor stores nothing."""

    async def speak(self, conversation: str, given: FloorInput) -> None:
        """Store what is said in answer. The floor stores nothing."""

    @activity.defn(name=COMMIT)
    async def commit(self, record: FloorRecord) -> FloorRecord:
        """Keep a record, count a version, and tell an end to those who wait for it."""
        await self.keep(_conversation(), record)
        self._version += 1
        if record.state == "ended":
            end = self._ends.pop(record.key, None)
            if end is not None:
                end.set_result(None)
        return record.model_copy(update={"version": self._version})

    @activity.defn(name=STEP)
    async def step(self, given: FloorInput) -> FloorRecord:
        """Answer at once."""
        await self.speak(_conversation(), given)
        return FloorRecord(key=given.key, state="answered")


def _conversation() -> str:
    """The conversation that an activity works for."""
    return str(activity.info().workflow_id).removeprefix(PREFIX)


def floor_worker(client: Client, work: FloorWork, task_queue: str) -> Worker:
    """A worker of the floor, not running yet."""
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[FloorLane],
        activities=[work.commit, work.step],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )


class FloorClient:
    """Submits to the floor."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue

    async def submit(self, conversation: str, given: FloorInput) -> FloorRecord:
        """Submit, and return when the input is admitted."""
        start: WithStartWorkflowOperation[FloorLane, None] = WithStartWorkflowOperation(
            FloorLane.run,
            id=f"{PREFIX}{conversation}",
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        update = await self._client.start_update_with_start_workflow(
            FloorLane.submit,
            given,
            start_workflow_operation=start,
            wait_for_stage=WorkflowUpdateStage.COMPLETED,
        )
        return await update.result()

    async def wait(self, conversation: str, key: str) -> FloorRecord:
        """Return when the input's turn has ended, asking the workflow alone."""
        handle = self._client.get_workflow_handle_for(FloorLane.run, f"{PREFIX}{conversation}")
        return await handle.execute_update(FloorLane.wait, key)
