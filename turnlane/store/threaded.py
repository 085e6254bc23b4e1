"""SQLite on threads, with a short cut.

A thread makes one hop a transaction where an async driver for SQLite, itself a thread, makes four a statement: a
commit takes 0.6 ms instead of 3. And a caller that is cancelled cannot leave a transaction open: the thread brings
it to its end.

The hop there and back costs more than most transactions do. So one that is brief by its nature runs at once, on the
caller's own thread, where it need not wait: nobody is before it, nobody holds the writer's lock, and the log is
folded into the database elsewhere. If it would have to wait after all, it is done over on a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sqlalchemy import URL, Connection, create_engine

from turnlane.records.errors import StoreUnavailableError, TurnlaneError
from turnlane.store import sqlite
from turnlane.store.database import READERS, Answer, Database, Statements, translated_errors
from turnlane.store.haste import TakesLongError, make_hasty
from turnlane.store.quiet import quiet_engine

logger = logging.getLogger(__name__)

FOLDED_EVERY = 100
"""After how many brief writes the log is folded in: a few hundred kilobytes each time."""


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
        self._hasty: dict[int, Connection | None] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="turnlane-store-write")
        is_shared = sqlite.is_memory(url)
        self._readers = self._writer if is_shared else ThreadPoolExecutor(READERS, "turnlane-store-read")
        self._may_be_hasty = not is_shared
        self._queue = _Queue()
        self._brief_writes = 0

    async def read(self, statements: Statements[Answer], *, brief: bool = False) -> Answer:
        if brief and self._may_be_hasty:
            done = self._at_once(statements, False)
            if done is not None:
                return done[0]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._transact, statements, False)

    async def write(self, statements: Statements[Answer], *, brief: bool = False) -> Answer:
        if brief and self._may_be_hasty and self._queue.is_empty:
            done = self._at_once(statements, True)
            if done is not None:
                self._fold_now_and_then()
                return done[0]
        written = self._writer.submit(self._transact, statements, True)
        self._queue.enter(written)
        return await asyncio.wrap_future(written)

    # --- on a thread ----------------------------------------------------------------------------

    def _transact(self, statements: Statements[Answer], writes: bool) -> Answer:
        with translated_errors():
            connection = self._connection()
            with sqlite.transaction(connection, writes):
                return statements(connection)

    def _connection(self) -> Connection:
        """This thread's connection, opened with its first transaction and kept for all others."""
        found: Connection | None = getattr(self._mine, "connection", None)
        if found is None:
            found = self._mine.connection = self._open()
        return found

    def _open(self) -> Connection:
        opened = self._engine.connect()
        # As far as SQLAlchemy knows, a transaction is open for good: nobody, Alembic included, ends ours for us.
        opened.begin()
        self._opened.append(opened)
        return opened

    # --- at once --------------------------------------------------------------------------------

    def _at_once(self, statements: Statements[Answer], writes: bool) -> tuple[Answer] | None:
        """Run a brief transaction on the caller's thread; None if it came to nothing because it would have to wait."""
        connection = self._hasty_connection()
        if connection is None:
            return None
        try:
            with translated_errors(), sqlite.transaction(connection, writes):
                return (statements(connection),)
        except (StoreUnavailableError, TakesLongError):
            return None

    def _hasty_connection(self) -> Connection | None:
        """The connection of the caller's thread that never waits; None while it is opened, which may take a while."""
        thread = threading.get_ident()
        if thread not in self._hasty:
            self._hasty[thread] = None
            self._readers.submit(self._open_hasty, thread)
        return self._hasty[thread]

    def _open_hasty(self, thread: int) -> None:
        try:
            with translated_errors():
                connection = self._open()
                sqlite.never_waits(connection)
        except Exception as error:
            logger.warning("all transactions of a thread go by way of another: %s", type(error).__name__)
            return
        make_hasty(connection)
        self._hasty[thread] = connection

    def _fold_now_and_then(self) -> None:
        self._brief_writes += 1
        if self._brief_writes % FOLDED_EVERY == 0:
            self._writer.submit(self._fold)

    def _fold(self) -> None:
        try:
            with translated_errors():
                sqlite.fold_log(self._connection())
        except TurnlaneError as error:
            logger.info("the log is folded in later: %s", error.code)

    async def close(self) -> None:
        self._may_be_hasty = False

        def release() -> None:
            self._readers.shutdown()
            self._writer.shutdown()
            for connection in self._opened:
                connection.close()
            self._engine.dispose()

        await asyncio.to_thread(release)


class _Queue:
    """How many writes wait for the writing thread or are with it: a brief one does not overtake them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    @property
    def is_empty(self) -> bool:
        return self._count == 0

    def enter(self, write: Future[Any]) -> None:
        """Count a write until it is done, or is taken back before its turn came."""
        with self._lock:
            self._count += 1
        write.add_done_callback(self._leave)

    def _leave(self, _: Future[Any]) -> None:
        with self._lock:
            self._count -= 1
