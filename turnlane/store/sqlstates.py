"""What a PostgreSQL error means, by its SQLSTATE: never by its text, which may quote rows.

For the same reason no error is chained to the one that it stands for: a failure that travels takes its
causes along, and PostgreSQL's says which row broke a constraint, with all that is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from turnlane.records.errors import StoreIntegrityError, StoreSchemaError, StoreUnavailableError, TurnlaneError

PASSING = {
    "08": "the connection to the store broke",
    "0A000": "the store's schema changed under a statement",
    "25006": "the store's server is read-only",
    "25P03": "the store's server gave up on the transaction",
    "28": "the store's server refused the user or the password",
    "3D000": "the store's server has no such database: create it first",
    "40": "another transaction was in the way",
    "53": "the store's server has no more room or connections",
    "55": "the store is locked by another transaction",
    "57": "the store's server is starting, stopping or was told to stop the statement",
    "58": "the store's server met an error of its system",
}
"""Conditions that a later call may not meet, by SQLSTATE or by its class."""

FOREIGN = {
    "3F000": "the search path of the store's user names no schema that exists",
    "42501": "the store's user lacks a privilege",
    "42704": "the store's URL names a setting that its server does not have",
    "42703": "the store is not a database of turnlane's, or lacks a column",
    "42P01": "the store is not a database of turnlane's, or lacks a table",
}
"""Conditions that somebody has to mend."""

_OUT_OF_REACH = "the store's server does not answer: is it running, and is its address right?"


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the errors of PostgreSQL, its driver and the network into the store's own, with codes only."""
    try:
        yield
    except TurnlaneError:
        raise
    except PoolTimeoutError:
        raise StoreUnavailableError("no connection to the store became free in time") from None
    except IntegrityError as error:
        told = StoreIntegrityError("a write would break a constraint of the store", **_facts(error))
        raise told from None
    except DBAPIError as error:
        raise _meaning(error) from None
    except OSError:
        # The network's, and the driver's word that an answer did not come in time.
        raise StoreUnavailableError(_OUT_OF_REACH) from None


def _meaning(error: DBAPIError) -> TurnlaneError:
    state = sqlstate(error)
    passing = PASSING.get(state) or PASSING.get(state[:2])
    if passing is not None:
        return StoreUnavailableError(passing, **_facts(error))
    if state in FOREIGN:
        return StoreSchemaError(FOREIGN[state], **_facts(error))
    if is_disconnected(error) or _is_of_driver(error):
        return StoreUnavailableError(_OUT_OF_REACH, **_facts(error))
    return StoreIntegrityError("the database refused a statement or a value", **_facts(error))


def sqlstate(error: DBAPIError) -> str:
    """Return the SQLSTATE of an error, empty if the server did not give one."""
    stated = getattr(error.orig, "sqlstate", None) or getattr(_driver_error(error), "sqlstate", None)
    return stated if isinstance(stated, str) else ""


def is_disconnected(error: DBAPIError) -> bool:
    """Whether the connection is gone: closed already, or about to be by a server that has just said so."""
    return error.connection_invalidated or sqlstate(error).startswith(("08", "57P0"))


def _facts(error: DBAPIError) -> dict[str, str]:
    state = sqlstate(error)
    return {"sqlstate": state} if state else {}


def _is_of_driver(error: DBAPIError) -> bool:
    """Whether the driver lost its way in what the server said: another connection may do better."""
    from asyncpg import InternalClientError

    return isinstance(_driver_error(error), InternalClientError)


def _driver_error(error: DBAPIError) -> BaseException | None:
    return error.orig.__cause__ if error.orig is not None else None
