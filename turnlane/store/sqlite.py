"""What is particular to SQLite: how a connection is set up, how a writer begins, which errors pass.

Nothing outside this module may hold SQL that only SQLite understands.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import QueuePool, StaticPool

from turnlane.store.prepared import DRIVER

WRITES = "turnlane_writes"
"""The execution option that makes a transaction a writer's."""

PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Primary result codes of conditions that a later call may not meet."""


_BEGIN = {True: "BEGIN IMMEDIATE", False: "BEGIN"}


def is_memory(url: URL) -> bool:
    """Whether the store lives and dies with one connection."""
    return url.database in (None, "", ":memory:")


def connect_options(url: URL, busy_seconds: float) -> dict[str, Any]:
    """Return engine options: the driver's own transaction control off, and one connection if in memory."""
    options: dict[str, Any] = {"connect_args": {"isolation_level": None, "timeout": busy_seconds}}
    if is_memory(url):
        options["poolclass"] = StaticPool
    elif url.drivername == "sqlite":
        options["poolclass"] = QueuePool
    if url.drivername == "sqlite":
        options["connect_args"]["check_same_thread"] = False
    return options


def prepare(engine: Engine, busy_seconds: float, *, begins: bool = True) -> None:
    """Set up every connection of the engine, and let transactions begin as their kind needs, unless the caller does."""

    def set_up(connection: Any, record: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            record.info[DRIVER] = connection
        cursor = connection.cursor()
        # First of all: each pragma below may meet a lock of another process.
        cursor.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    def begin(connection: Connection) -> None:
        # A writer takes its slot at once: a reader that turns writer later could only fail. A reader
        # begins deferred and never waits for a writer.
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql(_BEGIN[writes])

    event.listen(engine, "connect", set_up)
    if begins:
        event.listen(engine, "begin", begin)


def never_waits(connection: Connection) -> None:
    """Let a connection wait for nobody: neither for a lock, nor for the disk when the log is due to be folded in."""
    driver: sqlite3.Connection = connection.info[DRIVER]
    driver.execute("PRAGMA busy_timeout = 0")
    driver.execute("PRAGMA wal_autocheckpoint = 0")


def fold_log(connection: Connection) -> None:
    """Fold the write-ahead log into the database as far as nobody reads it, holding up no writer."""
    driver: sqlite3.Connection = connection.info[DRIVER]
    driver.execute("PRAGMA wal_checkpoint(PASSIVE)")


@contextmanager
def transaction(connection: Connection, writes: bool) -> Iterator[None]:
    """Run a transaction on a connection of SQLite's own driver that is kept, past SQLAlchemy: it begins, and commits
    or is rolled back, on the driver, where that takes a tenth of the time."""
    driver: sqlite3.Connection = connection.info[DRIVER]
    driver.execute(_BEGIN[writes])
    try:
        yield
        driver.execute("COMMIT")
    except BaseException:
        # A commit that failed for a lock leaves the transaction open; other errors may have ended it.
        if driver.in_transaction:
            driver.execute("ROLLBACK")
        raise


def is_passing(error: BaseException) -> bool:
    """Whether a driver's error is of a kind that a later call may not meet: busy, locked, disk."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and (code & 0xFF) in PASSING


def is_foreign(error: BaseException) -> bool:
    """Whether a driver's error says that the file holds something else than the store's schema."""
    code = getattr(error, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_NOTADB or str(error).startswith(("no such table", "no such column"))
