"""Rows that are found, changed and written back: what is written is what is different."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from turnlane.store import statements
from turnlane.store.prepared import Prepared
from turnlane.store.sql import SqlStore
from turnlane.store.statements import find_row, insert_rows, new_row, update_row
from turnlane.store.tables import ConversationRow

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns of each update that is made."""
    made: list[tuple[str, ...]] = []
    prepare = statements._update

    def noting(kind: Any, columns: tuple[str, ...]) -> Prepared:
        made.append(columns)
        return prepare(kind, columns)

    monkeypatch.setattr(statements, "_update", noting)
    return made


def _insert(connection: Connection) -> ConversationRow:
    row = new_row(ConversationRow, id="c", created_at=NOW, updated_at=NOW)
    insert_rows(connection, ConversationRow, row)
    return row


def _columns(connection: Connection) -> Mapping[str, Any]:
    row = find_row(connection, ConversationRow, "c")
    assert row is not None
    return dict(vars(row))


async def test_a_found_row_is_written_where_it_changed(store: SqlStore, written: list[tuple[str, ...]]) -> None:
    def change(connection: Connection) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        _insert(connection)
        before = _columns(connection)
        row = find_row(connection, ConversationRow, "c", lock=True)
        assert row is not None
        update_row(connection, ConversationRow, row)
        row.agent, row.version, row.updated_at = "an agent", 7, NOW + timedelta(seconds=1)
        row.owner = row.owner
        update_row(connection, ConversationRow, row)
        row.agent = None
        update_row(connection, ConversationRow, row)
        update_row(connection, ConversationRow, row)
        return before, _columns(connection)

    before, after = await store._database.write(change)

    assert [("agent", "version", "updated_at"), ("agent",)] == written
    assert {**before, "version": 7, "updated_at": NOW + timedelta(seconds=1)} == after


async def test_an_inserted_row_is_written_where_it_changed_since(
    store: SqlStore, written: list[tuple[str, ...]]
) -> None:
    def change(connection: Connection) -> Mapping[str, Any]:
        row = _insert(connection)
        row.epoch = 3
        update_row(connection, ConversationRow, row)
        return _columns(connection)

    after = await store._database.write(change)

    assert [("epoch",)] == written
    assert 3 == after["epoch"]
