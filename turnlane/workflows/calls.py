"""Calling activities from the lane: the names, the time limits, and what happens when the store is down.

Everything short goes through a local activity. When that fails because the store does not answer, the
same call is made again as a normal activity, which retries for ever with backoff: the lane waits, its
inputs are safe in Temporal, and its history grows by three events and not with the length of the outage.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from turnlane.records.errors import FinalError, TurnlaneError, error_for
from turnlane.records.lane import LaneSettings
from turnlane.records.runs import Failure, FailureClass

CHECK_MODEL = "check_model"
COMMIT = "commit"
FIND_RUN = "find_run"
JUDGE_BOUNDARY = "judge_boundary"
KEEP_SIGNALS = "keep_signals"
LOAD_QUEUE = "load_queue"
LOAD_SIGNALS = "load_signals"
OPEN_ANSWERS = "open_answers"
OPEN_LANE = "open_lane"
PREPARE_ADMISSIONS = "prepare_admissions"
PROVIDER_STEP = "provider_step"
SETTLE_CALLS = "settle_calls"

R = TypeVar("R")

_LOCAL_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=50), maximum_interval=timedelta(milliseconds=400), maximum_attempts=4
)
_PATIENT_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=20))


class Outage:
    """Whether the lane waits for its store just now. `changed` is called when that begins or ends."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.calls = 0
        self._changed = changed

    def __enter__(self) -> None:
        self.calls += 1
        self._changed()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.calls -= 1
        # A workflow that leaves a worker's cache is torn down outside its event loop: there is nobody to tell.
        if kind is not GeneratorExit:
            self._changed()

    @property
    def is_on(self) -> bool:
        """True while a call waits for the store to come back."""
        return self.calls > 0


async def store_call(name: str, argument: Any, result: type[R], settings: LaneSettings, outage: Outage) -> R:
    """Make one short call to the store's side and return its answer, however long the store is away.

    Raises the `TurnlaneError` behind an error that retrying cannot change.
    """
    try:
        answer: R = await workflow.execute_local_activity(
            name,
            argument,
            result_type=result,
            schedule_to_close_timeout=timedelta(seconds=settings.local_seconds),
            retry_policy=_LOCAL_RETRY,
        )
        return answer
    except (ActivityError, ApplicationError, ActivityTimeoutError) as error:
        _raise_final(error)
    try:
        with outage:
            answer = await workflow.execute_activity(
                name,
                argument,
                result_type=result,
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=_PATIENT_RETRY,
                summary="the store did not answer; waiting for it",
            )
        return answer
    except ActivityError as error:
        _raise_final(error)
        raise


def _raise_final(error: ActivityError | ApplicationError | ActivityTimeoutError) -> None:
    # A local activity that failed raises what it raised. Its timeout is wrapped as that of others is when it happens,
    # and is not when the history is replayed.
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, CancelledError):
        raise error
    if isinstance(cause, ApplicationError) and cause.non_retryable:
        raise as_error(cause) from error


def failure_behind(error: ActivityError) -> Failure | None:
    """The failure behind an activity that answers with data, and could not: it was lost with its workers too often.

    None for one that was told to stop before it began.
    """
    cause = error.cause
    if isinstance(cause, CancelledError):
        return None
    code = cause.type if isinstance(cause, ApplicationError) and cause.type else "WORKER_LOST"
    return Failure(failure_class=FailureClass.APPLICATION, code=code)


def as_error(cause: ApplicationError) -> TurnlaneError:
    """Turn a failure back into the error it was: the code travels as its type, the facts as its details."""
    details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
    return error_for(cause.type or "", cause.message, details)


def as_failure(error: TurnlaneError) -> ApplicationError:
    """Turn an error into the failure that carries it to a caller."""
    return ApplicationError(
        error.message,
        error.details,
        type=error.code,
        non_retryable=isinstance(error, FinalError) or not error.retryable,
    )
