"""The revision of the schema: what a store is at and what this release needs, told without Alembic.

Importing Alembic takes a sixth of a worker's start, and a store that is current has no use for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection, String, column, inspect, select, table

SCRIPTS = Path(__file__).parent / "migrations"
VERSION_TABLE = "turnlane_schema_revision"


def needed_revision(scripts: Path = SCRIPTS) -> str:
    """Return the revision that this release needs: migrations are a line, each named `NNNN_title.py` after its own."""
    return max(script.name.partition("_")[0] for script in (scripts / "versions").glob("[0-9]*_*.py"))


def own_schema(connection: Connection) -> str | None:
    """Return the schema that the tables are in, None where a database has none: the search path's first."""
    return inspect(connection).default_schema_name if connection.dialect.name == "postgresql" else None


def is_current(connection: Connection, scripts: Path = SCRIPTS) -> bool:
    """Whether the schema needs nothing. Only reads, so that a usual open never waits for a writer."""
    if not inspect(connection).has_table(VERSION_TABLE, schema=own_schema(connection)):
        return False
    query = select(column("version_num", String)).select_from(table(VERSION_TABLE))
    found: Sequence[str] = connection.execute(query).scalars().all()
    return list(found) == [needed_revision(scripts)]
