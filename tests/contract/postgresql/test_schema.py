"""The schema on PostgreSQL: made once, in one place, sorted by code point, with room for the longest ids."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.postgresql.beside import SECRET, failure
from tests.contract.test_store_open import OPEN_IN_TWENTY_PROCESSES, start
from tests.postgresql import Databases, connected
from turnlane.records.durable import Delivery
from turnlane.records.errors import StoreSchemaError, StoreUnavailableError
from turnlane.store.migrate import VERSION_TABLE, newest_revision
from turnlane.store.sql import open_store

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_twenty_processes_open_an_empty_database_at_once_and_one_migrates(postgresql: Databases) -> None:
    empty = await postgresql.create()
    process = await start(OPEN_IN_TWENTY_PROCESSES, empty.render_as_string(hide_password=False))
    answer, errors = await process.communicate()
    async with connected(empty) as connection:
        found = await connection.fetch(f"SELECT version_num FROM {VERSION_TABLE}")

    assert (f"{[0] * 20}", "") == (answer.decode().strip(), errors.decode())
    assert [newest_revision()] == [row["version_num"] for row in found]


async def test_two_empty_databases_are_opened_at_once_in_one_process(postgresql: Databases) -> None:
    empty = [await postgresql.create() for _ in range(2)]
    stores = await asyncio.gather(*(open_store(url) for url in empty))
    found = [await store.is_purged("c") for store in stores]
    for store in stores:
        await store.close()

    assert [False, False] == found


async def test_a_schema_that_changes_under_an_open_store_costs_one_call(lane: Lane, beside: Any) -> None:
    await lane.apply(lane.admit("a"))
    await lane.said()
    await beside.execute("ALTER TABLE turnlane_message ALTER COLUMN details TYPE varchar")
    error = await failure(lane.said())
    said = await lane.said()
    await beside.execute("ALTER TABLE turnlane_message ALTER COLUMN details TYPE text")

    assert (StoreUnavailableError, "0A000") == (type(error), error.details["sqlstate"])
    assert ["in-a"] == said


async def test_no_log_holds_what_was_said(lane: Lane, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("sqlalchemy", "asyncpg", "asyncio", "turnlane"):
        caplog.set_level(logging.DEBUG, logger=name)
    await lane.answer("a", SECRET)
    snapshot = await lane.store.load_snapshot(lane.conversation_id)

    assert SECRET == snapshot.messages[1].text
    assert "SELECT" in caplog.text
    assert SECRET not in caplog.text


async def test_a_newer_schema_and_tables_that_others_made_are_refused(postgresql: Databases) -> None:
    newer, foreign = await postgresql.create(), await postgresql.create()
    await (await open_store(newer)).close()
    async with connected(newer) as connection:
        await connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    async with connected(foreign) as connection:
        await connection.execute("CREATE TABLE turnlane_run (id integer)")

    with pytest.raises(StoreSchemaError, match="9999"):
        await open_store(newer)
    with pytest.raises(StoreSchemaError, match="did not make"):
        await open_store(foreign)


async def test_the_tables_are_in_the_first_schema_of_the_search_path(postgresql: Databases, lane: Lane) -> None:
    shared = await postgresql.create()
    async with connected(shared) as connection:
        await connection.execute("CREATE SCHEMA app")
    public = await open_store(shared)
    await public.append_event("c", "app/a", {}, lane.clock())
    own = await open_store(shared.update_query_dict({"search_path": "app,public"}))
    seen = await own.last_seq("c")
    await own.append_event("c", "app/a", {}, lane.clock())
    await own.append_event("c", "app/a", {}, lane.clock())

    assert (0, 2, 1) == (seen, await own.last_seq("c"), await public.last_seq("c"))
    await public.close()
    await own.close()


async def test_ids_and_names_are_ordered_by_code_point_whatever_the_locale_of_the_database(watcher: Any) -> None:
    query = "SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_name LIKE 'turnlane%'"
    of_ids = await watcher.fetch(f"{query} AND data_type = 'character varying' AND table_name <> '{VERSION_TABLE}'")

    assert ["C"] == [row["collation_name"] for row in of_ids]


async def test_the_longest_ids_of_the_widest_characters_fit_into_every_index(lane: Lane) -> None:
    draw = random.Random(7)

    def widest(length: int) -> str:
        return "".join(chr(draw.randrange(0x20000, 0x2A6D0)) for _ in range(length))

    other = await lane.beside(widest(256)).open()
    run_id, answer, call = widest(256), widest(256), widest(256)
    message = other.message(widest(256))
    admitted = other.admit(
        widest(256), message=message, run_id=run_id, assistant_id=answer, agent=widest(128), tenant=widest(128)
    )
    await other.apply(admitted)
    await other.store.append_event(other.conversation_id, widest(128), {}, other.clock(), key=widest(256))
    delivery = Delivery(event=widest(128), id=call, payload=1)
    await other.store.deliver(other.conversation_id, delivery, other.clock())
    found = await other.store.find_delivery(other.conversation_id, delivery.key)

    assert [message.id] == await other.said()
    assert found is not None and "1" == found.entry


async def test_pages_go_by_code_point(lane: Lane) -> None:
    names = ["a", "B", "b", "ä", "Z", "_", "~", "a-b", "a b", "A"]
    for name in names:
        other = await lane.beside(name).open()
        await other.apply(other.admit("k"))
    page = await lane.store.scan_recoverable(limit=4)
    found = [item.conversation_id for item in page.items]
    while page.next_cursor is not None:
        page = await lane.store.scan_recoverable(limit=4, cursor=page.next_cursor)
        found += [item.conversation_id for item in page.items]

    assert sorted(names) == found
