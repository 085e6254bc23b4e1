"""The schema's revision as told without Alembic agrees with what Alembic says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from turnlane.store.migrate import newest_revision
from turnlane.store.revision import needed_revision

OPENING = """
import asyncio, sys
from turnlane.store.sql import open_store

async def opened():
    store = await open_store(sys.argv[1])
    await store.close()

asyncio.run(opened())
print(*(name in sys.modules for name in ("alembic", "asyncpg", "sqlalchemy.dialects.postgresql")))
"""


def opened(path: Path) -> str:
    """Open a store in a process of its own; whether that took Alembic, PostgreSQL's driver, and its dialect."""
    command = [sys.executable, "-c", OPENING, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_needed_revision_is_the_head_of_the_migrations() -> None:
    expected = newest_revision()

    assert expected == needed_revision()


def test_only_a_store_that_needs_migrating_takes_alembic_and_none_on_sqlite_takes_postgresql(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    taken = [opened(path), opened(path)]

    # Alembic itself takes all dialects.
    assert ["True False True", "False False False"] == taken
