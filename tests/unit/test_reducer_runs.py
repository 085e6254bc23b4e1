"""The life of a run in the reducer: it starts, is asked to stop, ends, is cancelled or recovered."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.unit.reducer_desk import Desk, accept, claim, derived
from turnlane.records.admissions import Policy
from turnlane.records.commands import Acquire, Cancel, Command, Interrupt, Recover, RefusalCode, Settle
from turnlane.records.lane import AbortReason, ids_for_key
from turnlane.records.messages import ControlReason
from turnlane.records.mutations import MutationKind, RequestInterrupt, RequeueRun, SettleRun, StartRun
from turnlane.records.runs import ENDINGS, Failure, FailureClass, RunState, TerminalReason

OWN_ENDINGS = [reason for reason in TerminalReason if reason not in (TerminalReason.ABSORBED, TerminalReason.ABANDONED)]
NOT_COMPLETED = [reason for reason in OWN_ENDINGS if ENDINGS[reason].state is not RunState.COMPLETED]


def started(*keys: str, **changes: Any) -> Desk:
    """A desk where inputs were admitted and the first one's run is running."""
    desk = Desk()
    desk.admit(*keys, **changes)
    desk.start(keys[0])
    return desk


@pytest.mark.parametrize(
    "command",
    [
        Acquire(run_id="nobody", owner_id="w"),
        Interrupt(run_id="nobody"),
        Cancel(run_id="nobody"),
        Recover(run_id="nobody", action="abandon"),
        Settle(run_id="nobody", token=1, reason=TerminalReason.SUCCESS),
    ],
)
def test_an_unknown_run_is_not_found(command: Command) -> None:
    refusal = started("a").refused(command)

    assert (RefusalCode.NOT_FOUND, 2, None) == (refusal.code, refusal.head_version, refusal.run_revision)


# --- starting -----------------------------------------------------------------------------------


def test_a_start_gives_a_token_and_moves_the_revision() -> None:
    desk = Desk()
    desk.admit("a")

    made = desk.start("a")

    run = desk.run("a")
    assert (RunState.RUNNING, True, 1, 1) == (run.state, run.started, run.token, run.revision)
    assert (MutationKind.ACQUIRE, StartRun(run_id="run-a", token=1, owner_id="w")) == (
        made.mutation.kind,
        made.mutation.effect,
    )


def test_only_the_first_of_the_queue_starts() -> None:
    desk = Desk()
    desk.admit("a", "b")

    refusal = desk.refused(Acquire(run_id="run-b", owner_id="w"))

    assert (RefusalCode.BLOCKED, 0, ("run-b",)) == (refusal.code, refusal.run_revision, refusal.run_ids)


@pytest.mark.parametrize("asked", [False, True])
def test_nothing_starts_while_a_run_is_live(asked: bool) -> None:
    desk = started("a", "b")
    if asked:
        desk.interrupt("a")

    assert RefusalCode.BLOCKED is desk.refused(Acquire(run_id="run-b", owner_id="w")).code


def test_an_urgent_run_does_not_start_beside_the_live_one() -> None:
    desk = started("a")
    desk.admit("b", policy=Policy.INTERRUPT_NEXT)

    assert RefusalCode.BLOCKED is desk.refused(Acquire(run_id="run-b", owner_id="w")).code


def test_a_running_run_does_not_start_again() -> None:
    desk = started("a")

    refusal = desk.refused(Acquire(run_id="run-a", owner_id="w"))

    assert (RefusalCode.CONFLICT, 2, 1) == (refusal.code, refusal.head_version, refusal.run_revision)


def test_a_fresh_run_never_resumes() -> None:
    desk = Desk()
    desk.admit("a")

    effect = desk.start("a", resumes=True).mutation.effect

    assert isinstance(effect, StartRun)
    assert effect.resumes is False


def test_a_run_that_starts_takes_its_inputs_off_the_offer() -> None:
    assert () == started("a", policy=Policy.INJECT).run("a").offered


# --- asking to stop -----------------------------------------------------------------------------


def test_a_running_run_is_asked_to_stop_and_keeps_its_token() -> None:
    desk = started("a")

    made = desk.interrupt("a", reason=AbortReason.SUPERSEDE, expected_revision=1)

    run = desk.run("a")
    assert (RunState.INTERRUPT_REQUESTED, AbortReason.SUPERSEDE, 1, 2) == (
        run.state,
        run.abort,
        run.token,
        run.revision,
    )
    assert RequestInterrupt(run_id="run-a", reason=AbortReason.SUPERSEDE) == made.mutation.effect


def test_the_first_reason_to_stop_stands() -> None:
    desk = started("a")
    desk.interrupt("a", reason=AbortReason.SUPERSEDE)

    refusal = desk.refused(Interrupt(run_id="run-a"))

    assert (RefusalCode.CONFLICT, AbortReason.SUPERSEDE) == (refusal.code, desk.run("a").abort)


def test_a_waiting_run_cannot_be_interrupted() -> None:
    desk = started("a", "b")

    assert RefusalCode.CONFLICT is desk.refused(Interrupt(run_id="run-b")).code


def test_an_interrupt_for_an_older_revision_is_a_conflict() -> None:
    refusal = started("a").refused(Interrupt(run_id="run-a", expected_revision=0))

    assert (RefusalCode.CONFLICT, 1) == (refusal.code, refusal.run_revision)


# --- ending -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", OWN_ENDINGS)
def test_a_live_run_ends_for_any_reason_of_its_own(reason: TerminalReason) -> None:
    desk = started("a", "b")
    name = "max-steps" if reason is TerminalReason.POLICY_STOP else None

    made = desk.settle("a", reason, policy_name=name)

    assert (MutationKind.TERMINAL, SettleRun(run_id="run-a", reason=reason, policy_name=name)) == (
        made.mutation.kind,
        made.mutation.effect,
    )
    assert ["b"] == desk.order


@pytest.mark.parametrize("reason", [TerminalReason.ABSORBED, TerminalReason.ABANDONED])
def test_absorbed_and_abandoned_are_nobodys_own_end(reason: TerminalReason) -> None:
    desk = started("a")

    assert RefusalCode.INVALID is desk.refused(desk.settlement("a", reason)).code


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (TerminalReason.POLICY_STOP, None),
        (TerminalReason.SUCCESS, "max-steps"),
        (TerminalReason.INTERRUPTED, "max-steps"),
    ],
)
def test_a_policy_is_named_exactly_on_policy_stop(reason: TerminalReason, name: str | None) -> None:
    desk = started("a")

    assert RefusalCode.INVALID is desk.refused(desk.settlement("a", reason, policy_name=name)).code


def test_what_is_recorded_with_an_end_reaches_the_store() -> None:
    failure = Failure(failure_class=FailureClass.STORAGE)

    made = started("a").settle("a", TerminalReason.STORAGE_CONFLICT, failure=failure, control=ControlReason.STALE_RUN)

    effect = made.mutation.effect
    assert isinstance(effect, SettleRun)
    assert (failure, ControlReason.STALE_RUN) == (effect.failure, effect.control)


def test_an_end_under_an_older_token_is_a_conflict() -> None:
    desk = started("a")
    desk.requeue("a")
    desk.start("a")

    assert RefusalCode.CONFLICT is desk.refused(desk.settlement("a", token=1)).code


def test_a_waiting_run_does_not_end_as_a_live_one() -> None:
    desk = Desk()
    desk.admit("a")

    assert RefusalCode.CONFLICT is desk.refused(desk.settlement("a")).code


def test_a_run_asked_to_stop_may_still_succeed() -> None:
    desk = started("a")
    desk.interrupt("a")
    desk.settle("a", TerminalReason.SUCCESS)

    assert [] == desk.order


# --- absorbing ----------------------------------------------------------------------------------


def injected() -> Desk:
    """A live run, and a successor made of two injected inputs."""
    desk = started("a")
    desk.admit("b", "c", policy=Policy.INJECT, coalesce=True)
    return desk


def absorbed_by(command: Settle, desk: Desk) -> list[str]:
    effect = desk.do(command).mutation.effect
    assert isinstance(effect, SettleRun)
    return [entry.run_id for entry in effect.absorbed]


def test_a_completed_run_absorbs_the_successor_it_answered() -> None:
    desk = injected()
    desk.admit("d")

    assert ["run-b"] == absorbed_by(desk.settlement("a", absorb=(claim("run-b", "in-b", "in-c"),)), desk)
    assert (["d"], 6) == (desk.order, desk.head.version)


@pytest.mark.parametrize("inputs", [("in-b",), ("in-c", "in-b"), ("in-b", "in-c", "in-d")])
def test_a_successor_is_absorbed_whole_and_in_order_or_not_at_all(inputs: tuple[str, ...]) -> None:
    desk = injected()

    assert [] == absorbed_by(desk.settlement("a", absorb=(claim("run-b", *inputs),)), desk)
    assert ["b"] == desk.order


def test_one_claim_that_fails_does_not_spoil_the_others() -> None:
    desk = started("a")
    desk.admit("b", "c", policy=Policy.INJECT)

    assert ["run-c"] == absorbed_by(
        desk.settlement("a", absorb=(claim("run-b", "in-x"), claim("run-c", "in-c"), claim("run-gone", "in-y"))), desk
    )
    assert ["b"] == desk.order


@pytest.mark.parametrize("reason", NOT_COMPLETED)
def test_only_a_completed_run_absorbs(reason: TerminalReason) -> None:
    desk = injected()

    assert RefusalCode.INVALID is desk.refused(desk.settlement("a", reason, absorb=(claim("run-b", "in-b"),))).code


@pytest.mark.parametrize(
    "claims", [(claim("run-b", "in-b"), claim("run-b", "in-b", "in-c")), (claim("run-a", "in-a"),)]
)
def test_a_run_is_claimed_once_and_never_by_itself(claims: Any) -> None:
    desk = injected()

    assert RefusalCode.INVALID is desk.refused(desk.settlement("a", absorb=claims)).code


def test_a_resend_of_an_absorbed_input_is_answered_with_the_run_that_absorbed_it() -> None:
    desk = injected()
    desk.settle("a", absorb=(claim("run-b", "in-b", "in-c"),))

    receipts = [desk.repeated(accept(key)).receipt for key in ("b", "c")]

    assert [("in-b", "run-a", "out-a"), ("in-c", "run-a", "out-a")] == [receipt[4:] for receipt in receipts]


def test_a_receipt_of_derived_ids_is_redirected_too() -> None:
    desk = Desk()
    first, second = derived("a"), derived("b", policy=Policy.INJECT)
    desk.do(first)
    desk.do(Acquire(run_id=first.run_id, owner_id="w"))
    desk.do(second)
    absorb = (claim(second.run_id, second.message.id),)
    desk.do(Settle(run_id=first.run_id, token=1, reason=TerminalReason.SUCCESS, absorb=absorb))

    receipt = desk.repeated(second).receipt

    assert (first.run_id, first.assistant_message_id) == (receipt.run_id, receipt.assistant_message_id)
    assert ids_for_key("c", "b").input_message_id == (receipt.input_message_id or second.message.id)


# --- cancelling and recovering ------------------------------------------------------------------


def test_a_waiting_run_is_cancelled() -> None:
    desk = started("a", "b")

    made = desk.do(Cancel(run_id="run-b", expected_revision=0))

    assert (MutationKind.CANCEL, SettleRun(run_id="run-b", reason=TerminalReason.CANCELLED)) == (
        made.mutation.kind,
        made.mutation.effect,
    )
    assert ["a"] == desk.order


@pytest.mark.parametrize("cancel", [Cancel(run_id="run-a"), Cancel(run_id="run-b", expected_revision=4)])
def test_a_live_run_or_another_revision_is_not_cancelled(cancel: Cancel) -> None:
    assert RefusalCode.CONFLICT is started("a", "b").refused(cancel).code


def test_a_lost_run_goes_back_in_front_with_its_token() -> None:
    desk = started("a")
    desk.admit("b", policy=Policy.INTERRUPT_NEXT)
    desk.interrupt("a")

    made = desk.requeue("a")

    run = desk.run("a")
    assert (["a", "b"], RunState.QUEUED, True, 1, None, 3) == (
        desk.order,
        run.state,
        run.started,
        run.token,
        run.abort,
        run.revision,
    )
    assert (MutationKind.RECOVER, RequeueRun(run_id="run-a")) == (made.mutation.kind, made.mutation.effect)


def test_a_run_put_back_starts_under_the_next_token_and_resumes() -> None:
    desk = started("a")
    desk.requeue("a")

    assert (
        StartRun(run_id="run-a", token=2, owner_id="w", resumes=True) == desk.start("a", resumes=True).mutation.effect
    )


@pytest.mark.parametrize("asked", [False, True])
def test_a_started_run_goes_back_only_as_replay_safe(asked: bool) -> None:
    desk = started("a")
    if asked:
        desk.interrupt("a")

    assert RefusalCode.UNSAFE is desk.refused(Recover(run_id="run-a", action="requeue")).code


def test_a_waiting_run_goes_back_without_evidence() -> None:
    desk = Desk()
    desk.admit("a")
    desk.do(Recover(run_id="run-a", action="requeue"))

    assert (RunState.QUEUED, 1) == (desk.run("a").state, desk.run("a").revision)


@pytest.mark.parametrize("key", ["a", "b"])
def test_any_active_run_is_abandoned(key: str) -> None:
    desk = started("a", "b")

    made = desk.do(Recover(run_id=f"run-{key}", action="abandon"))

    assert SettleRun(run_id=f"run-{key}", reason=TerminalReason.ABANDONED) == made.mutation.effect
    assert key not in desk.order


@pytest.mark.parametrize("action", ["requeue", "abandon"])
def test_a_recovery_for_an_older_revision_is_a_conflict(action: Literal["requeue", "abandon"]) -> None:
    command = Recover(run_id="run-a", action=action, replay_safe=True, expected_revision=0)

    assert RefusalCode.CONFLICT is started("a").refused(command).code


def test_an_ended_run_is_touched_by_nothing() -> None:
    desk = started("a")
    desk.settle("a")

    commands: list[Command] = [
        Acquire(run_id="run-a", owner_id="w"),
        Interrupt(run_id="run-a"),
        Cancel(run_id="run-a"),
        Recover(run_id="run-a", action="requeue", replay_safe=True),
        Recover(run_id="run-a", action="abandon"),
        Settle(run_id="run-a", token=1, reason=TerminalReason.SUCCESS),
    ]

    assert [RefusalCode.NOT_FOUND] * 6 == [desk.refused(command).code for command in commands]
