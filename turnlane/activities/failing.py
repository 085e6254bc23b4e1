"""How activities fail: our errors as Temporal failures, the application's as its own, and a store that is away."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import ParamSpec, TypeVar

from temporalio.exceptions import ApplicationError

from turnlane.records.errors import StoreUnavailableError, TurnlaneError
from turnlane.records.runs import Failure, FailureClass

logger = logging.getLogger(__name__)


class ApplicationFailedError(Exception):
    """The application's own code failed while a step was prepared, or refused to go on.

    `code` says which part of it, `record_id` at which message. Both may be stored and shown; the text of the
    error is for whoever calls the code directly.
    """

    def __init__(self, code: str, message: str = "", record_id: str | None = None) -> None:
        super().__init__(message or code)
        self.code = code
        self.record_id = record_id

    @property
    def failure(self) -> Failure:
        """The same as data."""
        return Failure(failure_class=FailureClass.APPLICATION, code=self.code, record_id=self.record_id)


@contextlib.contextmanager
def failing_as(
    code: str, part: str, *names: object, record_id: str | None = None, passing: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Let what the application's own code raises in here be an `ApplicationFailedError` of this code.

    The log says which part failed (`part`, formatted with `names`), with what type and where, and no more. An error
    that has its code already is passed on, and so are those that are `passing`.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (ApplicationFailedError, *passing)):
            raise
        logger.error(part + " failed with %s at %s", *names, type(error).__name__, place_of(error))
        raise ApplicationFailedError(code, record_id=record_id) from None


P = ParamSpec("P")
R = TypeVar("R")

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0


def as_failures(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Let an activity raise `TurnlaneError`s as failures that carry their code and their facts.

    Only a store that does not answer is worth another try by Temporal; everything else is final.
    """

    @functools.wraps(function)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await function(*args, **kwargs)
        except TurnlaneError as error:
            retryable = isinstance(error, StoreUnavailableError)
            raise ApplicationError(error.message, error.details, type=error.code, non_retryable=not retryable) from None

    return wrapped


async def persist(call: Callable[[], Awaitable[R]]) -> R:
    """Make a call to the store until it answers.

    An answer that was paid for must not be lost, and a run waits for its store rather than fail. The
    caller keeps heartbeating; cancelling it gives up.
    """
    wait = FIRST_WAIT_SECONDS
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            logger.warning("the store did not answer; trying again in %.1f s", wait)
        await asyncio.sleep(wait)
        wait = min(wait * 2, LONGEST_WAIT_SECONDS)


def place_of(error: BaseException) -> str:
    """File and line where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
