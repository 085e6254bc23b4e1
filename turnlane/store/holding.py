"""Who writes first: the locks that a writing transaction takes where several write at once.

SQLite has one writer at a time, so there is nothing to take. On PostgreSQL a writer holds the row of its
conversation from its first statement to its end; for one that has no row yet, and for the schema, it holds
an advisory lock under a number made of the name. So what is read behind the lock stays true until the commit.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import BigInteger, Connection, bindparam, func, select

SCHEMA = "schema"

_HOLD = select(func.pg_advisory_xact_lock(bindparam("number", type_=BigInteger)))


def has_many_writers(connection: Connection) -> bool:
    """Whether other transactions may write while this one does."""
    return connection.dialect.name == "postgresql"


def hold_name(connection: Connection, kind: str, name: str = "") -> None:
    """Hold a name to the end of the transaction: others that hold it too wait for each other."""
    connection.execute(_HOLD, {"number": lock_number(kind, name)})


def lock_number(kind: str, name: str = "") -> int:
    """Return the 64-bit number of a name, the same in every process and release."""
    digest = hashlib.sha256(f"turnlane\x1f{kind}\x1f{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
