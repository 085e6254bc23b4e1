"""Bringing a store's schema up when it is opened: once, whoever comes first, and one store of a process at a time."""

from __future__ import annotations

import asyncio
from threading import Lock
from time import monotonic

from turnlane.records.errors import StoreUnavailableError
from turnlane.store.database import Database
from turnlane.store.revision import is_current

RETRY_SECONDS = 0.02

# Alembic keeps the migration that it is at in globals of its own.
_alembic = Lock()


async def bring_up(database: Database, busy_seconds: float) -> None:
    """Migrate unless the schema is current. Of many first openers one migrates and the others find it done."""
    deadline = monotonic() + busy_seconds
    while True:
        try:
            if not await database.read(is_current):
                await _migrate(database)
            return
        except StoreUnavailableError:
            # Turning a fresh file to WAL needs it alone, and SQLite does not wait for that by itself.
            if not database.retries_opening or monotonic() >= deadline:
                raise
            await asyncio.sleep(RETRY_SECONDS)


async def _migrate(database: Database) -> None:
    """Migrate. Only a store that needs it imports Alembic, and does so before it takes the writer's slot."""
    from turnlane.store.migrate import migrate

    await _take_alembic()
    migrating = asyncio.create_task(database.write(migrate))
    # Not before the migration is over, also if nobody waits for it any more.
    migrating.add_done_callback(lambda _: _alembic.release())
    await asyncio.shield(migrating)


async def _take_alembic() -> None:
    """Take Alembic for this task, whatever loop or thread has it now."""
    while True:
        if _alembic.acquire(blocking=False):
            return
        await asyncio.sleep(RETRY_SECONDS)
