"""Admission in the reducer: who is a duplicate, who collides, who joins a run that waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reducer_desk import Desk, accept, derived, message
from turnlane.records.admissions import BlobRef, Policy
from turnlane.records.commands import Cancel, RefusalCode
from turnlane.records.lane import AbortReason, HeadReceipt
from turnlane.records.messages import MessageStatus, Role, ToolApprovalResponsePart
from turnlane.records.mutations import AdmitInput, MutationKind
from turnlane.records.runs import QueuePriority, RunState
from turnlane.workflows.offers import abort_reason


def answer_to_approval(message_id: str) -> Any:
    return message(message_id, role=Role.TOOL, parts=(ToolApprovalResponsePart(approval_id="a", approved=True),))


def test_an_input_makes_a_queued_run_with_the_proposed_ids() -> None:
    desk = Desk()

    made = desk.do(accept("a", context={"lang": "en"}))

    run = desk.run("a")
    assert (RunState.QUEUED, ("in-a",), "out-a", 1, 0, 0) == (
        run.state,
        run.input_ids,
        run.assistant_message_id,
        run.order,
        run.token,
        run.revision,
    )
    assert ("run-a", False) == (made.run_id, made.coalesced)


def test_an_admission_says_everything_the_store_needs() -> None:
    blob = BlobRef(id="b", digest="0" * 32, size=9)

    made = Desk().do(accept("a", context={"lang": "en"}, tenant="t", blob=blob))

    effect = made.mutation.effect
    assert isinstance(effect, AdmitInput) and effect.run is not None
    assert (MutationKind.ACCEPT, "helper", "t", blob, None) == (
        made.mutation.kind,
        effect.agent,
        effect.tenant,
        effect.blob,
        effect.coalesce_into,
    )
    assert ("run-a", "out-a", 1, {"lang": "en"}) == (
        effect.run.id,
        effect.run.assistant_message_id,
        effect.run.admission_order,
        effect.run.context,
    )
    assert ("a", "digest-a", "in-a", "run-a", "out-a", Policy.QUEUE) == (
        effect.receipt.idempotency_key,
        effect.receipt.content_digest,
        effect.receipt.input_message_id,
        effect.receipt.run_id,
        effect.receipt.assistant_message_id,
        effect.receipt.policy,
    )


def test_the_first_admission_fixes_agent_and_tenant() -> None:
    desk = Desk()
    desk.admit("a", tenant="t")

    assert ("helper", "t") == (desk.head.agent, desk.head.tenant)


@pytest.mark.parametrize("changes", [{"agent": "other", "tenant": "t"}, {"tenant": "u"}, {"tenant": None}])
def test_another_agent_or_tenant_is_refused(changes: dict[str, Any]) -> None:
    desk = Desk()
    desk.admit("a", tenant="t")

    assert RefusalCode.AGENT_MISMATCH is desk.refused(accept("b", **changes)).code


# --- duplicates ---------------------------------------------------------------------------------


def test_a_resend_is_answered_with_the_first_admission() -> None:
    desk = Desk()
    desk.admit("a")

    repeated = desk.repeated(accept("a"))

    assert HeadReceipt("a", "digest-a", "queue", 1, "in-a", "run-a", "out-a") == repeated.receipt


def test_a_resend_wins_over_whatever_else_is_wrong_with_it() -> None:
    desk = Desk()
    desk.admit("a", "b")
    nonsense = accept(
        "a", agent="other", tenant="u", run_id="run-b", message=message("in-b"), expected_version=77, queued_runs=1
    )

    assert "run-a" == desk.repeated(nonsense).receipt.run_id


def test_a_resend_is_known_after_its_run_has_ended() -> None:
    desk = Desk()
    desk.admit("a")
    desk.do(Cancel(run_id="run-a"))

    assert "run-a" == desk.repeated(accept("a")).receipt.run_id


def test_a_resend_of_an_approval_answer_is_a_duplicate_like_any_other() -> None:
    desk = Desk()
    desk.admit("a", message=answer_to_approval("in-a"))

    assert "in-a" == desk.repeated(accept("a", message=answer_to_approval("in-a"))).receipt.input_message_id


def test_a_resend_is_answered_from_the_store_when_the_head_has_forgotten() -> None:
    known = HeadReceipt("a", "digest-a", "queue", 3, "in-old", "run-old", "out-old")

    assert known == Desk().repeated(accept("a", known=known)).receipt


def test_the_heads_own_receipt_stands_before_the_stores() -> None:
    desk = Desk()
    desk.admit("a")
    known = HeadReceipt("a", "digest-a", "queue", 3, "in-old", "run-old", "out-old")

    assert "run-a" == desk.repeated(accept("a", known=known)).receipt.run_id


def test_a_key_used_for_other_content_is_refused() -> None:
    desk = Desk()
    desk.admit("a")

    assert RefusalCode.KEY_CONFLICT is desk.refused(accept("a", content_digest="another")).code


def test_a_key_the_store_knows_for_other_content_is_refused() -> None:
    known = HeadReceipt("a", "another", "queue", 3)

    assert RefusalCode.KEY_CONFLICT is Desk().refused(accept("a", known=known)).code


def test_derived_ids_take_no_room_in_a_receipt() -> None:
    desk = Desk()
    desk.do(derived("a"))

    assert (HeadReceipt("a", "digest-a", "queue", 1),) == desk.head.receipts


def test_old_receipts_leave_the_head_and_it_says_so() -> None:
    desk = Desk()
    desk.admit("a", "b", recent_receipts=2)
    before = desk.head.receipts_complete
    desk.admit("c", recent_receipts=2)

    assert (True, False) == (before, desk.head.receipts_complete)
    assert ["b", "c"] == [receipt.key for receipt in desk.head.receipts]


def test_a_head_that_once_forgot_never_says_again_that_it_knows_all() -> None:
    desk = Desk()
    desk.admit("a", "b", recent_receipts=1)
    desk.admit("c", recent_receipts=99)

    assert desk.head.receipts_complete is False


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"message": message("in-a")},
        {"message": message("out-a")},
        {"run_id": "run-a"},
        {"assistant_message_id": "out-a"},
        {"assistant_message_id": "in-a"},
        {"assistant_message_id": "in-b"},
    ],
)
def test_an_id_in_use_is_refused(changes: dict[str, Any]) -> None:
    desk = Desk()
    desk.admit("a")

    assert RefusalCode.ID_COLLISION is desk.refused(accept("b", **changes)).code


def test_a_collision_is_told_before_a_stale_version() -> None:
    desk = Desk()
    desk.admit("a")

    assert RefusalCode.ID_COLLISION is desk.refused(accept("b", run_id="run-a", expected_version=9)).code


def test_a_stale_version_is_a_conflict_that_names_the_head() -> None:
    desk = Desk()
    desk.admit("a")

    refusal = desk.refused(accept("b", expected_version=0))

    assert (RefusalCode.CONFLICT, 1, None) == (refusal.code, refusal.head_version, refusal.run_revision)


def test_the_expected_version_lets_an_input_in() -> None:
    desk = Desk()
    desk.admit("a")

    assert "run-b" == desk.do(accept("b", expected_version=1)).run_id


@pytest.mark.parametrize(
    "wrong",
    [
        message("in-a", role=Role.SUMMARY),
        message("in-a", role=Role.SYSTEM),
        message("in-a", role=Role.ASSISTANT, status=MessageStatus.COMPLETED),
        message("in-a", role=Role.ASSISTANT, run_id="r"),
        message("in-a", conversation_id="elsewhere"),
    ],
)
def test_only_a_user_or_tool_message_of_the_conversation_is_an_input(wrong: Any) -> None:
    assert RefusalCode.INVALID is Desk().refused(accept("a", message=wrong)).code


def test_a_full_queue_refuses_and_changes_nothing() -> None:
    desk = Desk()
    desk.admit("a", "b")
    before = desk.head

    assert RefusalCode.QUEUE_FULL is desk.refused(accept("c", queued_runs=2)).code
    assert before == desk.head


def test_the_live_run_takes_no_place_in_the_queue() -> None:
    desk = Desk()
    desk.admit("a", "b")
    desk.start("a")

    assert "run-c" == desk.do(accept("c", queued_runs=2)).run_id


def test_a_full_queue_still_lets_an_input_join() -> None:
    desk = Desk()
    desk.admit("a", coalesce=True)

    assert "run-a" == desk.do(accept("b", coalesce=True, queued_runs=1)).run_id


# --- joining ------------------------------------------------------------------------------------


def test_an_input_joins_the_run_that_waits() -> None:
    desk = Desk()
    desk.admit("a", coalesce=True)

    made = desk.do(accept("b", coalesce=True))

    effect = made.mutation.effect
    assert isinstance(effect, AdmitInput)
    assert (True, "run-a", "run-a", None) == (made.coalesced, made.run_id, effect.coalesce_into, effect.run)
    assert (("in-a", "in-b"), 1, 1) == (desk.run("a").input_ids, desk.run("a").revision, desk.head.order)


def test_a_joined_inputs_receipt_names_the_run_it_joined_and_its_own_input() -> None:
    desk = Desk()
    desk.admit("a", "b", coalesce=True)

    receipt = desk.repeated(accept("b")).receipt

    assert ("in-b", "run-a", "out-a") == (receipt.input_message_id, receipt.run_id, receipt.assistant_message_id)


def test_the_proposed_ids_of_a_joined_input_stay_free() -> None:
    desk = Desk()
    desk.admit("a", "b", coalesce=True)

    assert "run-b" == desk.do(accept("c", run_id="run-b", assistant_message_id="out-b")).run_id


def test_nothing_joins_a_run_that_has_started() -> None:
    desk = Desk()
    desk.admit("a", coalesce=True)
    desk.start("a")
    desk.admit("b", coalesce=True)

    assert ["a", "b"] == desk.order


def test_nothing_joins_a_run_that_was_put_back() -> None:
    desk = Desk()
    desk.admit("a", coalesce=True)
    desk.start("a")
    desk.requeue("a")
    desk.admit("b", coalesce=True)

    assert ["a", "b"] == desk.order


def test_nothing_joins_a_run_that_was_admitted_without_coalescing() -> None:
    desk = Desk()
    desk.admit("a")
    desk.admit("b", coalesce=True)

    assert ["a", "b"] == desk.order


def test_an_urgent_input_never_joins_and_is_never_joined() -> None:
    desk = Desk()
    desk.admit("a", coalesce=True)
    desk.admit("b", coalesce=True, policy=Policy.INTERRUPT_NEXT)
    desk.admit("c", coalesce=True)

    assert ["b", "a"] == desk.order
    assert (("in-b",), ("in-a", "in-c")) == (desk.run("b").input_ids, desk.run("a").input_ids)


def test_an_approval_answer_never_joins_and_is_never_joined() -> None:
    desk = Desk()
    desk.admit("a", coalesce=True)
    desk.admit("b", coalesce=True, message=answer_to_approval("in-b"))
    desk.admit("c", coalesce=True)

    assert (["a", "b"], ("in-a", "in-c"), ("in-b",)) == (desk.order, desk.run("a").input_ids, desk.run("b").input_ids)


# --- order and policies -------------------------------------------------------------------------


def test_inputs_wait_in_the_order_of_their_admission_whatever_their_ids() -> None:
    desk = Desk()
    desk.admit("z", "m", "a")

    assert ["z", "m", "a"] == desk.order


def test_urgent_inputs_stand_before_ordinary_ones_and_behind_each_other() -> None:
    desk = Desk()
    desk.admit("a", "b")
    desk.start("a")
    desk.admit("c", "d", policy=Policy.INTERRUPT_NEXT)

    assert ["a", "c", "d", "b"] == desk.order


def test_only_an_urgent_run_is_stored_with_a_priority() -> None:
    urgent = Desk().do(accept("a", policy=Policy.INTERRUPT_NEXT)).mutation.effect
    ordinary = Desk().do(accept("a", policy=Policy.INTERRUPT)).mutation.effect

    assert isinstance(urgent, AdmitInput) and urgent.run and isinstance(ordinary, AdmitInput) and ordinary.run
    assert (QueuePriority.INTERRUPT_NEXT, None) == (urgent.run.queue_priority, ordinary.run.queue_priority)


def test_only_injected_inputs_are_offered() -> None:
    desk = Desk()
    desk.admit("a", coalesce=True)
    desk.admit("b", coalesce=True, policy=Policy.INJECT)

    assert ("in-b",) == desk.run("a").offered


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy.QUEUE, None),
        (Policy.INJECT, None),
        (Policy.INTERRUPT, AbortReason.INTERRUPT),
        (Policy.INTERRUPT_NEXT, AbortReason.INTERRUPT),
        (Policy.SUPERSEDE, AbortReason.SUPERSEDE),
    ],
)
def test_each_policy_stops_the_live_run_for_its_own_reason(policy: Policy, reason: AbortReason | None) -> None:
    assert reason is abort_reason(policy)
