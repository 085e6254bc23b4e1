"""Column types that mean the same on every database: exact ids, UTC timestamps, JSON text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine


class ExactString(TypeDecorator[str]):
    """Text that is compared and sorted by code point, whatever the database's locale says."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        """Return text under the collation that compares bytes; SQLite does so by default."""
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(String(self.length, collation=collation))


class UtcTimestamp(TypeDecorator[datetime]):
    """An aware instant, read back in UTC and equal to the microsecond.

    SQLite has no such type: there it is ISO text of one fixed width, so that text order is time order.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return text on SQLite and a timestamp with time zone elsewhere."""
        kind = String(32) if dialect.name == "sqlite" else DateTime(timezone=True)
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Turn an aware instant into what the database keeps; a naive one is a mistake."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a timestamp needs an offset")
        moment = value.astimezone(UTC)
        return moment.isoformat(timespec="microseconds") if dialect.name == "sqlite" else moment

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Turn what the database kept into an aware instant in UTC."""
        if value is None:
            return None
        return datetime.fromisoformat(value) if isinstance(value, str) else value.astimezone(UTC)


RECORD_ID = ExactString(256)
NAME = ExactString(128)
CODE = ExactString(32)
TIMESTAMP = UtcTimestamp()
COUNT = BigInteger()
JSON_TEXT = Text()
"""JSON as text: records are validated straight from it, without a detour through dictionaries."""
