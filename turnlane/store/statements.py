"""Statements by primary key, built once a table: insert, find and update a row; and how many ids one may name.

Building a statement costs more than running it on SQLite; so the hot paths use these, with values as
parameters. A row to write is a namespace, typed as the row class that it stands for: it can be changed
freely, and an attribute is an attribute, without the ORM's bookkeeping. It knows how it stands in its table,
so that writing it back writes what is different, and leaves the indexes of all other columns alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlmodel import SQLModel

from turnlane.store.prepared import Prepared
from turnlane.store.tables import table_of

Row = TypeVar("Row", bound=SQLModel)
T = TypeVar("T")

Key = tuple[str | int, ...]

_KEY = "key_"
_CHUNK = 500


class _RowToWrite(SimpleNamespace):
    """A row's columns as they are to be, and as they stand in the table; nothing stands there of a new one."""

    __slots__ = ("stored",)

    def __init__(self, columns: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        super().__init__(**columns)
        self.stored = stored


def new_row(kind: type[Row], /, **values: Any) -> Row:
    """Return a row of `kind` with the class's defaults, to be inserted."""
    return cast(Row, _RowToWrite({**_defaults(kind), **values}, {}))


def insert_rows(connection: Connection, kind: type[Row], *rows: Row) -> None:
    """Insert rows, in one statement."""
    if len(rows) == 1:
        _insert(kind).change(connection, vars(rows[0]))
    elif rows:
        _insert(kind).change_each(connection, [vars(row) for row in rows])
    for row in rows:
        cast(_RowToWrite, row).stored = vars(row).copy()


def find_row(connection: Connection, kind: type[Row], *key: str | int, lock: bool = False) -> Row | None:
    """Return the row with a primary key, free to be changed and written back. `lock` holds it to the end."""
    names = _key_names(kind)
    found = _find(kind, lock).first(connection, dict(zip(names, key, strict=True)))
    if found is None:
        return None
    columns = found._asdict()
    return cast(Row, _RowToWrite(columns, columns))


def update_row(connection: Connection, kind: type[Row], row: Row) -> None:
    """Write back what a row that was found or inserted has different now."""
    columns, stored = vars(row), cast(_RowToWrite, row).stored
    changed = {name: value for name, value in columns.items() if value != stored[name]}
    if changed:
        change_row(connection, kind, tuple(columns[name] for name in _key_names(kind)), **changed)
        cast(_RowToWrite, row).stored = columns.copy()


def change_row(connection: Connection, kind: type[Row], key: Key, /, **values: Any) -> int:
    """Change some columns of the row with a primary key; how many rows that were, 0 or 1."""
    where = {_KEY + name: value for name, value in zip(_key_names(kind), key, strict=True)}
    return _update(kind, tuple(values)).change(connection, where | values)


def chunks(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield ids in lists of a length that every database takes in one statement."""
    return (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))


@cache
def _defaults(kind: type[SQLModel]) -> dict[str, Any]:
    fields = kind.model_fields.items()
    return {name: field.default for name, field in fields if not field.is_required()}


@cache
def _key_names(kind: type[SQLModel]) -> tuple[str, ...]:
    return tuple(column.name for column in table_of(kind).primary_key.columns)


@cache
def _insert(kind: type[SQLModel]) -> Prepared:
    table = table_of(kind)
    return Prepared(insert(table), [column.name for column in table.columns])


@cache
def _find(kind: type[SQLModel], lock: bool) -> Prepared:
    table = table_of(kind)
    query = select(table).where(*(table.c[name] == bindparam(name) for name in _key_names(kind)))
    return Prepared(query.with_for_update() if lock else query)


@cache
def _update(kind: type[SQLModel], columns: tuple[str, ...]) -> Prepared:
    table = table_of(kind)
    where = (table.c[name] == bindparam(_KEY + name) for name in _key_names(kind))
    return Prepared(update(table).where(*where), columns)
