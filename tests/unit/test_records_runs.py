"""Runs agree with themselves: state with reason, reason with message, phase with clocks."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from turnlane.records.messages import SPEAKABLE, MessageStatus
from turnlane.records.runs import (
    ACTIVE_STATES,
    ENDINGS,
    FINAL_PHASES,
    Ending,
    Failure,
    FailureClass,
    Operation,
    OperationKind,
    OperationPhase,
    Run,
    RunState,
    TerminalReason,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
BEFORE = datetime(2029, 1, 1, tzinfo=UTC)
TERMINAL_STATES = [state for state in RunState if state not in ACTIVE_STATES]


def run(**given: Any) -> Run:
    facts: dict[str, Any] = {
        "id": "r",
        "conversation_id": "c",
        "input_message_ids": ("in",),
        "assistant_message_id": "out",
        "state": RunState.QUEUED,
        "revision": 0,
        "admission_order": 1,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Run(**(facts | given))


def ended(reason: TerminalReason, **given: Any) -> Run:
    facts: dict[str, Any] = {"state": ENDINGS[reason].state, "terminal_reason": reason}
    if reason is TerminalReason.POLICY_STOP:
        facts["terminal_policy_name"] = "max-steps"
    if reason is TerminalReason.ABSORBED:
        facts["absorbed_into_run_id"] = "other"
    return run(**(facts | given))


def test_every_reason_has_its_ending() -> None:
    assert set(TerminalReason) == set(ENDINGS)
    assert set(TERMINAL_STATES) == {ending.state for ending in ENDINGS.values()}


def test_reasons_that_share_a_state_do_not_share_a_message_status() -> None:
    told = {ENDINGS[reason] for reason in (TerminalReason.CANCELLED, TerminalReason.SHUTDOWN, TerminalReason.TIMEOUT)}

    assert {
        Ending(RunState.CANCELLED, MessageStatus.INTERRUPTED),
        Ending(RunState.CANCELLED, MessageStatus.FAILED),
    } == told


def test_only_an_absorbed_run_ends_without_a_message() -> None:
    assert [TerminalReason.ABSORBED] == [reason for reason, end in ENDINGS.items() if end.message_status is None]


def test_what_failed_or_was_superseded_does_not_speak() -> None:
    silent = {MessageStatus.STREAMING, MessageStatus.SUPERSEDED, MessageStatus.FAILED}

    assert silent == set(MessageStatus) - SPEAKABLE


@pytest.mark.parametrize("reason", TerminalReason)
def test_a_run_ends_in_the_state_of_its_reason(reason: TerminalReason) -> None:
    assert ENDINGS[reason].state is ended(reason).state
    for state in RunState:
        if state is not ENDINGS[reason].state:
            with pytest.raises(ValidationError):
                ended(reason, state=state)


@pytest.mark.parametrize("state", TERMINAL_STATES)
def test_a_terminal_run_says_why(state: RunState) -> None:
    with pytest.raises(ValidationError, match="terminal reason exactly when"):
        run(state=state)


@pytest.mark.parametrize("state", sorted(ACTIVE_STATES))
def test_an_active_run_has_no_reason(state: RunState) -> None:
    assert run(state=state).state.is_active
    with pytest.raises(ValidationError, match="terminal reason exactly when"):
        run(state=state, terminal_reason=TerminalReason.SUCCESS)


def test_live_is_acquired_and_not_settled() -> None:
    assert {RunState.RUNNING, RunState.INTERRUPT_REQUESTED} == {state for state in RunState if state.is_live}


def test_a_policy_name_stands_exactly_on_a_policy_stop() -> None:
    with pytest.raises(ValidationError, match="exactly on policy_stop"):
        ended(TerminalReason.POLICY_STOP, terminal_policy_name=None)
    with pytest.raises(ValidationError, match="exactly on policy_stop"):
        ended(TerminalReason.SUCCESS, terminal_policy_name="max-steps")


def test_an_absorbing_run_is_named_exactly_when_absorbed_and_is_another() -> None:
    with pytest.raises(ValidationError, match="absorbing run is named"):
        ended(TerminalReason.ABSORBED, absorbed_into_run_id=None)
    with pytest.raises(ValidationError, match="absorbing run is named"):
        ended(TerminalReason.SUPERSEDED, absorbed_into_run_id="other")
    with pytest.raises(ValidationError, match="does not absorb itself"):
        ended(TerminalReason.ABSORBED, absorbed_into_run_id="r")


@pytest.mark.parametrize(
    "broken",
    [
        {"input_message_ids": ()},
        {"input_message_ids": ("in", "in")},
        {"revision": -1},
        {"admission_order": 0},
        {"fencing_token": 0},
        {"created_at": datetime(2030, 1, 1)},
        {"id": "a\nb"},
    ],
)
def test_what_no_run_can_be_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        run(**broken)


def test_an_absent_owner_and_absent_usage_are_fine() -> None:
    assert run(state=RunState.RUNNING).owner_id is None
    assert ended(TerminalReason.ABANDONED).usage is None


def operation(
    phase: OperationPhase = OperationPhase.STARTED, kind: OperationKind = OperationKind.MODEL_REQUEST, **given: Any
) -> Operation:
    facts: dict[str, Any] = {"operation_id": "o", "kind": kind, "phase": phase, "started_at": NOW}
    if kind is OperationKind.MODEL_REQUEST:
        facts["step"] = 0
    if phase is OperationPhase.FIRST_OUTPUT:
        facts["first_output_at"] = NOW
    if phase in FINAL_PHASES:
        facts["finished_at"] = NOW
    return Operation(**(facts | given))


@pytest.mark.parametrize("phase", OperationPhase)
def test_a_model_request_passes_through_every_phase(phase: OperationPhase) -> None:
    assert phase is operation(phase).phase


@pytest.mark.parametrize("phase", sorted(FINAL_PHASES))
def test_a_final_phase_may_or_may_not_have_had_output(phase: OperationPhase) -> None:
    assert NOW == operation(phase, first_output_at=NOW).first_output_at
    assert operation(phase).first_output_at is None


@pytest.mark.parametrize(
    ("phase", "kind", "broken"),
    [
        (OperationPhase.STARTED, OperationKind.MODEL_REQUEST, {"step": None}),
        (OperationPhase.STARTED, OperationKind.COMPACTION, {"step": 0}),
        (OperationPhase.STARTED, OperationKind.MODEL_REQUEST, {"step": -1}),
        (OperationPhase.FIRST_OUTPUT, OperationKind.COMPACTION, {}),
        (OperationPhase.COMPLETED, OperationKind.COMPACTION, {"first_output_at": NOW}),
        (OperationPhase.FIRST_OUTPUT, OperationKind.MODEL_REQUEST, {"first_output_at": None}),
        (OperationPhase.STARTED, OperationKind.MODEL_REQUEST, {"first_output_at": NOW}),
        (OperationPhase.STARTED, OperationKind.MODEL_REQUEST, {"finished_at": NOW}),
        (OperationPhase.FIRST_OUTPUT, OperationKind.MODEL_REQUEST, {"finished_at": NOW}),
        (OperationPhase.FAILED, OperationKind.MODEL_REQUEST, {"finished_at": None}),
    ],
)
def test_an_operation_that_disagrees_with_itself_is_refused(
    phase: OperationPhase, kind: OperationKind, broken: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        operation(phase, kind, **broken)


def test_a_clock_that_went_back_fails_no_operation() -> None:
    assert BEFORE == operation(OperationPhase.COMPLETED, finished_at=BEFORE).finished_at


@pytest.mark.parametrize("broken", [{"status": 99}, {"status": 600}, {"retry_after_seconds": -1.0}])
def test_a_failure_has_a_status_and_a_wait_that_can_be(broken: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Failure(failure_class=FailureClass.OVERLOADED, **broken)
