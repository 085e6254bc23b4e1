"""The schema: brought to this release's revision when a store is opened, once, whoever comes first."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from turnlane.records.errors import StoreSchemaError
from turnlane.store.holding import SCHEMA, has_many_writers, hold_name
from turnlane.store.revision import SCRIPTS as SCRIPTS
from turnlane.store.revision import VERSION_TABLE as VERSION_TABLE
from turnlane.store.revision import is_current, own_schema


def _config(connection: Connection | None, scripts: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", scripts.as_posix().replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    config.attributes["version_table_schema"] = None if connection is None else own_schema(connection)
    return config


def _revision(connection: Connection) -> str | None:
    options = {"version_table": VERSION_TABLE, "version_table_schema": own_schema(connection)}
    context = MigrationContext.configure(connection, opts=options)
    return context.get_current_revision()


def newest_revision(scripts: Path = SCRIPTS) -> str:
    """Return the revision that this release's migrations lead to."""
    head = ScriptDirectory.from_config(_config(None, scripts)).get_current_head()
    if head is None:
        raise StoreSchemaError("the release ships no migrations")
    return head


def migrate(connection: Connection, scripts: Path = SCRIPTS) -> None:
    """Bring the schema to the newest revision; runs in the caller's write transaction.

    Raises `StoreSchemaError` and changes nothing when the store is of a revision that this release does
    not know, or holds tables of ours that no migration of ours made.
    """
    if has_many_writers(connection):
        hold_name(connection, SCHEMA)
    if is_current(connection, scripts):
        # Another process was first. The many that waited for it must not hold the slot for long.
        return
    _refuse_unknown(connection, _revision(connection), scripts)
    command.upgrade(_config(connection, scripts), "head")


def _refuse_unknown(connection: Connection, found: str | None, scripts: Path) -> None:
    if found is None:
        names = inspect(connection).get_table_names(own_schema(connection))
        ours = [name for name in names if name.startswith("turnlane_")]
        if any(name != VERSION_TABLE for name in ours):
            raise StoreSchemaError("the store has tables named turnlane_* that turnlane did not make")
        return
    known = {script.revision for script in ScriptDirectory.from_config(_config(None, scripts)).walk_revisions()}
    if found not in known:
        raise StoreSchemaError(
            f"the store is of schema revision {found}, which this release does not know: use a newer release",
            revision=found,
        )
