"""What PostgreSQL's SQLSTATEs are taken for: what passes, what somebody has to mend, what a write broke."""

from __future__ import annotations

import traceback

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from turnlane.records.errors import (
    QueueFullError,
    StoreIntegrityError,
    StoreSchemaError,
    StoreUnavailableError,
    TurnlaneError,
)
from turnlane.store.sqlstates import translated_errors

ROW = "Failing row contains (xq7-said-in-confidence-9)."


class DriverError(Exception):
    """What the driver raises, or the adapter above it."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(ROW)
        self.sqlstate = sqlstate


def translated(error: BaseException) -> TurnlaneError:
    with pytest.raises(TurnlaneError) as raised, translated_errors():
        raise error
    return raised.value


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("08006", StoreUnavailableError),
        ("25006", StoreUnavailableError),
        ("25P03", StoreUnavailableError),
        ("40001", StoreUnavailableError),
        ("40P01", StoreUnavailableError),
        ("53100", StoreUnavailableError),
        ("53300", StoreUnavailableError),
        ("55P03", StoreUnavailableError),
        ("57P01", StoreUnavailableError),
        ("57P02", StoreUnavailableError),
        ("57P03", StoreUnavailableError),
        ("58030", StoreUnavailableError),
        ("3D000", StoreUnavailableError),
        ("28P01", StoreUnavailableError),
        ("42P01", StoreSchemaError),
        ("42703", StoreSchemaError),
        ("42501", StoreSchemaError),
        ("3F000", StoreSchemaError),
        ("22021", StoreIntegrityError),
        ("XX000", StoreIntegrityError),
        (None, StoreIntegrityError),
    ],
)
def test_a_state_says_what_an_error_is_and_no_row_is_told(sqlstate: str | None, kind: type[TurnlaneError]) -> None:
    error = translated(DBAPIError("INSERT", {"text": ROW}, DriverError(sqlstate)))

    assert (kind, sqlstate) == (type(error), error.details.get("sqlstate"))
    assert "xq7" not in "".join(traceback.format_exception(error))
    assert error.__cause__ is None


def test_a_state_that_only_the_drivers_own_error_has_is_found() -> None:
    adapted = DriverError(None)
    adapted.__cause__ = DriverError("0A000")
    error = translated(DBAPIError("SELECT", {}, adapted))

    assert (StoreUnavailableError, "0A000") == (type(error), error.details["sqlstate"])


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (IntegrityError("INSERT", {}, DriverError("23505")), StoreIntegrityError),
        (DBAPIError("SELECT", {}, DriverError(None), connection_invalidated=True), StoreUnavailableError),
        (PoolTimeoutError("QueuePool limit"), StoreUnavailableError),
        (ConnectionRefusedError(111, "refused"), StoreUnavailableError),
        (TimeoutError(), StoreUnavailableError),
        (QueueFullError("of turnlane's own"), QueueFullError),
    ],
)
def test_what_has_no_state_is_told_by_its_kind(raised: Exception, kind: type[TurnlaneError]) -> None:
    assert kind is type(translated(raised))
