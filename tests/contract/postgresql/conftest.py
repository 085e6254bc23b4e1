"""Stores on an empty database of a real PostgreSQL, and connections beside theirs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import URL

from tests.contract.postgresql.beside import PATIENCE
from tests.postgresql import Databases, connected
from turnlane.store.database import Database, connect
from turnlane.store.sql import SqlStore, open_store

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


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
