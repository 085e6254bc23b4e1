"""The stage of the demo: a throwaway stack, its worker processes, and what the acts need of them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from turnlane.client.cli.demo_facts import Facts
from turnlane.client.cli.demo_gate import Gate
from turnlane.client.cli.demo_watch import Watch
from turnlane.client.cli.demo_worker import Place, WorkerProcess
from turnlane.client.cli.output import Output
from turnlane.client.cli.transcript import Transcript
from turnlane.client.client import Turnlane
from turnlane.client.dev_config import DevConfig
from turnlane.client.stack import Stack


@dataclass
class Stage:
    """Everything an act uses."""

    out: Output
    facts: Facts
    stack: Stack
    client: Turnlane
    gate: Gate
    payments: Path
    first: WorkerProcess
    second: WorkerProcess
    third: WorkerProcess

    async def serve(self, worker: WorkerProcess) -> None:
        """Let a worker serve, and return once it does."""
        await worker.serve(Place(stack=self.stack.dev_file, gate=self.gate.port, payments=self.payments))

    async def stop_workers(self) -> None:
        """End every worker that still lives."""
        for worker in (self.first, self.second, self.third):
            await worker.stop()

    def watch(self, conversation_id: str) -> Watch:
        """Watch a conversation; people are shown what happens, programs get the facts alone."""
        transcript = None if self.out.as_json else Transcript(self.out)
        return Watch(self.client, self.stack.bus, conversation_id, transcript)


@asynccontextmanager
async def open_stage(out: Output, facts: Facts) -> AsyncIterator[Stage]:
    """A stage with one worker that serves and two in reserve, in a temporary folder and on free ports.

    Nothing is left of it afterwards.
    """
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="turnlane-demo-")))
        # They take seconds to get ready: let them, while the server starts.
        workers = [await _worker(exits) for _ in range(3)]
        gate = await exits.enter_async_context(Gate())
        stack = await exits.enter_async_context(Stack(DevConfig.throwaway(folder), agents=(), workers=0))
        stage = Stage(out, facts, stack, await stack.client(), gate, folder / "payments.txt", *workers)
        exits.push_async_callback(stage.stop_workers)
        await stage.serve(stage.first)
        yield stage


async def _worker(exits: AsyncExitStack) -> WorkerProcess:
    worker = await WorkerProcess.start()
    exits.push_async_callback(worker.stop)
    return worker
