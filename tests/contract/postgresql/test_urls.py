"""The URL of a store on PostgreSQL: each way to write it, and that nobody ever sees its password."""

from __future__ import annotations

import logging
import sys
import traceback

import pytest
from sqlalchemy import URL

from tests.contract.postgresql.beside import SECRET, failure
from turnlane.records.errors import InvalidInputError, StoreSchemaError, StoreUnavailableError
from turnlane.store.sql import open_store


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
