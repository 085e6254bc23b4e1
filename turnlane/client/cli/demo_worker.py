"""A worker of the demo in a process of its own, from both sides: who starts it, and what it runs.

The process gets ready, serves when it is told where, and ends when the pipe to its starter closes,
however that happened.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import AsyncExitStack
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from turnlane.client.cli.demo_story import story_agent
from turnlane.client.client import connect_temporal
from turnlane.client.dev_file import DevFile
from turnlane.records.errors import StackError
from turnlane.store.bus_socket import SocketBus
from turnlane.store.sql import open_store
from turnlane.worker import build_worker

READY = b"ready\n"
STOP_SECONDS = 10


class Place(BaseModel):
    """Where a worker is to serve, the port of the gate at which a tool waits, and the file into which one pays."""

    model_config = ConfigDict(frozen=True)

    stack: DevFile
    gate: int
    payments: Path


class WorkerProcess:
    """The starter's side of one worker process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> WorkerProcess:
        """Start a process that waits to be told where to serve."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__),
            stdin=PIPE,
            stdout=PIPE,
            stderr=None if os.environ.get("TURNLANE_TRACEBACK") else DEVNULL,
            # Its own session: Ctrl-C reaches the demo alone, which then ends its workers in order.
            start_new_session=True,
        )
        return cls(process)

    async def serve(self, place: Place) -> None:
        """Let the worker serve, and return once it does. Raises `StackError` when it ended instead."""
        orders, words = self._process.stdin, self._process.stdout
        if orders is None or words is None:
            raise StackError("a worker process of the demo has no pipes")
        orders.write(place.model_dump_json().encode() + b"\n")
        if await words.readline() != READY:
            raise StackError("a worker process of the demo ended at start; TURNLANE_TRACEBACK=1 shows why")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def kill(self) -> int:
        """End the worker with SIGKILL, as the kernel would when memory runs out. Returns its exit code."""
        if self._process.returncode is None:
            self._process.kill()
        return await self._process.wait()

    async def stop(self) -> None:
        """Let the worker finish what it can and end; kill it if it does not."""
        if self._process.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            await self.kill()


async def serve(place: Place) -> None:
    """Serve the demo's agent until standard input ends."""
    stack = place.stack
    async with AsyncExitStack() as exits:
        store = await open_store(stack.store)
        exits.push_async_callback(store.close)
        bus = SocketBus(stack.bus)
        exits.push_async_callback(bus.close)
        worker = build_worker(
            await connect_temporal(stack.address, namespace=stack.namespace),
            store=store,
            agents=(story_agent(place.gate, place.payments),),
            bus=bus,
            task_queue=stack.task_queue,
            graceful_seconds=2.0,
        )
        await exits.enter_async_context(worker)
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        await asyncio.to_thread(sys.stdin.buffer.read)
        # A starter that was killed took the server along, and a worker without one would try to reach it for ever.
        signal.alarm(STOP_SECONDS)


def main() -> None:
    """Wait to be told where to serve, and serve there. A starter that is gone already says nothing."""
    told = sys.stdin.buffer.readline()
    if told:
        asyncio.run(serve(Place.model_validate_json(told)))


if __name__ == "__main__":
    main()
    # The SDK's worker objects must be gone before the interpreter is: it can crash at its end otherwise.
    gc.collect()
