"""Choosing how a run ends: pure, from what its last step said and what was asked of it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from turnlane.records.lane import AbortReason, AgentFacts, LaneRun, RetryFacts
from turnlane.records.messages import ControlReason
from turnlane.records.runs import Failure, FailureClass, TerminalReason
from turnlane.records.steps import FinishReason, Judgement, StepEnd, StepOutcome

MAX_STEPS = "max-steps"

_ABORTS = {
    AbortReason.INTERRUPT: TerminalReason.INTERRUPTED,
    AbortReason.SUPERSEDE: TerminalReason.SUPERSEDED,
    AbortReason.SHUTDOWN: TerminalReason.SHUTDOWN,
}

_FAILURES = {
    FailureClass.CONTEXT_OVERFLOW: TerminalReason.CONTEXT_OVERFLOW,
    FailureClass.STORAGE: TerminalReason.STORAGE_CONFLICT,
    FailureClass.APPLICATION: TerminalReason.RUNTIME_FAILURE,
}


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ends: the reason, and what is recorded with it."""

    reason: TerminalReason
    policy_name: str | None = None
    control: ControlReason | None = None
    failure: Failure | None = None


AWAITING = RunEnd(reason=TerminalReason.PROVIDER_STOP)
"""The end of a run that can go no further until somebody answers an approval."""

STALE = RunEnd(reason=TerminalReason.STORAGE_CONFLICT, control=ControlReason.STALE_RUN)
"""The end of a run whose writes the store did not take any more."""


def abort_end(run: LaneRun) -> RunEnd:
    """The end of a run that was asked to stop. Outranks whatever its step achieved meanwhile."""
    reason = _ABORTS[run.abort or AbortReason.INTERRUPT]
    return RunEnd(reason=reason, control=ControlReason.RUN_INTERRUPTED)


def policy_end(name: str) -> RunEnd:
    """The end of a run that a stop policy ended at a boundary."""
    return RunEnd(reason=TerminalReason.POLICY_STOP, policy_name=name)


def judged_end(judgement: Judgement) -> RunEnd | None:
    """The end that a judgement at a boundary means, or None to go on."""
    if judgement.failure is not None:
        return failure_end(judgement.failure)
    if judgement.stop is None:
        return None
    return RunEnd(reason=TerminalReason.OUTPUT_REJECTED) if judgement.rejected else policy_end(judgement.stop)


def step_end(outcome: StepOutcome) -> RunEnd:
    """The end that follows from the last step of a run that nobody stopped."""
    if outcome.end is StepEnd.TIMED_OUT:
        return RunEnd(reason=TerminalReason.TIMEOUT, failure=outcome.failure)
    if outcome.end is StepEnd.FAILED:
        return failure_end(outcome.fault)
    if outcome.end is StepEnd.STALE:
        return STALE
    if outcome.end is StepEnd.STOPPED:
        return policy_end(outcome.stop or MAX_STEPS)
    if outcome.end is StepEnd.ABORTED:
        return RunEnd(reason=TerminalReason.INTERRUPTED, control=ControlReason.RUN_INTERRUPTED)
    if outcome.finish is FinishReason.ERROR or outcome.fault.failure_class is FailureClass.APPLICATION:
        return failure_end(outcome.fault)
    return RunEnd(reason=_finished(outcome), failure=outcome.failure)


def _finished(outcome: StepOutcome) -> TerminalReason:
    if outcome.rejected:
        return TerminalReason.OUTPUT_REJECTED
    return TerminalReason.SUCCESS if outcome.finish is FinishReason.STOP else TerminalReason.PROVIDER_STOP


def failure_end(failure: Failure) -> RunEnd:
    """The end of a run that failed: whose fault it was decides the reason."""
    reason = _FAILURES.get(failure.failure_class, TerminalReason.PROVIDER_FAILURE)
    return RunEnd(reason=reason, failure=failure)


def retry_delay(facts: RetryFacts, failure: Failure | None, tries: int, jitter: float) -> float | None:
    """Seconds to wait before the next try of a failed step, or None to give up.

    `tries` is how many were made, `jitter` a random number in [0, 1). A provider's own Retry-After is
    honoured in full; one longer than the longest wait we make ends the run, which names it.
    """
    if failure is None or not failure.retryable or tries >= facts.max_tries:
        return None
    wait = _backed_off(facts, tries)
    asked = failure.retry_after_seconds or 0.0
    if asked > facts.max_seconds:
        return None
    return max(asked, wait * (0.5 + 0.5 * jitter))


def refuses_files(outcome: StepOutcome) -> bool:
    """Whether the provider refused the step for a file in it. It would refuse every later one, too."""
    return outcome.end is StepEnd.FAILED and outcome.fault.failure_class is FailureClass.FILE_REFUSED


def next_model(facts: AgentFacts, outcome: StepOutcome, model: int) -> int | None:
    """Which fallback takes over a step that will not be tried again on `model`, or None if none does.

    A model takes over where the provider is to blame: it failed, or fell silent. What the application or the
    store did wrong would go wrong again, and a conversation that is too long has to become shorter.
    """
    if outcome.end not in (StepEnd.FAILED, StepEnd.TIMED_OUT) or model >= len(facts.fallbacks):
        return None
    return None if outcome.fault.failure_class in _FAILURES else model + 1


def _backed_off(facts: RetryFacts, tries: int) -> float:
    """The longest wait after this many tries. Multiplied step by step: a power of floats may overflow."""
    wait = facts.initial_seconds
    for _ in range(tries - 1):
        if wait >= facts.max_seconds or facts.backoff == 1:
            break
        wait *= facts.backoff
    return min(wait, facts.max_seconds)
