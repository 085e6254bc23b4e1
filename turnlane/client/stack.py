"""The development stack: Temporal, the event bus, the store and workers, in one process and one `async with`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from turnlane.agent import Agent
from turnlane.client.client import Turnlane, connect_temporal
from turnlane.client.dev_config import DevConfig
from turnlane.client.dev_file import DevFile, remove_dev_file
from turnlane.client.dev_server import DevServer
from turnlane.records.errors import StackError
from turnlane.store.bus_socket import BusServer, SocketBus, socket_path
from turnlane.store.sql import SqlStore, open_store
from turnlane.worker import run_worker


class Stack:
    """Everything a conversation needs, running while the context is open.

    Started in order: Temporal dev server, event bus hub, store, workers, and last `dev.json`, by which
    other terminals find it all. Ended in the reverse order; workers finish or hand back what they do.
    `agents` are served by each of `workers` workers; further options go to `run_worker`.
    """

    def __init__(self, config: DevConfig, *, agents: Sequence[Agent], workers: int = 1, **worker_options: Any) -> None:
        self.config = config
        self.server = DevServer(config)
        self._agents = agents
        self._workers = workers
        self._worker_options = worker_options
        self._stack = AsyncExitStack()
        self._serving: list[asyncio.Task[None]] = []
        self._store: SqlStore | None = None
        self._bus: SocketBus | None = None

    @property
    def store(self) -> SqlStore:
        """The open store. Raises `StackError` while the stack is down."""
        if self._store is None:
            raise StackError("the stack is not running")
        return self._store

    @property
    def bus(self) -> SocketBus:
        """The bus that the workers publish on. Raises `StackError` while the stack is down."""
        if self._bus is None:
            raise StackError("the stack is not running")
        return self._bus

    @property
    def dev_file(self) -> DevFile:
        """What other terminals are told."""
        return DevFile(
            address=self.server.target,
            namespace=self.config.namespace,
            task_queue=self.config.task_queue,
            store=str(self.config.store),
            bus=socket_path(self.config.state_dir),
            ui_url=self.server.ui_url,
            pid=os.getpid(),
        )

    async def __aenter__(self) -> Stack:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def client(self, **options: Any) -> Turnlane:
        """Connect a client that ends with the stack. `options` go to `Turnlane.connect`."""
        client = await Turnlane.connect(
            self.server.target,
            namespace=self.config.namespace,
            store=self.store,
            bus=self.bus,
            task_queue=self.config.task_queue,
            **options,
        )
        self._stack.push_async_callback(client.close)
        return client

    async def serve(self) -> None:
        """Run until a part of the stack ends by itself, which it should not: raises what it ended with."""
        server = asyncio.ensure_future(self.server.wait())
        try:
            await asyncio.wait({server, *self._serving}, return_when=asyncio.FIRST_COMPLETED)
            for task in self._serving:
                if task.done():
                    task.result()
                    raise StackError("a worker ended by itself")
            raise StackError("the Temporal server ended by itself", exit_code=server.result())
        finally:
            server.cancel()

    async def _start(self) -> None:
        await self._stack.enter_async_context(self.server)
        await self._stack.enter_async_context(BusServer(socket_path(self.config.state_dir)))
        self._bus = SocketBus(socket_path(self.config.state_dir))
        self._stack.push_async_callback(self._bus.close)
        self._store = await open_store(str(self.config.store))
        self._stack.push_async_callback(self._store.close)
        for _ in range(self._workers):
            await self._start_worker()
        self.dev_file.write(self.config.state_dir)
        self._stack.callback(remove_dev_file, self.config.state_dir)

    async def _start_worker(self) -> None:
        """Start one worker with a connection of its own, as one in another process would have."""
        client = await connect_temporal(self.server.target, namespace=self.config.namespace)
        serving = run_worker(
            client,
            store=self.store,
            agents=self._agents,
            bus=self.bus,
            task_queue=self.config.task_queue,
            **self._worker_options,
        )
        task = asyncio.create_task(serving, name="turnlane-worker")
        self._serving.append(task)
        self._stack.push_async_callback(_stop, task)


async def _stop(serving: asyncio.Task[None]) -> None:
    """Ask a worker to finish, and wait for its end. How one ended that failed before is told by `serve`."""
    serving.cancel()
    await asyncio.wait({serving})
    if not serving.cancelled():
        serving.exception()
