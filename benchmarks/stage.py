"""The stage: one dev server, one store, and a turn of turnlane and of the floor, both timed alike."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from benchmarks.agents import AGENTS, PLAIN
from benchmarks.floor import FloorClient, FloorInput, FloorWork, floor_worker
from benchmarks.stored import StoredWork
from turnlane.activities.providers.registry import Providers
from turnlane.agent import Agent
from turnlane.client import Turnlane
from turnlane.client.dev_config import DevConfig
from turnlane.client.dev_server import DevServer
from turnlane.records.runs import TerminalReason
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import SqlStore, open_store
from turnlane.worker import build_worker

TEXT = "Is it so?"
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class TurnTime:
    """How long one turn took, in milliseconds from its submit."""

    admission: float
    result: float


@dataclass(frozen=True)
class Floor:
    """A floor that runs: its activities, and who submits to it."""

    work: FloorWork
    client: FloorClient


@dataclass
class Stage:
    """Where everything is measured. The workers of the floors run; turnlane's is started by who needs it."""

    target: str
    folder: Path
    temporal: Client
    store: SqlStore
    floor: Floor
    stored: Floor
    bus: InProcessBus = field(default_factory=InProcessBus)

    def worker(self, task_queue: str = "lane", *agents: Agent, providers: Providers | None = None) -> Worker:
        """A turnlane worker of this process, not running yet."""
        return build_worker(
            self.temporal,
            store=self.store,
            agents=agents or AGENTS,
            bus=self.bus,
            task_queue=task_queue,
            providers=providers,
            graceful_seconds=2.0,
        )

    def client(self, task_queue: str = "lane", *, alone: bool = False) -> Turnlane:
        """A turnlane client; `alone` has Temporal only and waits there."""
        return Turnlane(
            self.temporal,
            store=None if alone else self.store,
            bus=None if alone else self.bus,
            task_queue=task_queue,
            answer_seconds=PATIENCE_SECONDS,
        )


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """A stage with the floor's worker running, while the context is open."""
    async with DevServer(DevConfig.throwaway(folder)) as server:
        temporal = await Client.connect(server.target, data_converter=pydantic_data_converter)
        store = await open_store(str(folder / "store.db"))
        floor = Floor(FloorWork(), FloorClient(temporal, "floor"))
        stored = Floor(StoredWork(store), FloorClient(temporal, "stored"))
        try:
            async with floor_worker(temporal, floor.work, "floor"), floor_worker(temporal, stored.work, "stored"):
                yield Stage(server.target, folder, temporal, store, floor, stored)
        finally:
            await store.close()


def fresh_id() -> str:
    """A conversation id that nobody used before."""
    return f"c-{uuid.uuid4().hex[:12]}"


async def lane_turn(client: Turnlane, conversation: str, agent: Agent = PLAIN) -> TurnTime:
    """Make one turn of turnlane. Raises RuntimeError when it was not answered."""
    start = perf_counter()
    ticket = await client.submit(conversation, TEXT, agent=agent.name)
    admitted = perf_counter()
    result = await ticket.result(PATIENCE_SECONDS)
    ended = perf_counter()
    if result.reason is not TerminalReason.SUCCESS:
        raise RuntimeError(f"a turn ended as {result.reason}")
    return TurnTime((admitted - start) * 1000, (ended - start) * 1000)


async def floor_turn(floor: Floor, conversation: str, *, waits: bool = False) -> TurnTime:
    """Make one turn of a floor, told of its end in the process or by asking the workflow."""
    given = FloorInput(key=uuid.uuid4().hex, text=TEXT)
    end = floor.work.end_of(given.key)
    start = perf_counter()
    await floor.client.submit(conversation, given)
    admitted = perf_counter()
    if waits:
        await floor.client.wait(conversation, given.key)
    else:
        await end
    ended = perf_counter()
    return TurnTime((admitted - start) * 1000, (ended - start) * 1000)
