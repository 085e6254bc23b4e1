"""What stands beside a store on PostgreSQL: who holds what, who waits, and what a call failed with."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from turnlane.records.errors import TurnlaneError

PATIENCE = 0.3
"""How long these stores wait for a lock that another holds."""

WAIT_SECONDS = 20.0

SECRET = "xq7-open-sesame-9"


async def backends(watcher: Any, state: str) -> list[int]:
    """The processes that serve stores on this database, by what they are at."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'turnlane'"
    return [row["pid"] for row in await watcher.fetch(f"{query} AND {state}")]


WAITING = "wait_event_type = 'Lock'"
IN_TRANSACTION = "xact_start IS NOT NULL"


@contextlib.asynccontextmanager
async def held(beside: Any, conversation_id: str) -> AsyncIterator[None]:
    """Another writer holds a conversation."""
    async with beside.transaction():
        await beside.execute("SELECT FROM turnlane_conversation WHERE id = $1 FOR UPDATE", conversation_id)
        yield


def is_waiting(watcher: Any) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return bool(await backends(watcher, WAITING))

    return asked


def is_at_rest(watcher: Any) -> Callable[[], Awaitable[bool]]:
    """Whether no store of this database is in a transaction: what a cancelled caller left comes to its end first."""

    async def asked() -> bool:
        return not await backends(watcher, IN_TRANSACTION)

    return asked


async def failure(call: Awaitable[Any]) -> TurnlaneError:
    """The error that a call ends with."""
    with pytest.raises(TurnlaneError) as raised:
        await call
    return raised.value
