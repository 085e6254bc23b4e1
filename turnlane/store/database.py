"""The database: runs a function in one transaction, and says what an error means.

Everything else in the store is plain functions over a SQLAlchemy connection. How they are run is
decided here alone: by an async engine (`sqlite+aiosqlite`; `turnlane.store.postgresql` for PostgreSQL), or,
for a SQLite path, by threads. A thread makes one hop a transaction where an async driver for SQLite,
itself a thread, makes four a statement: a commit takes 0.6 ms instead of 3. And a caller that is
cancelled cannot leave a transaction open: the thread brings it to its end.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from turnlane.records.errors import StoreIntegrityError, StoreSchemaError, StoreUnavailableError, TurnlaneError
from turnlane.store import sqlite
from turnlane.store.quiet import quiet_engine

Answer = TypeVar("Answer")
Statements = Callable[[Connection], Answer]

READERS = 4

POSTGRESQL = frozenset({"postgresql", "postgres", "postgresql+asyncpg"})
"""What URLs of PostgreSQL databases begin with."""


class Database(ABC):
    """Runs functions over a connection, each in one transaction: applied whole or not at all."""

    retries_opening: ClassVar[bool] = True
    """Whether opening a store is tried again for a while when the database is busy."""

    @abstractmethod
    async def read(self, statements: Statements[Answer]) -> Answer:
        """Run `statements` on one consistent state, without taking the writer's slot."""

    @abstractmethod
    async def write(self, statements: Statements[Answer]) -> Answer:
        """Run `statements` as a writer and commit; any error rolls everything back."""

    @abstractmethod
    async def close(self) -> None:
        """Give back the connections."""


class ThreadedSqlite(Database):
    """SQLite on threads: one that writes, a few that read. In memory, where there is one connection, one for both.

    Writers of one process wait for each other in the thread's queue, in the order they came; only
    writers of other processes meet SQLite's lock and its unfair polling.
    """

    def __init__(self, url: URL, busy_seconds: float) -> None:
        self._engine = create_engine(url, **quiet_engine(), **sqlite.connect_options(url, busy_seconds))
        sqlite.prepare(self._engine, busy_seconds, begins=False)
        self._mine = threading.local()
        self._opened: list[Connection] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="turnlane-store-write")
        shared = sqlite.is_memory(url)
        self._readers = self._writer if shared else ThreadPoolExecutor(READERS, "turnlane-store-read")

    def _transact(self, statements: Statements[Answer], writes: bool) -> Answer:
        with translated_errors():
            connection = self._connection()
            with sqlite.transaction(connection, writes):
                return statements(connection)

    def _connection(self) -> Connection:
        """This thread's connection, opened with its first transaction and kept for all others."""
        found: Connection | None = getattr(self._mine, "connection", None)
        if found is None:
            found = self._mine.connection = self._engine.connect()
            # As far as SQLAlchemy knows, a transaction is open for good: nobody, Alembic included, ends ours for us.
            found.begin()
            self._opened.append(found)
        return found

    async def read(self, statements: Statements[Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._transact, statements, False)

    async def write(self, statements: Statements[Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, self._transact, statements, True)

    async def close(self) -> None:
        def release() -> None:
            self._readers.shutdown()
            self._writer.shutdown()
            for connection in self._opened:
                connection.close()
            self._engine.dispose()

        await asyncio.to_thread(release)


class AsyncDatabase(Database):
    """SQLite by an async driver. In memory, transactions share one connection and take turns."""

    def __init__(self, url: URL, busy_seconds: float) -> None:
        options = sqlite.connect_options(url, busy_seconds)
        self._engine: AsyncEngine = create_async_engine(url, **quiet_engine(), **options)
        sqlite.prepare(self._engine.sync_engine, busy_seconds)
        self._write_turn = asyncio.Lock()
        self._read_turn = self._write_turn if sqlite.is_memory(url) else asyncio.Semaphore(READERS)

    async def _transact(self, statements: Statements[Answer], writes: bool) -> Answer:
        with translated_errors():
            async with self._engine.connect() as connection:
                await connection.execution_options(**{sqlite.WRITES: writes})
                async with connection.begin():
                    return await connection.run_sync(statements)

    async def read(self, statements: Statements[Answer]) -> Answer:
        async with self._read_turn:
            return await self._transact(statements, False)

    async def write(self, statements: Statements[Answer]) -> Answer:
        async with self._write_turn:
            return await self._transact(statements, True)

    async def close(self) -> None:
        await self._engine.dispose()


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn database errors into the store's own, with codes only: statements and values stay inside."""
    try:
        yield
    except TurnlaneError:
        raise
    except IntegrityError as error:
        raise StoreIntegrityError("a write would break a constraint of the store") from error
    except PoolTimeoutError as error:
        raise StoreUnavailableError("no connection to the store became free in time") from error
    except DBAPIError as error:
        raise _meaning(error, error.orig) from error
    except sqlite3.IntegrityError as error:
        raise StoreIntegrityError("a write would break a constraint of the store") from error
    except sqlite3.Error as error:
        raise _meaning(error, error) from error


def _meaning(error: Exception, cause: BaseException | None) -> Exception:
    """What an error means: the driver's own, which came through SQLAlchemy or from a prepared statement."""
    is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if is_lost or (cause is not None and sqlite.is_passing(cause)):
        return StoreUnavailableError("the store is locked, busy or out of reach")
    if cause is not None and sqlite.is_foreign(cause):
        return StoreSchemaError("the store is not a database of turnlane's, or lacks a table")
    return error


def connect(url: URL, busy_seconds: float) -> Database:
    """Return the database behind a URL. Nothing is opened yet."""
    if url.drivername == "sqlite":
        return ThreadedSqlite(url, busy_seconds)
    if url.drivername == "sqlite+aiosqlite":
        return AsyncDatabase(url, busy_seconds)
    if url.drivername in POSTGRESQL:
        return _postgresql(url, busy_seconds)
    raise StoreSchemaError(f"no store for the database {url.drivername!r}; use a path, or a sqlite or postgresql URL")


def _postgresql(url: URL, busy_seconds: float) -> Database:
    # Only who uses it needs it: the driver is an extra, and it takes long to load.
    try:
        from turnlane.store.postgresql import Postgresql
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreSchemaError("PostgreSQL needs its driver: pip install 'turnlane[postgresql]'") from error
    return Postgresql(url, busy_seconds)
