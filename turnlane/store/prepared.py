"""Prepared statements: what runs in every turn, written by SQLAlchemy once and then given to SQLite's driver itself.

SQLAlchemy says what a statement means, and on every other database it runs it too. On SQLite, where a statement takes
some microseconds, running it that way costs several times the statement; so there it is compiled once, and afterwards
only its values go to the driver, by the same types and in the same transaction.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, Connection, Delete, Insert, Select, Update
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.selectable import CompoundSelect
from sqlalchemy.types import TypeEngine

DRIVER = "turnlane_driver"
"""Under which name a connection of SQLite's own driver is found in what a pool knows of it."""

Statement = Select[*tuple[Any, ...]] | CompoundSelect[Any] | Insert | Update | Delete
Values = Mapping[str, Any]
Convert = Callable[[Any], Any]


class _Value(NamedTuple):
    """A place for a value: the name under which it is given, or what stands there always, and how it is converted."""

    name: str | None
    convert: Convert | None
    constant: Any = None


class _Compiled(NamedTuple):
    """A statement as the driver takes it: its text, its values in order, and what becomes of a row."""

    text: str
    values: tuple[_Value, ...]
    row: Callable[..., Any]
    converted: tuple[tuple[int, Convert], ...]

    def arguments(self, given: Values) -> list[Any]:
        """The values in order, as the driver takes them."""
        arguments = []
        for name, convert, constant in self.values:
            value = constant if name is None else given[name]
            arguments.append(value if convert is None else convert(value))
        return arguments

    def read(self, line: Sequence[Any]) -> Any:
        """A line of the driver's as a row, with columns as attributes."""
        if not self.converted:
            return self.row(line)
        fields = list(line)
        for place, convert in self.converted:
            fields[place] = convert(fields[place])
        return self.row(fields)


class Prepared:
    """A statement that is run often. Keep it for as long as the process: it is compiled once.

    `keys` are the columns that an insert or an update writes by name, when the statement does not say.
    """

    def __init__(self, statement: Statement, keys: Sequence[str] | None = None) -> None:
        self._statement = statement
        self._keys = keys
        self._compiled: _Compiled | None = None

    def all(self, connection: Connection, given: Values) -> Sequence[Any]:
        """Return the rows, with columns as attributes."""
        driver = driver_of(connection)
        if driver is None:
            return connection.execute(self._statement, given).all()
        compiled = self._for(connection.dialect)
        lines = driver.execute(compiled.text, compiled.arguments(given)).fetchall()
        return [compiled.read(line) for line in lines]

    def lines(self, connection: Connection, given: Values) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        """Return the rows unread, as tuples of whatever the driver gives, and what reads one.

        Lines that are equal read the same.
        """
        driver = driver_of(connection)
        if driver is None:
            return connection.execute(self._statement, given).all(), _as_it_is
        compiled = self._for(connection.dialect)
        return driver.execute(compiled.text, compiled.arguments(given)).fetchall(), compiled.read

    def first(self, connection: Connection, given: Values) -> Any | None:
        """Return the first row, None if there is none."""
        driver = driver_of(connection)
        if driver is None:
            return connection.execute(self._statement, given).first()
        compiled = self._for(connection.dialect)
        cursor = driver.execute(compiled.text, compiled.arguments(given))
        line = cursor.fetchone()
        # Left open, it would hold the transaction's snapshot.
        cursor.close()
        return None if line is None else compiled.read(line)

    def scalar(self, connection: Connection, given: Values) -> Any | None:
        """Return the first column of the first row, None if there is no row."""
        row = self.first(connection, given)
        return None if row is None else row[0]

    def change(self, connection: Connection, given: Values) -> int:
        """Run a statement that writes; how many rows it touched."""
        driver = driver_of(connection)
        if driver is None:
            return connection.execute(self._statement, given).rowcount
        compiled = self._for(connection.dialect)
        return driver.execute(compiled.text, compiled.arguments(given)).rowcount

    def change_each(self, connection: Connection, given: Sequence[Values]) -> None:
        """Run a statement that writes, once for each of these values."""
        driver = driver_of(connection)
        if driver is None:
            connection.execute(self._statement, given)
            return
        compiled = self._for(connection.dialect)
        driver.executemany(compiled.text, map(compiled.arguments, given))

    def _for(self, dialect: Dialect) -> _Compiled:
        # All connections that have a driver of their own are of one dialect. Two threads may compile at once: the
        # same thing comes of it.
        if self._compiled is None:
            self._compiled = _compile(self._statement, self._keys, dialect)
        return self._compiled


def _as_it_is(row: Any) -> Any:
    return row


def driver_of(connection: Connection) -> sqlite3.Connection | None:
    """Return the connection of SQLite's own driver behind a connection, None where there is another driver."""
    found: sqlite3.Connection | None = connection.info.get(DRIVER)
    return found


def _compile(statement: Statement, keys: Sequence[str] | None, dialect: Dialect) -> _Compiled:
    compiled = statement.compile(dialect=dialect, column_keys=None if keys is None else list(keys))
    assert isinstance(compiled, SQLCompiler)
    binds = {name: bind for bind, name in compiled.bind_names.items()}
    values = tuple(_value(name, binds[name], dialect) for name in compiled.positiontup or ())
    columns = list(statement.selected_columns) if isinstance(statement, Select | CompoundSelect) else []
    names = [str(column.key) for column in columns]
    # Column names are ours, and those of one statement differ: a row that hid one would be a mistake.
    make_type: Any = namedtuple
    row = make_type("Row", names)._make if names else tuple
    return _Compiled(compiled.string, values, row, tuple(_conversions([column.type for column in columns], dialect)))


def _value(name: str, bind: BindParameter[Any], dialect: Dialect) -> _Value:
    convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
    return _Value(name, convert) if bind.required else _Value(None, convert, bind.effective_value)


def _conversions(types: Sequence[TypeEngine[Any]], dialect: Dialect) -> Sequence[tuple[int, Convert]]:
    found = (kind.dialect_impl(dialect).result_processor(dialect, None) for kind in types)
    return [(place, convert) for place, convert in enumerate(found) if convert is not None]
