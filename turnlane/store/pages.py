"""Pages: opaque cursors that name a position, never a row, and the limits of a page."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime

from turnlane.records.base import canonical_json
from turnlane.records.errors import InvalidInputError

MAX_PAGE = 10_000

CursorValue = int | str


def check_limit(limit: int, most: int = MAX_PAGE) -> int:
    """Return the limit if a page may have it."""
    if not 1 <= limit <= most:
        raise InvalidInputError(f"a page holds 1 to {most} items", fields=["limit"])
    return limit


def write_cursor(kind: str, *place: CursorValue) -> str:
    """Return an opaque cursor behind `place`, good for one kind of list."""
    return base64.urlsafe_b64encode(canonical_json([kind, *place]).encode()).decode().rstrip("=")


def read_cursor(kind: str, cursor: str, *types: type[CursorValue]) -> tuple[CursorValue, ...]:
    """Return the place that a cursor names; one of another list, or a made-up one, is the caller's mistake."""
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        named = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise _bad_cursor() from None
    if not isinstance(named, list) or len(named) != len(types) + 1 or named[0] != kind:
        raise _bad_cursor()
    if not all(type(value) is kind_of for value, kind_of in zip(named[1:], types, strict=True)):
        raise _bad_cursor()
    return tuple(named[1:])


def read_moment(text: CursorValue) -> datetime:
    """Return the instant in a cursor."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise _bad_cursor() from None
    if moment.tzinfo is None:
        raise _bad_cursor()
    return moment


def _bad_cursor() -> InvalidInputError:
    return InvalidInputError("the cursor is not one of this list's; start without one", fields=["cursor"])
