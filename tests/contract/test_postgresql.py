"""What only PostgreSQL can go through: many writers at once, lost connections, and what its errors are taken for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import URL, Connection, text
from sqlalchemy.util import await_only

from tests.contract.losing_link import losing_link
from tests.contract.test_store_open import OPEN_IN_TWENTY_PROCESSES, start
from tests.integration.stage import until
from tests.postgresql import Databases, connected
from turnlane.records.durable import Delivery
from turnlane.records.errors import (
    ConversationPurgedError,
    InvalidInputError,
    StoreIntegrityError,
    StoreSchemaError,
    StoreUnavailableError,
    TurnlaneError,
)
from turnlane.records.mutations import CommitOutcome
from turnlane.store.database import Database, connect
from turnlane.store.migrate import VERSION_TABLE, newest_revision
from turnlane.store.sql import SqlStore, open_store

if TYPE_CHECKING:
    from tests.contract.conftest import Lane

PATIENCE = 0.3
"""How long these stores wait for a lock that another holds."""

WAIT_SECONDS = 20.0

SECRET = "xq7-open-sesame-9"


@pytest.fixture
async def url(postgresql: Databases) -> URL:
    """Where an empty store is."""
    return await postgresql.clean()


@pytest.fixture
async def open_here(url: URL) -> AsyncIterator[Callable[..., Awaitable[SqlStore]]]:
    """Opens stores on one database, each with a pool of its own."""
    async with contextlib.AsyncExitStack() as stack:

        async def opened(**options: Any) -> SqlStore:
            store = await open_store(url, **options)
            stack.push_async_callback(store.close)
            return store

        yield opened


@pytest.fixture
async def lane(open_here: Callable[..., Awaitable[SqlStore]]) -> Lane:
    """An open lane."""
    from tests.contract.conftest import Lane

    return await Lane(await open_here(busy_seconds=PATIENCE)).open()


@pytest.fixture
async def database(url: URL) -> AsyncIterator[Database]:
    """The database below a store, to run statements that no store would."""
    opened = connect(url, PATIENCE)
    yield opened
    await opened.close()


@pytest.fixture
async def beside(url: URL) -> AsyncIterator[Any]:
    """A connection that is not the store's, to hold what others want."""
    async with connected(url) as connection:
        yield connection


@pytest.fixture
async def watcher(url: URL) -> AsyncIterator[Any]:
    """A connection to see by what the others are at. It is in no transaction, in which time stands still."""
    async with connected(url) as connection:
        yield connection


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


# --- many writers -------------------------------------------------------------------------------


async def test_twenty_commits_at_once_on_one_conversation_apply_each_mutation_once(
    lane: Lane, open_here: Callable[..., Awaitable[SqlStore]]
) -> None:
    stores = (await open_here(), await open_here())
    notes = [lane.note(f"app/{number}") for number in range(20)]
    batches = [lane.batch(*notes[:length]) for length in range(1, 21)]
    committed = await asyncio.gather(
        *(stores[place % 2].commit(batch, lane.clock()) for place, batch in enumerate(reversed(batches)))
    )
    page = await lane.store.read_events(lane.conversation_id)

    assert {CommitOutcome.APPLIED} == {each.reply.outcome for each in committed}
    assert [(number + 1, f"app/{number}") for number in range(20)] == [(event.seq, event.kind) for event in page.items]


async def test_forty_events_at_once_get_forty_places(lane: Lane, open_here: Callable[..., Awaitable[SqlStore]]) -> None:
    stores = (await open_here(), await open_here())
    events = await asyncio.gather(
        *(stores[number % 2].append_event("fresh", "app/a", {"n": number}, lane.clock()) for number in range(40))
    )

    assert list(range(1, 41)) == sorted(event.seq for event in events)


async def test_lanes_that_open_a_new_conversation_at_once_get_an_epoch_each(
    open_here: Callable[..., Awaitable[SqlStore]],
) -> None:
    stores = (await open_here(), await open_here())
    opened = await asyncio.gather(
        *(stores[number % 2].open_lane("new", f"owner-{number}", None) for number in range(20))
    )

    assert list(range(1, 21)) == sorted(each.epoch or 0 for each in opened)


async def test_one_content_put_by_many_at_once_is_one_blob(
    lane: Lane, open_here: Callable[..., Awaitable[SqlStore]], beside: Any
) -> None:
    stores = (await open_here(), await open_here())
    put = [stores[number % 2].put_blob("unknown", b"same", "text/plain", lane.clock()) for number in range(20)]
    blobs = await asyncio.gather(*put)
    uses = await beside.fetch("SELECT id, uses FROM turnlane_blob")

    assert [(blobs[0].id, 20)] == [tuple(row) for row in uses]


async def test_a_blob_put_while_its_conversation_is_purged_leaves_nothing_behind(
    lane: Lane, open_here: Callable[..., Awaitable[SqlStore]], beside: Any, watcher: Any
) -> None:
    patient = await open_here(busy_seconds=20)
    async with held(beside, lane.conversation_id):
        putting = asyncio.create_task(patient.put_blob(lane.conversation_id, b"late", "text/plain", lane.clock()))
        await until(is_waiting(watcher), WAIT_SECONDS)
        await beside.execute("DELETE FROM turnlane_conversation")
        stone = (
            "INSERT INTO turnlane_tombstone (conversation_id, epoch, answers, purged_at) VALUES ($1, 1, '[]', now())"
        )
        await beside.execute(stone, lane.conversation_id)
    error = await failure(putting)

    assert isinstance(error, ConversationPurgedError)
    assert [] == await beside.fetch("SELECT FROM turnlane_blob")


async def test_a_conversation_that_is_held_holds_up_no_other_and_no_reader(lane: Lane, beside: Any) -> None:
    other = await lane.beside().open()
    async with held(beside, lane.conversation_id):
        with pytest.raises(StoreUnavailableError) as refused:
            await lane.commit(lane.note())
        applied = await other.commit(other.note())
        snapshot = await lane.store.load_snapshot(lane.conversation_id)

    assert "55P03" == refused.value.details["sqlstate"]
    assert CommitOutcome.APPLIED is applied.reply.outcome
    assert lane.conversation_id == snapshot.conversation_id


# --- connections that are lost ------------------------------------------------------------------


async def test_a_store_goes_on_when_its_server_was_restarted(lane: Lane, postgresql: Databases) -> None:
    if postgresql.server is None:
        pytest.skip("the server is not ours to restart")
    await lane.apply(lane.admit("a"))
    postgresql.server.stop()
    with pytest.raises(StoreUnavailableError):
        await lane.said()
    postgresql.server.start()
    async with connected(postgresql.admin):
        said = await lane.said()
    await lane.apply(lane.admit("b"))

    assert ["in-a"] == said
    assert ["in-a", "in-b"] == await lane.said()


async def test_an_idle_connection_that_the_server_closed_is_replaced(lane: Lane, watcher: Any) -> None:
    await lane.apply(lane.admit("a"))
    before = await backends(watcher, "state = 'idle'")
    for pid in before:
        await watcher.execute("SELECT pg_terminate_backend($1, 5000)", pid)

    assert ["in-a"] == await lane.said()
    assert not set(before) & set(await backends(watcher, "TRUE"))


@pytest.mark.parametrize(
    ("order", "states"), [("pg_terminate_backend", {"57P01", "08003"}), ("pg_cancel_backend", {"57014"})]
)
async def test_a_write_that_the_server_ends_is_unavailable_and_left_nothing(
    open_here: Callable[..., Awaitable[SqlStore]], lane: Lane, beside: Any, watcher: Any, order: str, states: set[str]
) -> None:
    patient = await open_here(busy_seconds=20)
    batch = lane.batch(lane.admit("a"))
    async with held(beside, lane.conversation_id):
        writing = asyncio.create_task(patient.commit(batch, lane.clock()))
        # The first time it may take its connection for one that had died before.
        while not writing.done():
            for pid in await backends(watcher, WAITING):
                await watcher.execute(f"SELECT {order}($1)", pid)
            await asyncio.wait([writing], timeout=0.01)
        with pytest.raises(StoreUnavailableError) as failed:
            await writing
    repeated = await lane.store.commit(batch, lane.clock())

    assert failed.value.details["sqlstate"] in states
    assert CommitOutcome.APPLIED is repeated.reply.outcome
    assert ["in-a"] == await lane.said()


async def test_a_commit_whose_answer_is_lost_is_unavailable_and_its_repeat_is_answered_from_the_rows(
    lane: Lane, url: URL
) -> None:
    if "host" not in url.query:
        pytest.skip("the server listens on no Unix socket")
    batch = lane.batch(lane.admit("a"))
    async with losing_link(url, b"COMMIT;") as link:
        store = await open_store(link.url)
        link.lose_next_answer()
        with pytest.raises(StoreUnavailableError):
            await store.commit(batch, lane.clock())
        applied = await lane.said()
        repeated = await store.commit(batch, lane.clock())
        await store.close()

    assert ["in-a"] == applied == await lane.said()
    assert (CommitOutcome.APPLIED, 1) == (repeated.reply.outcome, repeated.reply.results[0].ledger_seq)


async def test_a_cancelled_call_leaves_no_transaction_open_and_its_write_is_whole(
    open_here: Callable[..., Awaitable[SqlStore]], lane: Lane, beside: Any, watcher: Any
) -> None:
    patient = await open_here(busy_seconds=20)
    async with held(beside, lane.conversation_id):
        writing = asyncio.create_task(patient.commit(lane.batch(lane.admit("a")), lane.clock()))
        await until(is_waiting(watcher), WAIT_SECONDS)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    await patient.close()

    assert [] == await backends(watcher, IN_TRANSACTION)
    assert ["in-a"] == await lane.said()


async def test_a_storm_of_cancelled_calls_leaves_every_connection_usable(lane: Lane, watcher: Any) -> None:
    for delay in range(40):
        reading = asyncio.create_task(lane.said())
        writing = asyncio.create_task(lane.store.append_event("storm", "app/a", {}, lane.clock()))
        await asyncio.sleep(delay / 10_000)
        reading.cancel()
        writing.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)
    await asyncio.gather(*(lane.said() for _ in range(20)))
    page = await lane.store.read_events("storm")

    assert list(range(1, len(page.items) + 1)) == [event.seq for event in page.items]
    assert [] == await backends(watcher, IN_TRANSACTION)


# --- the schema ---------------------------------------------------------------------------------


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


# --- what errors mean ---------------------------------------------------------------------------


async def failure(call: Awaitable[Any]) -> TurnlaneError:
    """The error that a call ends with."""
    with pytest.raises(TurnlaneError) as raised:
        await call
    return raised.value


def statement(sql: str) -> Callable[[Connection], Any]:
    return lambda connection: connection.execute(text(sql))


@pytest.mark.parametrize(
    ("sql", "kind", "state"),
    [
        ("SELECT FROM turnlane_nowhere", StoreSchemaError, "42P01"),
        ("SELECT nothing FROM turnlane_run", StoreSchemaError, "42703"),
        ("SET LOCAL search_path = missing; CREATE TABLE t ()", StoreSchemaError, "3F000"),
        ("INSERT INTO turnlane_tombstone VALUES ('xq7', 1, NULL, now())", StoreIntegrityError, "23502"),
        ("SELECT 1 / 0", StoreIntegrityError, "22012"),
        ("SET TRANSACTION READ ONLY; DELETE FROM turnlane_run", StoreUnavailableError, "25006"),
        ("SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)", StoreUnavailableError, "57014"),
    ],
)
async def test_an_error_is_told_by_its_state_and_quotes_no_row(
    database: Database, sql: str, kind: type[TurnlaneError], state: str
) -> None:
    *first, last = sql.split("; ")

    def statements(connection: Connection) -> None:
        for each in (*first, last):
            connection.execute(text(each))

    error = await failure(database.write(statements))

    assert (kind, state) == (type(error), error.details["sqlstate"])
    assert "xq7" not in "".join(traceback.format_exception(error))
    assert error.__cause__ is None


async def test_two_transactions_that_wait_for_each_other_are_unavailable(
    url: URL, lane: Lane, beside: Any, watcher: Any
) -> None:
    other = await lane.beside().open()
    database = connect(url.update_query_dict({"deadlock_timeout": "10ms"}), 20)
    lock = "SELECT FROM turnlane_conversation WHERE id = '{}' FOR UPDATE"
    holds, go_on = asyncio.Event(), asyncio.Event()

    def crossing(connection: Connection) -> None:
        connection.execute(text(lock.format(other.conversation_id)))
        holds.set()
        await_only(go_on.wait())
        connection.execute(text(lock.format(lane.conversation_id)))

    async def is_crossed() -> bool:
        pid = beside.get_server_pid()
        return bool(await watcher.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND {WAITING}", pid))

    async with held(beside, lane.conversation_id):
        await beside.execute("SET LOCAL deadlock_timeout = '1h'")
        writing = asyncio.create_task(database.write(crossing))
        await holds.wait()
        crossed = asyncio.create_task(beside.execute(lock.format(other.conversation_id)))
        await until(is_crossed, WAIT_SECONDS)
        go_on.set()
        error = await failure(writing)
        await crossed
    await database.close()

    assert (StoreUnavailableError, "40P01") == (type(error), error.details["sqlstate"])


async def test_a_transaction_that_another_overtook_is_unavailable(
    lane: Lane, url: URL, beside: Any, watcher: Any
) -> None:
    change = "UPDATE turnlane_conversation SET version = version"
    database = connect(url, 20)

    def overtaken(connection: Connection) -> None:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        connection.execute(text(change))

    async with beside.transaction():
        await beside.execute(change)
        writing = asyncio.create_task(database.write(overtaken))
        await until(is_waiting(watcher), WAIT_SECONDS)
    error = await failure(writing)
    await database.close()

    assert (StoreUnavailableError, "40001") == (type(error), error.details["sqlstate"])


async def test_a_value_that_cannot_be_stored_is_refused_and_not_quoted(lane: Lane) -> None:
    with_nul = await failure(lane.store.load_snapshot("xq7\x00"))
    too_large = await failure(lane.store.read_events(lane.conversation_id, from_seq=2**80))

    assert [StoreIntegrityError] * 2 == [type(with_nul), type(too_large)]
    assert "xq7" not in "".join(traceback.format_exception(with_nul))


async def test_a_user_without_a_free_connection_or_the_right_password_is_told_so(
    url: URL, postgresql: Databases, beside: Any
) -> None:
    if postgresql.server is None:
        pytest.skip("the server's users are not ours")
    crowded, locked_out = f"tl_{uuid.uuid4().hex[:8]}", f"tl_{uuid.uuid4().hex[:8]}"
    await beside.execute(f"CREATE ROLE {postgresql.server.by_password}")
    await beside.execute(f"CREATE ROLE {crowded} LOGIN CONNECTION LIMIT 0")
    await beside.execute(f"CREATE ROLE {locked_out} LOGIN PASSWORD 'right' IN ROLE {postgresql.server.by_password}")
    too_many = await failure(open_store(url.set(username=crowded)))
    wrong = await failure(open_store(url.set(username=locked_out, password=SECRET)))
    right = await failure(open_store(url.set(username=locked_out, password="right")))

    states = [(type(error), error.details["sqlstate"]) for error in (too_many, wrong, right)]
    assert [(StoreUnavailableError, "53300"), (StoreUnavailableError, "28P01"), (StoreSchemaError, "42501")] == states


async def test_a_server_or_database_that_is_not_there_is_unavailable(url: URL, tmp_path: Path) -> None:
    away = await failure(open_store(f"postgresql://user@/db?host={tmp_path}"))
    closed = await failure(open_store("postgresql://user@127.0.0.1:1/db"))
    missing = await failure(open_store(url.set(database="turnlane_missing")))

    assert [StoreUnavailableError] * 3 == [type(error) for error in (away, closed, missing)]
    assert "create it first" in missing.message


# --- the URL ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
async def test_each_name_of_the_scheme_opens_the_database(url: URL, scheme: str) -> None:
    store = await open_store(url.set(drivername=scheme).render_as_string(hide_password=False))
    found = await store.is_purged("c")
    await store.close()

    assert not found


@pytest.mark.parametrize(
    "bad",
    [
        f"postgresql://user:{SECRET}@host:port/db",
        f"postgresql://user:{SECRET}@host/db?sslmode=perhaps",
        f"postgresql+psycopg://user:{SECRET}@host/db",
        f"postgresql://user:{SECRET}@127.0.0.1:1/db",
    ],
)
async def test_no_error_and_no_log_shows_a_password(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("sqlalchemy", "asyncpg", "asyncio", "turnlane"):
        caplog.set_level(logging.DEBUG, logger=name)
    error = await failure(open_store(bad))

    assert SECRET not in "".join(traceback.format_exception(error)) + repr(error) + caplog.text
    assert isinstance(error, (InvalidInputError, StoreSchemaError, StoreUnavailableError))


async def test_nothing_of_an_open_store_shows_its_password(url: URL) -> None:
    store = await open_store(url.set(password=SECRET))
    database = store._database
    shown = [repr(store), repr(database), *(f"{name}={value!r}" for name, value in vars(database).items())]
    await store.close()

    assert SECRET not in "".join(shown)


async def test_a_missing_driver_is_named_with_what_to_install(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "turnlane.store.postgresql")
    error = await failure(open_store(url))

    assert isinstance(error, StoreSchemaError)
    assert "pip install 'turnlane[postgresql]'" in error.message


async def test_a_closed_store_refuses_calls(url: URL) -> None:
    store = await open_store(url)
    await store.close()

    with pytest.raises(RuntimeError, match="closed"):
        await store.is_purged("c")
