"""A house of worker processes for the chaos tests: one store file, one event hub, one task queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from temporalio.client import Client

from tests.integration.stage import until
from turnlane.client import Turnlane
from turnlane.client.dev_server import DevServer
from turnlane.client.ticket import Ticket
from turnlane.records.base import JsonObject
from turnlane.records.events import Event
from turnlane.records.ledger import LedgerEvent, LedgerKind
from turnlane.records.runs import Run
from turnlane.store.bus_socket import BusServer, SocketBus, socket_path
from turnlane.store.sql import SqlStore, open_store
from turnlane.store.work import find_conversation

PROGRAM = Path(__file__).with_name("worker_process.py")
PATIENCE = 40.0


class WorkerProcess:
    """A worker that may be killed, frozen, thawed and stopped."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or is frozen."""
        return self._process.returncode is None

    async def kill(self) -> None:
        """End it as a crash would."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self._process.terminate()
        async with asyncio.timeout(PATIENCE):
            return await self._process.wait()

    def freeze(self) -> None:
        """Stop its clock, its network and everything else of it."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on where it was."""
        self._process.send_signal(signal.SIGCONT)


@dataclass
class House:
    """What the processes of one test share, and what they left behind."""

    target: str
    temporal: Client
    store: SqlStore
    place: str
    bus: SocketBus
    folder: Path
    workers: list[WorkerProcess] = field(default_factory=list)
    cast: str = "chaos"
    settings: dict[str, Any] = field(default_factory=dict)
    task_queue: str = field(default_factory=lambda: f"chaos-{uuid.uuid4().hex[:12]}")

    async def worker(self) -> WorkerProcess:
        """Start one more worker; it is killed when the test ends."""
        place = {
            "target": self.target,
            "store": self.place,
            "bus": str(socket_path(self.folder)),
            "task_queue": self.task_queue,
            "folder": str(self.folder),
            "cast": self.cast,
            "settings": self.settings,
        }
        # A process of ours finds what we find.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), json.dumps(place), stdout=asyncio.subprocess.PIPE, env=environment
        )
        worker = WorkerProcess(process)
        self.workers.append(worker)
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert b"ready\n" == await process.stdout.readline()
        return worker

    def client(self, answer_seconds: float = 20.0) -> Turnlane:
        """A client with the store and the bus of the workers."""
        return Turnlane(
            self.temporal, store=self.store, bus=self.bus, task_queue=self.task_queue, answer_seconds=answer_seconds
        )

    def lines(self, name: str) -> list[str]:
        """What the workers wrote to a file so far."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    async def freeze(self, worker: WorkerProcess, conversation_id: str) -> None:
        """Freeze a worker between two writes to a conversation: one that has a lock would have it until it thaws."""

        def freeze(connection: Connection) -> None:
            find_conversation(connection, conversation_id)
            worker.freeze()

        await self.store._database.write(freeze)

    async def until_written(self, *names: str) -> None:
        """Wait until the workers wrote to each of these files."""

        async def written() -> bool:
            return all(self.lines(name) for name in names)

        await until(written, PATIENCE)

    async def until_attempted(self, run_id: str, attempt: tuple[int, int, int]) -> None:
        """Wait until a model call was made: by this process, for this step, as this attempt."""

        async def attempted() -> bool:
            return attempt in self.attempts(run_id)

        await until(attempted, PATIENCE)

    def attempts(self, run_id: str) -> list[tuple[int, int, int]]:
        """The model calls of a run: process, step and attempt of each."""
        rows = [line.split() for line in self.lines("model")]
        return [(int(pid), int(step), int(attempt)) for pid, run, step, attempt in rows if run == run_id]

    async def ledger(self, conversation_id: str) -> list[LedgerEvent]:
        """The whole ledger of a conversation."""
        events: list[LedgerEvent] = []
        seq: int | None = 1
        while seq is not None:
            page = await self.store.read_events(conversation_id, from_seq=seq)
            events.extend(page.items)
            seq = page.next_seq
        return events

    async def runs(self, conversation_id: str) -> list[Run]:
        """Every run of a conversation."""
        page, cursor = await self.store.list_runs(conversation_id)
        found = list(page)
        while cursor is not None:
            page, cursor = await self.store.list_runs(conversation_id, cursor=cursor)
            found.extend(page)
        return found

    async def assert_the_ledger_adds_up(self, conversation_id: str) -> None:
        """No number is missing in the ledger, and every version is one transition."""
        ledger = await self.ledger(conversation_id)
        snapshot = await self.store.load_snapshot(conversation_id)
        assert list(range(1, len(ledger) + 1)) == [event.seq for event in ledger]
        moves = [event.version for event in ledger if event.kind == LedgerKind.TRANSITION]
        assert list(range(1, snapshot.version + 1)) == moves

    async def responses(self, conversation_id: str) -> list[JsonObject]:
        """What the ledger keeps of the model calls that ended."""
        return [e.payload for e in await self.ledger(conversation_id) if e.kind == LedgerKind.PROVIDER_RESPONSE]


@pytest.fixture
async def house(server: DevServer, temporal: Client, tmp_path: Path, store_place: str) -> AsyncIterator[House]:
    """An empty house; every worker that still runs is killed when the test ends."""
    store = await open_store(store_place)
    async with BusServer(socket_path(tmp_path)):
        bus = SocketBus(socket_path(tmp_path))
        built = House(server.target, temporal, store, store_place, bus, tmp_path)
        try:
            yield built
        finally:
            for worker in built.workers:
                await worker.kill()
            await bus.close()
            await store.close()


class Witness:
    """Somebody who watches a ticket's events in the background."""

    def __init__(self, ticket: Ticket) -> None:
        self.events: list[Event] = []
        self._heard = asyncio.Condition()
        self._task = asyncio.ensure_future(self._watch(ticket))

    async def _watch(self, ticket: Ticket) -> None:
        async for event in ticket.events():
            async with self._heard:
                self.events.append(event)
                self._heard.notify_all()

    def told(self, *types: str) -> list[Event]:
        """The events of these types so far."""
        return [event for event in self.events if event.type in types]

    async def until_told(self, kind: str, count: int = 1) -> None:
        """Return once so many events of a type were seen."""
        await self.until(lambda: len(self.told(kind)) >= count)

    async def until(self, heard: Callable[[], bool]) -> None:
        """Return once this is true of what was heard."""
        async with asyncio.timeout(PATIENCE), self._heard:
            await self._heard.wait_for(heard)

    async def finished(self) -> list[Event]:
        """Everything, up to the terminal."""
        async with asyncio.timeout(PATIENCE):
            await self._task
        return self.events

    async def leave(self) -> None:
        """Watch no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
