"""How a run ends, and when a failed step is tried again."""

from __future__ import annotations

import pytest

from turnlane.records.calls import CallRef
from turnlane.records.lane import AbortReason, LaneRun, RetryFacts
from turnlane.records.messages import ControlReason
from turnlane.records.runs import ENDINGS, Failure, FailureClass, RunState, TerminalReason
from turnlane.records.steps import FinishReason, StepEnd, StepOutcome
from turnlane.workflows.ending import RunEnd, abort_end, failure_end, policy_end, retry_delay, step_end

OVERLOADED = Failure(failure_class=FailureClass.OVERLOADED, status=529, retryable=True)
CALL = CallRef(call_id="c", tool_name="look", slot=1)


def ended(end: StepEnd, finish: FinishReason | None = None, failure: Failure | None = None) -> StepOutcome:
    return StepOutcome(end=end, attempt=1, finish=finish, failure=failure)


# --- the reason ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishReason.STOP, TerminalReason.SUCCESS),
        (FinishReason.LENGTH, TerminalReason.PROVIDER_STOP),
        (FinishReason.CONTENT_FILTER, TerminalReason.PROVIDER_STOP),
        (FinishReason.TOOL_CALLS, TerminalReason.PROVIDER_STOP),
        (FinishReason.OTHER, TerminalReason.PROVIDER_STOP),
        (FinishReason.ERROR, TerminalReason.PROVIDER_FAILURE),
        (None, TerminalReason.PROVIDER_STOP),
    ],
)
def test_a_finished_step_ends_the_run_by_its_finish_reason(finish: FinishReason | None, reason: TerminalReason) -> None:
    assert reason is step_end(ended(StepEnd.FINISHED, finish)).reason


@pytest.mark.parametrize(
    ("end", "reason", "control"),
    [
        (StepEnd.TIMED_OUT, TerminalReason.TIMEOUT, None),
        (StepEnd.FAILED, TerminalReason.PROVIDER_FAILURE, None),
        (StepEnd.STALE, TerminalReason.STORAGE_CONFLICT, ControlReason.STALE_RUN),
        (StepEnd.ABORTED, TerminalReason.INTERRUPTED, ControlReason.RUN_INTERRUPTED),
    ],
)
def test_an_unfinished_step_ends_the_run_by_how_it_ended(
    end: StepEnd, reason: TerminalReason, control: ControlReason | None
) -> None:
    found = step_end(ended(end))

    assert (reason, control) == (found.reason, found.control)


@pytest.mark.parametrize("outcome", [ended(StepEnd.FAILED), ended(StepEnd.FINISHED, FinishReason.ERROR)])
def test_a_failure_without_a_name_is_unknown_and_the_providers(outcome: StepOutcome) -> None:
    expected = RunEnd(reason=TerminalReason.PROVIDER_FAILURE, failure=Failure(failure_class=FailureClass.UNKNOWN))

    assert expected == step_end(outcome)


@pytest.mark.parametrize("end", [StepEnd.FAILED, StepEnd.TIMED_OUT])
def test_a_failure_is_recorded_with_the_end(end: StepEnd) -> None:
    assert OVERLOADED == step_end(ended(end, failure=OVERLOADED)).failure


@pytest.mark.parametrize("failure_class", list(FailureClass))
def test_whose_fault_it_was_decides_the_reason(failure_class: FailureClass) -> None:
    ours = {
        FailureClass.CONTEXT_OVERFLOW: TerminalReason.CONTEXT_OVERFLOW,
        FailureClass.STORAGE: TerminalReason.STORAGE_CONFLICT,
        FailureClass.APPLICATION: TerminalReason.RUNTIME_FAILURE,
    }
    failure = Failure(failure_class=failure_class)

    end = failure_end(failure)

    assert RunEnd(reason=ours.get(failure_class, TerminalReason.PROVIDER_FAILURE), failure=failure) == end
    assert RunState.FAILED is ENDINGS[end.reason].state


@pytest.mark.parametrize(
    ("abort", "reason"),
    [
        (AbortReason.INTERRUPT, TerminalReason.INTERRUPTED),
        (AbortReason.SUPERSEDE, TerminalReason.SUPERSEDED),
        (AbortReason.SHUTDOWN, TerminalReason.SHUTDOWN),
        (None, TerminalReason.INTERRUPTED),
    ],
)
def test_a_run_asked_to_stop_ends_for_the_reason_given(abort: AbortReason | None, reason: TerminalReason) -> None:
    run = LaneRun(id="r", assistant_message_id="o", input_ids=("i",), order=1, abort=abort)

    assert RunEnd(reason=reason, control=ControlReason.RUN_INTERRUPTED) == abort_end(run)


def test_every_reason_to_stop_has_an_end() -> None:
    runs = [LaneRun(id="r", assistant_message_id="o", input_ids=("i",), order=1, abort=abort) for abort in AbortReason]

    assert len(AbortReason) == len({abort_end(run).reason for run in runs})


def test_a_policy_that_stopped_a_run_is_named() -> None:
    assert RunEnd(reason=TerminalReason.POLICY_STOP, policy_name="max-steps") == policy_end("max-steps")


# --- the calls of a step ------------------------------------------------------------------------


@pytest.mark.parametrize("finish", [None, *FinishReason])
def test_an_answer_that_was_cut_off_runs_none_of_its_calls(finish: FinishReason | None) -> None:
    outcome = StepOutcome(end=StepEnd.FINISHED, attempt=1, finish=finish, calls=(CALL,))

    assert (finish in (FinishReason.STOP, FinishReason.TOOL_CALLS)) is outcome.runs_its_calls


@pytest.mark.parametrize("end", [end for end in StepEnd if end is not StepEnd.FINISHED])
def test_an_unfinished_step_runs_no_calls(end: StepEnd) -> None:
    outcome = StepOutcome(end=end, attempt=1, finish=FinishReason.TOOL_CALLS, calls=(CALL,))

    assert outcome.runs_its_calls is False


def test_a_step_without_calls_runs_none() -> None:
    assert ended(StepEnd.FINISHED, FinishReason.STOP).runs_its_calls is False


# --- trying again -------------------------------------------------------------------------------

FACTS = RetryFacts(max_tries=5, initial_seconds=1.0, backoff=2.0, max_seconds=6.0)


@pytest.mark.parametrize(("tries", "longest"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 6.0)])
def test_waits_grow_up_to_the_longest_and_jitter_takes_up_to_half(tries: int, longest: float) -> None:
    waits = [retry_delay(FACTS, OVERLOADED, tries, jitter) for jitter in (0.0, 0.5, 1.0)]

    assert [longest / 2, longest * 3 / 4, longest] == waits


@pytest.mark.parametrize("tries", [5, 6])
def test_the_last_try_is_the_last(tries: int) -> None:
    assert retry_delay(FACTS, OVERLOADED, tries, 0.0) is None


@pytest.mark.parametrize("failure", [None, Failure(failure_class=FailureClass.INVALID_REQUEST, status=400)])
def test_what_would_fail_again_is_not_tried_again(failure: Failure | None) -> None:
    assert retry_delay(FACTS, failure, 1, 0.0) is None


@pytest.mark.parametrize(("asked", "expected"), [(0.2, 0.5), (3.5, 3.5), (6.0, 6.0), (6.1, None)])
def test_a_providers_own_wait_is_honoured_in_full_or_not_at_all(asked: float, expected: float | None) -> None:
    failure = OVERLOADED.model_copy(update={"retry_after_seconds": asked})

    assert expected == retry_delay(FACTS, failure, 1, 0.0)


def test_a_thousand_tries_do_not_overflow() -> None:
    patient = RetryFacts(max_tries=100_000, backoff=1e200, max_seconds=60.0)

    assert 60.0 == retry_delay(patient, OVERLOADED, 99_999, 1.0)


def test_a_wait_that_does_not_grow_stays() -> None:
    steady = RetryFacts(max_tries=100_000, backoff=1.0, initial_seconds=2.0)

    assert 2.0 == retry_delay(steady, OVERLOADED, 99_999, 1.0)
