"""The database: runs a function in one transaction, and says what an error means.

Everything else in the store is plain functions over a SQLAlchemy connection. How they are run is
decided here alone: by an async engine (`sqlite+aiosqlite`; `turnlane.store.postgresql` for PostgreSQL), or,
for a SQLite path, by `turnlane.store.threaded`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from sqlalchemy import URL, Connection
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
    async def read(self, statements: Statements[Answer], *, brief: bool = False) -> Answer:
        """Run `statements` on one consistent state, without taking the writer's slot.

        What is `brief` takes a fraction of a millisecond whatever is stored: a database without a server may run it
        on the caller's thread, if it need not wait for anybody.
        """

    @abstractmethod
    async def write(self, statements: Statements[Answer], *, brief: bool = False) -> Answer:
        """Run `statements` as a writer and commit; any error rolls everything back. `brief`: see `read`."""

    @abstractmethod
    async def close(self) -> None:
        """Give back the connections."""


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

    async def read(self, statements: Statements[Answer], *, brief: bool = False) -> Answer:
        async with self._read_turn:
            return await self._transact(statements, False)

    async def write(self, statements: Statements[Answer], *, brief: bool = False) -> Answer:
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
        return _threaded(url, busy_seconds)
    if url.drivername == "sqlite+aiosqlite":
        return AsyncDatabase(url, busy_seconds)
    if url.drivername in POSTGRESQL:
        return _postgresql(url, busy_seconds)
    raise StoreSchemaError(f"no store for the database {url.drivername!r}; use a path, or a sqlite or postgresql URL")


def _threaded(url: URL, busy_seconds: float) -> Database:
    from turnlane.store.threaded import ThreadedSqlite

    return ThreadedSqlite(url, busy_seconds)


def _postgresql(url: URL, busy_seconds: float) -> Database:
    # Only who uses it needs it: the driver is an extra, and it takes long to load.
    try:
        from turnlane.store.postgresql import Postgresql
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreSchemaError("PostgreSQL needs its driver: pip install 'turnlane[postgresql]'") from error
    return Postgresql(url, busy_seconds)
