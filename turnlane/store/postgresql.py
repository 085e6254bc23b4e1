"""PostgreSQL, by asyncpg: a pool of connections, and transactions that run to their end.

Writers of different conversations write at once, in READ COMMITTED: what each decides by it holds locked
(`turnlane.store.holding`). A reader sees one state, in REPEATABLE READ, and waits for no lock. A transaction is
a task of its own: a caller that is cancelled leaves it, and it commits or rolls back as if nobody had left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import asyncpg
from sqlalchemy import URL, Connection, event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from turnlane.records.errors import InvalidInputError
from turnlane.store.database import Answer, Database, Statements
from turnlane.store.quiet import quiet_engine
from turnlane.store.sqlstates import is_disconnected, translated_errors

CONNECTIONS = 10
"""How many connections a store holds at most; a server takes a hundred of all its clients, unless told otherwise."""

KEPT_STATEMENTS = 500
CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0
FREE_SECONDS = 30.0
"""How long a call waits for a free connection."""

ATTEMPT = "turnlane_attempt"
"""The execution option that says which transaction a statement belongs to."""


class Postgresql(Database):
    """A database of PostgreSQL's. Nothing is opened before the first call."""

    retries_opening = False

    def __init__(self, url: URL, busy_seconds: float) -> None:
        self._engine: AsyncEngine = create_async_engine(
            # The engine knows no address: so no log and no representation of it shows one.
            "postgresql+asyncpg://",
            async_creator=Connector(url, busy_seconds),
            connect_args={"prepared_statement_cache_size": KEPT_STATEMENTS},
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=FREE_SECONDS,
            **quiet_engine(),
        )
        event.listen(self._engine.sync_engine, "checkout", _refuse_closed)
        event.listen(self._engine.sync_engine, "after_cursor_execute", _note_answer)
        self._writer = self._engine.execution_options(isolation_level="READ COMMITTED")
        self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def read(self, statements: Statements[Answer], *, brief: bool = False) -> Answer:
        return await self._run(_transact(self._reader, statements))

    async def write(self, statements: Statements[Answer], *, brief: bool = False) -> Answer:
        return await self._run(_transact(self._writer, statements))

    async def _run(self, transaction: Coroutine[Any, Any, Answer]) -> Answer:
        if self._closed:
            transaction.close()
            raise RuntimeError("the store is closed")
        task = asyncio.create_task(transaction)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        self._closed = True
        if self._running:
            await asyncio.wait(self._running)
        await self._engine.dispose()


class Attempt:
    """A transaction under way, and whether the server answered any of its statements."""

    answered = False

    async def run(self, engine: AsyncEngine, statements: Statements[Answer]) -> Answer:
        async with engine.connect() as connection:
            await connection.execution_options(**{ATTEMPT: self})
            async with connection.begin():
                return await connection.run_sync(statements)

    def met_dead_connection(self, error: DBAPIError) -> bool:
        """Whether the transaction failed before it began, on a connection that was lost while it lay idle."""
        return is_disconnected(error) and not self.answered


async def _transact(engine: AsyncEngine, statements: Statements[Answer]) -> Answer:
    """Run a transaction; once more, on a new connection, if the first one turned out to be dead."""
    with translated_errors():
        first = Attempt()
        try:
            return await first.run(engine, statements)
        except DBAPIError as error:
            if not first.met_dead_connection(error):
                raise
        return await Attempt().run(engine, statements)


def _note_answer(connection: Connection, *_told: Any) -> None:
    attempt = connection.get_execution_options().get(ATTEMPT)
    if attempt is not None:
        attempt.answered = True


def _refuse_closed(connection: Any, _record: Any, _proxy: Any) -> None:
    """Let the pool replace a connection that the server closed while it lay idle. Asks nobody: the socket knows."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError


class Connector:
    """Opens connections to one address. asyncpg reads the URL, with all that libpq knows of them."""

    def __init__(self, url: URL, busy_seconds: float) -> None:
        self._dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        settings = {
            "application_name": "turnlane",
            # A lock that is not free in time is an error; 0 would wait for ever.
            "lock_timeout": str(max(1, int(busy_seconds * 1000))),
            # A client that vanished does not hold its locks for long.
            "idle_in_transaction_session_timeout": str(int(STATEMENT_SECONDS * 1000)),
            # Its statements are short; compiling one costs more than running it.
            "jit": "off",
        }
        self._settings = {name: value for name, value in settings.items() if name not in url.query}

    async def __call__(self) -> Any:
        """Open a connection. An address that cannot be read is an `InvalidInputError` that does not repeat it."""
        try:
            return await asyncpg.connect(
                self._dsn,
                timeout=CONNECT_SECONDS,
                command_timeout=STATEMENT_SECONDS,
                server_settings=self._settings,
            )
        except ValueError:
            raise InvalidInputError("the store's URL cannot be used for PostgreSQL", fields=["store"]) from None

    def __repr__(self) -> str:
        return "Connector()"
