"""Where a store is: a database URL, or the path of a SQLite file."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from turnlane.records.errors import InvalidInputError


def store_url(url_or_path: str | URL) -> URL:
    """Return the URL of a store: a URL as it is, anything else as the path of a SQLite file.

    One that cannot be read is an `InvalidInputError`, which does not repeat it: it may hold a password.
    """
    if isinstance(url_or_path, URL):
        return url_or_path
    if "://" not in url_or_path:
        return URL.create("sqlite", database=url_or_path)
    try:
        return make_url(url_or_path)
    except (ArgumentError, ValueError):
        raise InvalidInputError(
            "the store's URL cannot be read; it looks like postgresql://user:password@host:5432/database, "
            "with what is special in a password percent-encoded",
            fields=["store"],
        ) from None
