"""What an error of PostgreSQL is taken for: by its state, never by its words."""

from __future__ import annotations

import asyncio
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import URL, Connection, text
from sqlalchemy.util import await_only

from tests.contract.postgresql.beside import SECRET, WAIT_SECONDS, WAITING, failure, held, is_waiting
from tests.integration.stage import until
from tests.postgresql import Databases
from turnlane.records.errors import StoreIntegrityError, StoreSchemaError, StoreUnavailableError, TurnlaneError
from turnlane.store.database import Database, connect
from turnlane.store.sql import open_store

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


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
