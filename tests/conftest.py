"""One Temporal dev server for the whole run, a fresh task queue and store for each test."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from tests.postgresql import Databases, served
from turnlane.agent import Agent
from turnlane.client import Turnlane
from turnlane.client.dev_config import DevConfig
from turnlane.client.dev_server import LOG_FILE, DevServer
from turnlane.records.lane import LaneSettings
from turnlane.store.bus import InProcessBus
from turnlane.store.sql import SqlStore, open_store
from turnlane.worker import build_worker

hypothesis.settings.register_profile("turnlane", deadline=None)
hypothesis.settings.load_profile("turnlane")

CACHED_WORKFLOWS = int(os.environ.get("TURNLANE_TEST_CACHED_WORKFLOWS", "1000"))
"""0 makes every workflow task replay its whole history: the integration suite must pass that way too."""


STORE = os.environ.get("TURNLANE_TEST_STORE", "file")
"""`postgresql` runs whatever has a bench on PostgreSQL: the integration suite must pass that way too."""


SANDBOXED = os.environ.get("TURNLANE_TEST_SANDBOXED") == "1"
"""Whether lanes run in the SDK's sandbox, which finds out what a workflow must not do."""


LAST_LINES = 20


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test what dev servers of its own said last: their logs are gone when somebody asks."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and isinstance(folder, Path):
        for log in sorted(folder.rglob(LOG_FILE)):
            lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            report.sections.append((f"the end of {log.relative_to(folder)}", "\n".join(lines)))
    return report


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """The dev server that all tests share."""
    config = DevConfig.throwaway(tmp_path_factory.mktemp("temporal"))
    async with DevServer(config) as running:
        yield running


@pytest.fixture(scope="session")
async def temporal(server: DevServer) -> Client:
    """A connection to the shared server."""
    return await Client.connect(server.target, data_converter=pydantic_data_converter)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Databases]:
    """The PostgreSQL server that all tests share."""
    with served() as databases:
        yield databases


@dataclass
class Bench:
    """A store, a bus and a task queue of a test's own, and workers and clients on them."""

    temporal: Client
    store: SqlStore
    place: str
    """The store's path or URL."""
    bus: InProcessBus = field(default_factory=InProcessBus)
    task_queue: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:12]}")

    def worker(self, *agents: Agent, settings: LaneSettings | None = None, **options: Any) -> Worker:
        """A worker that is not running yet; use it as an async context manager."""
        options.setdefault("max_cached_workflows", CACHED_WORKFLOWS)
        options.setdefault("graceful_seconds", 2.0)
        options.setdefault("sandboxed", SANDBOXED)
        return build_worker(
            self.temporal,
            store=self.store,
            agents=agents,
            bus=self.bus,
            task_queue=self.task_queue,
            settings=settings,
            **options,
        )

    def client(self, *, store: bool = True, bus: bool = True, answer_seconds: float = 10.0) -> Turnlane:
        """A client on this bench; without store or bus if asked."""
        return Turnlane(
            self.temporal,
            store=self.store if store else None,
            bus=self.bus if bus else None,
            task_queue=self.task_queue,
            answer_seconds=answer_seconds,
        )


@pytest.fixture
async def store_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store is: a SQLite file, or a database of PostgreSQL's where a test or the environment says so."""
    if getattr(request, "param", STORE) != "postgresql":
        return str(tmp_path / "store.db")
    databases: Databases = request.getfixturevalue("postgresql")
    return (await databases.clean()).render_as_string(hide_password=False)


@pytest.fixture
async def bench(temporal: Client, store_place: str) -> AsyncIterator[Bench]:
    """A bench with an empty store."""
    store = await open_store(store_place)
    try:
        yield Bench(temporal, store, store_place)
    finally:
        await store.close()


Serve = Callable[..., Any]


@pytest.fixture
async def serve(bench: Bench) -> AsyncIterator[Serve]:
    """Start a worker for agents on the test's bench; it is stopped when the test ends."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*agents: Agent, **options: Any) -> Worker:
            return await stack.enter_async_context(bench.worker(*agents, **options))

        yield start


@pytest.fixture
async def conversation() -> str:
    """A conversation id nobody used before."""
    return f"c-{uuid.uuid4().hex[:12]}"


def texts(messages: Sequence[Any]) -> list[tuple[str, str]]:
    """What was said, as (role, text)."""
    return [(message.role.value, message.text) for message in messages]
