"""Workers as processes: how soon one is of use, what it weighs, and what happens when one is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.agents import STREAM
from benchmarks.floor import FloorClient, FloorInput
from benchmarks.stage import PATIENCE_SECONDS, TEXT, Stage, fresh_id, lane_turn
from turnlane.client import Turnlane
from turnlane.records.events import AssistantDeltaEvent, Event
from turnlane.records.runs import TerminalReason
from turnlane.store.bus import Resync
from turnlane.store.bus_socket import BusServer, SocketBus

ROOT = Path(__file__).resolve().parent.parent


@contextlib.asynccontextmanager
async def _worker_process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process, killed when the context ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.served", *arguments, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Workers:
    """Worker processes on the stage's store, and a client beside them that listens on the hub."""

    def __init__(self, stage: Stage, hub: Path) -> None:
        self._stage = stage
        self._hub = hub
        self.bus = SocketBus(hub)

    def lane(self, task_queue: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
        """A turnlane worker process."""
        store = str(self._stage.folder / "store.db")
        return _worker_process("lane", self._stage.target, task_queue, store, str(self._hub))

    def floor(self, task_queue: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
        """A worker process of the floor."""
        return _worker_process("floor", self._stage.target, task_queue)

    def client(self, task_queue: str) -> Turnlane:
        """A client whose news comes over the hub."""
        return Turnlane(
            self._stage.temporal,
            store=self._stage.store,
            bus=self.bus,
            task_queue=task_queue,
            answer_seconds=PATIENCE_SECONDS,
        )


@contextlib.asynccontextmanager
async def workers(stage: Stage) -> AsyncIterator[Workers]:
    """A hub, and what it takes to start workers on it."""
    hub = stage.folder / "bus.sock"
    async with BusServer(hub):
        made = Workers(stage, hub)
        try:
            yield made
        finally:
            await made.bus.close()


# --- start and weight -----------------------------------------------------------------------------


async def starts(stage: Stage, staff: Workers, rounds: int) -> dict[str, Any]:
    """Milliseconds from starting a process to the result of a turn that waits for it, and its memory then."""
    times: dict[str, list[float]] = {"floor": [], "lane": []}
    memory: dict[str, list[float]] = {"floor": [], "lane": []}
    for _ in range(rounds):
        for name in times:
            queue = f"start-{uuid.uuid4().hex[:8]}"
            turn, process = _first_turn(stage, staff, name, queue)
            elapsed, weight = await _started(turn, process)
            times[name].append(elapsed)
            memory[name].append(weight)
    return {
        f"{name}_{what}": round(choose(values[name]), 1)
        for what, values, choose in (("first_result_ms", times, min), ("memory_mb", memory, median))
        for name in times
    }


def _first_turn(
    stage: Stage, staff: Workers, name: str, queue: str
) -> tuple[Callable[[], Awaitable[Any]], contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]]:
    conversation = fresh_id()
    if name == "lane":
        client = staff.client(queue)
        return lambda: lane_turn(client, conversation), staff.lane(queue)

    async def floor() -> None:
        client, key = FloorClient(stage.temporal, queue), uuid.uuid4().hex
        await client.submit(conversation, FloorInput(key=key, text=TEXT))
        await client.wait(conversation, key)

    return floor, staff.floor(queue)


async def _started(
    turn: Callable[[], Awaitable[Any]],
    starting: contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process],
) -> tuple[float, float]:
    waiting = asyncio.ensure_future(turn())
    start = perf_counter()
    async with starting as process:
        await waiting
        return (perf_counter() - start) * 1000, _resident_mb(process.pid)


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# --- killed ---------------------------------------------------------------------------------------


async def killed(stage: Stage, staff: Workers, rounds: int) -> dict[str, Any]:
    """Seconds from killing the worker that streams an answer until another one streams it, and until it is there."""
    resumed: list[float] = []
    ended: list[float] = []
    for _ in range(rounds):
        queue = f"kill-{uuid.uuid4().hex[:8]}"
        client = staff.client(queue)
        async with staff.lane(queue), staff.lane(queue):
            # Both are up when both have answered; a few turns at once make that all but certain.
            await asyncio.gather(*(lane_turn(client, fresh_id()) for _ in range(8)))
            resume, end = await _kill_the_streaming_one(stage, staff, client)
            resumed.append(resume)
            ended.append(end)
    return {"going_on_s": round(max(resumed), 2), "result_s": round(max(ended), 2), "rounds": rounds}


async def _kill_the_streaming_one(stage: Stage, staff: Workers, client: Turnlane) -> tuple[float, float]:
    conversation = fresh_id()
    async with staff.bus.subscribe(conversation) as news, asyncio.timeout(PATIENCE_SECONDS):
        ticket = await client.submit(conversation, TEXT, agent=STREAM.name)
        first = await _delta(news, other_than="")
        os.kill(await _streaming_pid(stage, conversation), signal.SIGKILL)
        start = perf_counter()
        await _delta(news, other_than=first.epoch)
        resumed = perf_counter() - start
        result = await ticket.result(PATIENCE_SECONDS)
    if result.reason is not TerminalReason.SUCCESS:
        raise RuntimeError(f"the run of the killed worker ended as {result.reason}")
    return resumed, perf_counter() - start


async def _delta(news: AsyncIterator[Event | Resync], other_than: str) -> AssistantDeltaEvent:
    """The next delta of another attempt than this."""
    async for event in news:
        if isinstance(event, AssistantDeltaEvent) and event.epoch != other_than:
            return event
    raise RuntimeError("the event bus ended")


async def _streaming_pid(stage: Stage, conversation: str) -> int:
    """The process that runs the pending activity; a worker's identity starts with its process id."""
    described = await stage.temporal.get_workflow_handle(f"lane/{conversation}").describe()
    identity = described.raw_description.pending_activities[0].last_worker_identity
    return int(identity.split("@")[0])
