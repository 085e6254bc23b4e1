"""The studio: where one kind of turn is played on a real server, so that its histories can be kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from temporalio.client import Client, WorkflowHandle, WorkflowHistory

from tests.integration.stage import BOUND, until
from turnlane.agent import Agent, ScriptedModel, tool
from turnlane.agent.models import Action, Script, ScriptedRequest
from turnlane.agent.tools import Tool
from turnlane.client import Turnlane
from turnlane.records.errors import StoreUnavailableError
from turnlane.records.lane import LaneSettings
from turnlane.records.mutations import CommitBatch
from turnlane.store.bus import InProcessBus
from turnlane.store.payloads import Committed, StepFinish, Written
from turnlane.store.protocol import Store
from turnlane.store.sql import SqlStore
from turnlane.testing.races import Barrier
from turnlane.worker import build_worker


class BreakableStore:
    """A store whose commits get no answer while it is broken, and whose steps hear late that they ended, if `late` is
    set."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._changed = asyncio.Condition()
        self.is_broken = False
        self.late: Barrier | None = None
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        """Commit, unless broken."""
        if not self.is_broken:
            return await self._store.commit(batch, now)
        async with self._changed:
            self.refused += 1
            self._changed.notify_all()
        raise StoreUnavailableError("the store is broken")

    async def finish_step(self, finish: StepFinish, now: datetime) -> Written:
        """Store the end of a step, and say so when it may be heard of."""
        written = await self._store.finish_step(finish, now)
        if self.late is not None:
            await self.late.wait()
        return written

    async def until_refused(self, times: int) -> None:
        """Return once that many commits were refused."""
        async with asyncio.timeout(BOUND), self._changed:
            await self._changed.wait_for(lambda: self.refused >= times)


@dataclass
class Studio:
    """A conversation of its own, named after the kind of turn, and what it takes to play in it."""

    name: str
    temporal: Client
    store: BreakableStore
    bus: InProcessBus = field(default_factory=InProcessBus)
    lives: list[str] = field(default_factory=list)
    held: Barrier = field(default_factory=lambda: Barrier("hold", BOUND))
    speaking: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def whole_store(self) -> Store:
        """The store, as a worker and a client take it."""
        return cast(Store, self.store)

    @property
    def lane(self) -> WorkflowHandle[Any, Any]:
        """The workflow of the conversation."""
        return self.temporal.get_workflow_handle(f"lane/{self.name}")

    def client(self, *, store: bool = True) -> Turnlane:
        """A client; without the store it uses Temporal alone."""
        return Turnlane(
            self.temporal,
            store=self.whole_store if store else None,
            bus=self.bus if store else None,
            task_queue=self.name,
            answer_seconds=BOUND,
        )

    @asynccontextmanager
    async def serving(self, *agents: Agent, **settings: Any) -> AsyncIterator[Turnlane]:
        """A worker that serves `agents` with these lane settings, and a client."""
        worker = build_worker(
            self.temporal,
            store=self.whole_store,
            agents=agents,
            bus=self.bus,
            task_queue=self.name,
            settings=LaneSettings(**settings),
            graceful_seconds=1.0,
        )
        async with worker:
            yield self.client()
            await self.remember()

    async def remember(self) -> None:
        """Note the life that the lane has now; a lane that ends and starts again has several."""
        described = await self.lane.describe()
        first = described.raw_description.workflow_execution_info.first_run_id
        if first not in self.lives:
            self.lives.append(first)

    async def until_speaking(self) -> None:
        """Return once a model call of a `slow` script has begun."""
        async with asyncio.timeout(BOUND):
            await self.speaking.wait()
        self.speaking.clear()

    async def until_ended(self, name: str, times: int) -> None:
        """Return once the activity of a tool has ended that often in the history that the lane has now."""

        async def ended() -> bool:
            return await self._ended(name) >= times

        await until(ended)

    async def _ended(self, name: str) -> int:
        scheduled: set[int] = set()
        ended = 0
        async for event in self.lane.fetch_history_events():
            if event.HasField("activity_task_scheduled_event_attributes"):
                if event.activity_task_scheduled_event_attributes.activity_type.name == name:
                    scheduled.add(event.event_id)
            elif event.HasField("activity_task_completed_event_attributes"):
                ended += event.activity_task_completed_event_attributes.scheduled_event_id in scheduled
        return ended

    async def until_moved(self) -> None:
        """Return once the lane has moved to a fresh history since it was first remembered."""

        async def moved() -> bool:
            described = await self.lane.describe()
            return described.run_id != described.raw_description.workflow_execution_info.first_run_id

        await until(moved)

    def hold(self) -> Tool:
        """A tool that returns when the test releases it."""

        @tool(read_only=True)
        async def hold() -> str:
            """Wait to be released."""
            await self.held.wait()
            return "released"

        return hold

    async def histories(self) -> list[WorkflowHistory]:
        """Every history of every life of the lane, in order."""
        found: list[WorkflowHistory] = []
        for first in self.lives:
            run_id = first
            while run_id:
                handle = self.temporal.get_workflow_handle(f"lane/{self.name}", run_id=run_id)
                history = await handle.fetch_history()
                found.append(history)
                last = history.events[-1].workflow_execution_continued_as_new_event_attributes
                run_id = last.new_execution_run_id
        return [history for history in found if has_begun(history)]


def has_begun(history: WorkflowHistory) -> bool:
    """Whether a worker ever worked on it: without that there is nothing to replay."""
    return any(event.HasField("workflow_task_completed_event_attributes") for event in history.events)


def agent(script: Script, *, tools: Sequence[Tool] = (), **options: Any) -> Agent:
    """An agent that plays a script."""
    return Agent(**{"name": "actor", "model": ScriptedModel(script=script), "tools": tools, **options})


def by_step(*steps: Sequence[Action]) -> Script:
    """A script that says the same in every run: one list of actions for each step, the last one ever after."""

    def script(request: ScriptedRequest) -> Sequence[Action]:
        return steps[min(request.step, len(steps) - 1)]

    return script
