"""How steps end that never came to an answer."""

from __future__ import annotations

from turnlane.agent.models import Model
from turnlane.records.errors import StaleFenceError
from turnlane.records.messages import ControlReason
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import StepEnd, StepOutcome


def failed_step(attempt: int, failure_class: FailureClass, code: str, record_id: str | None = None) -> StepOutcome:
    """The outcome of an attempt that failed before the provider was called."""
    failure = Failure(failure_class=failure_class, code=code, record_id=record_id)
    return StepOutcome(end=StepEnd.FAILED, attempt=attempt, failure=failure)


def refused_step(attempt: int, error: StaleFenceError) -> StepOutcome:
    """The outcome of an attempt whose fence does not hold: its run was asked to stop, or is another's."""
    interrupted = error.details.get("reason") == ControlReason.RUN_INTERRUPTED
    return StepOutcome(end=StepEnd.ABORTED if interrupted else StepEnd.STALE, attempt=attempt)


def silence_of(model: Model) -> Failure:
    """The failure of a model that said nothing for too long."""
    return Failure(failure_class=FailureClass.TIMEOUT, code="IDLE", provider=model.reported_provider)
