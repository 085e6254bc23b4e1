"""Opening a store: many at once, older schemas, foreign ones, locks, and a process that dies in the middle."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, inspect

from tests.contract.conftest import Lane
from turnlane.records.errors import StoreSchemaError, StoreUnavailableError
from turnlane.store.database import connect
from turnlane.store.migrate import SCRIPTS, VERSION_TABLE, migrate, newest_revision
from turnlane.store.sql import SqlStore, open_store
from turnlane.store.urls import store_url

OPEN_IN_TWENTY_PROCESSES = """
import asyncio, os, sys, traceback
import turnlane.store.migrate  # once, before the fork: not twenty times
from turnlane.store.sql import open_store

async def main():
    store = await open_store(sys.argv[1], busy_seconds=60)
    await store.close()

gate, gate_keeper = os.pipe()
children = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os.close(gate_keeper)
        os.read(gate, 1)
        try:
            asyncio.run(main())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
os.close(gate_keeper)
print([os.waitpid(child, 0)[1] for child in children])
"""

HANG_IN_A_TRANSACTION = """
import sys
from sqlalchemy import insert
from turnlane.store.threaded import ThreadedSqlite
from turnlane.store.urls import store_url
from turnlane.store.tables import TOMBSTONE
from datetime import UTC, datetime

def statements(connection):
    row = dict(conversation_id="half", epoch=1, answers="[]", purged_at=datetime.now(UTC))
    connection.execute(insert(TOMBSTONE), row)
    print("written", flush=True)
    sys.stdin.readline()

ThreadedSqlite(store_url(sys.argv[1]), 5.0)._transact(statements, True)
"""


async def start(script: str, path: Path | str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(path), stdin=pipe, stdout=pipe, stderr=pipe
    )


def revision(path: Path) -> list[tuple[str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()
    finally:
        connection.close()


def migrate_to(path: Path, target: str, scripts: Path = SCRIPTS) -> None:
    """Make a store as a release at that revision would have."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(scripts))
        config.attributes.update(connection=connection, version_table=VERSION_TABLE)
        command.upgrade(config, target)
    engine.dispose()


async def test_twenty_processes_open_a_fresh_file_at_once_and_one_migrates(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = await start(OPEN_IN_TWENTY_PROCESSES, path)
    answer, errors = await process.communicate()

    assert (f"{[0] * 20}", "") == (answer.decode().strip(), errors.decode())
    assert [(newest_revision(),)] == revision(path)


async def test_many_fresh_stores_are_opened_at_once_in_one_process(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(open_store(str(tmp_path / f"{number}.db")) for number in range(6)))
    for store in stores:
        await store.close()

    assert [[(newest_revision(),)]] * 6 == [revision(tmp_path / f"{number}.db") for number in range(6)]


async def test_a_store_opened_again_has_what_was_written(lane: Lane, tmp_path: Path) -> None:
    path = tmp_path / "again.db"
    first = await open_store(str(path))
    await first.append_event("c", "app/a", {"n": 1}, lane.clock())
    await first.close()
    second = await open_store(str(path))
    page = await second.read_events("c")
    await second.close()

    assert [{"n": 1}] == [event.payload for event in page.items]


@pytest.mark.parametrize("older", ["0001", "0002", "0003", "0004"])
async def test_an_older_schema_is_migrated_and_takes_whole_turns(tmp_path: Path, older: str) -> None:
    path = tmp_path / "store.db"
    migrate_to(path, older)
    before = revision(path)
    store = await open_store(str(path))
    lane = await Lane(store).open()
    await lane.answer("a")
    said = await lane.said()
    await store.close()

    assert ([(older,)], [(newest_revision(),)], ["in-a", "out-a"]) == (before, revision(path), said)


BREAKING = """
from alembic import op

revision = "9000"
down_revision = "{last}"

def upgrade():
    op.execute("CREATE TABLE half_made (id TEXT)")
    op.execute("INSERT INTO no_such_table VALUES (1)")
"""


@pytest.mark.parametrize("scheme", ["", "sqlite+aiosqlite:///"])
async def test_a_migration_that_breaks_changes_nothing(tmp_path: Path, scheme: str) -> None:
    path, scripts = tmp_path / "store.db", tmp_path / "scripts"
    shutil.copytree(SCRIPTS, scripts)
    (scripts / "versions" / "9000_breaking.py").write_text(BREAKING.format(last=newest_revision()))
    migrate_to(path, "0001")
    database = connect(store_url(f"{scheme}{path}"), 5.0)
    with pytest.raises(StoreSchemaError):
        await database.write(lambda connection: migrate(connection, scripts))
    await database.close()
    store = await open_store(f"{scheme}{path}")
    tables = await store._database.read(lambda connection: inspect(connection).get_table_names())
    await store.close()

    assert "half_made" not in tables
    assert [(newest_revision(),)] == revision(path)


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    migrate_to(path, "head")
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreSchemaError):
        await open_store(str(path))

    assert [("9999",)] == revision(path)


async def test_tables_of_ours_that_we_did_not_make_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE turnlane_run (id TEXT)")
    connection.commit()
    connection.close()

    with pytest.raises(StoreSchemaError):
        await open_store(str(path))


async def test_tables_of_others_are_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (id TEXT)")
    connection.commit()
    connection.close()
    store = await open_store(str(path))
    listed = await store.list_conversations()
    await store.close()

    assert () == listed.items


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"this is not a database" * 100)

    with pytest.raises(StoreSchemaError):
        await open_store(str(path))


async def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        await open_store(str(tmp_path / "missing" / "store.db"), busy_seconds=0.1)


async def test_a_database_that_we_have_no_store_for_is_refused() -> None:
    with pytest.raises(StoreSchemaError):
        await open_store("mysql://host/db")


@pytest.mark.parametrize("scheme", ["", "sqlite+aiosqlite:///"])
async def test_a_locked_store_is_unavailable_to_writers_and_open_to_readers(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "store.db"
    store = await open_store(f"{scheme}{path}", busy_seconds=0.1)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreUnavailableError):
            await store.open_lane("c", "lane-1", None)
        listed = await store.list_conversations()
    finally:
        holder.close()
    opened = await store.open_lane("c", "lane-1", None)
    await store.close()

    assert ((), 1) == (listed.items, opened.epoch)


async def test_a_store_in_wal_mode_waits_before_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await open_store(str(path), busy_seconds=0.25)
    pragmas = ("busy_timeout", "journal_mode", "synchronous", "foreign_keys")
    found = await store._database.read(
        lambda connection: [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas]
    )
    await store.close()

    assert [250, "wal", 1, 1] == found


async def test_a_process_killed_in_a_transaction_leaves_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await open_store(str(path))
    process = await start(HANG_IN_A_TRANSACTION, path)
    assert process.stdout is not None
    assert b"written\n" == await process.stdout.readline()
    process.kill()
    await process.communicate()
    half = await store.is_purged("half")
    opened = await store.open_lane("c", "lane-1", None)
    await store.close()

    assert (False, 1) == (half, opened.epoch)


async def test_a_cancelled_caller_leaves_the_writer_free(store: SqlStore, lane: Lane) -> None:
    calls = [asyncio.create_task(lane.beside(f"c-{n}").open()) for n in range(30)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await lane.apply(lane.admit("a"))

    assert 1 == (await store.load_snapshot(lane.conversation_id)).version


async def test_two_stores_on_one_file_write_at_once_without_an_error(tmp_path: Path, lane: Lane) -> None:
    path = tmp_path / "shared.db"
    stores = [await open_store(str(path)), await open_store(f"sqlite+aiosqlite:///{path}")]
    appends = [store.append_event("c", "app/n", {}, lane.clock()) for _ in range(50) for store in stores]
    events = await asyncio.gather(*appends)
    for store in stores:
        await store.close()

    assert list(range(1, 101)) == sorted(event.seq for event in events)
