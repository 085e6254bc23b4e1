"""A worker in a process of its own: `python -m benchmarks.served lane|floor ADDRESS TASK_QUEUE STORE BUS`.

Imports what a worker of its kind needs and nothing else, since the time that takes is measured.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter


async def serve_lane(address: str, task_queue: str, store_path: str, bus_path: str) -> None:
    """Serve turnlane until killed."""
    from benchmarks.agents import AGENTS
    from turnlane.client.client import connect_temporal
    from turnlane.store.bus_socket import SocketBus
    from turnlane.store.sql import open_store
    from turnlane.worker import run_worker

    client = await connect_temporal(address)
    store = await open_store(store_path)
    await run_worker(client, store=store, agents=AGENTS, bus=SocketBus(Path(bus_path)), task_queue=task_queue)


async def serve_floor(address: str, task_queue: str) -> None:
    """Serve the floor until killed."""
    from benchmarks.floor import FloorWork, floor_worker

    client = await Client.connect(address, data_converter=pydantic_data_converter)
    await floor_worker(client, FloorWork(), task_queue).run()


if __name__ == "__main__":
    kind, at, queue, *rest = sys.argv[1:]
    asyncio.run(serve_lane(at, queue, *rest) if kind == "lane" else serve_floor(at, queue))
