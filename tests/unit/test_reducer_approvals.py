"""Approvals in the reducer: what a head knows to be pending, and which answer to one is let in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reducer_desk import NOW, Desk, accept, message
from turnlane.records.approvals import AskedApproval
from turnlane.records.commands import Accept, Acquire, Cancel, Duplicate, Purge, Refusal, RefusalCode, Settle
from turnlane.records.lane import LaneHead
from turnlane.records.messages import Role, ToolApprovalResponsePart
from turnlane.records.mutations import SettleRun
from turnlane.records.runs import TerminalReason
from turnlane.workflows.decisions import Decision, Transition
from turnlane.workflows.reducer import PENDING_APPROVALS, reduce

ASKED = (AskedApproval(approval_id="apr-1", expires_at=NOW), AskedApproval(approval_id="apr-2"))


def answer(key: str, approval_id: str = "apr-1", approved: bool = True, **changes: Any) -> Accept:
    """Accept an approval answer."""
    part = ToolApprovalResponsePart(approval_id=approval_id, approved=approved)
    return accept(key, message=message(f"in-{key}", role=Role.TOOL, parts=(part,)), **changes)


def after(head: LaneHead, command: Any) -> LaneHead:
    """The head after a command that is carried out."""
    decision = reduce(head, command, NOW)
    assert isinstance(decision, Transition)
    return decision.head


def running(key: str = "a") -> LaneHead:
    """A head with a live run."""
    return after(after(Desk().head, accept(key)), Acquire(run_id=f"run-{key}", owner_id="w"))


def waiting() -> LaneHead:
    """A head whose run ended and asked."""
    return after(running(), Settle(run_id="run-a", token=1, reason=TerminalReason.PROVIDER_STOP, asked=ASKED))


def code(decision: Decision) -> RefusalCode | None:
    return decision.code if isinstance(decision, Refusal) else None


def test_what_a_run_asked_waits_in_the_head_until_it_is_answered() -> None:
    head = waiting()

    assert ASKED == head.approvals
    assert ASKED[1:] == after(head, answer("b")).approvals
    assert () == after(head, Purge()).approvals


@pytest.mark.parametrize("reason", [TerminalReason.INTERRUPTED, TerminalReason.RUNTIME_FAILURE])
def test_a_run_that_ends_badly_asks_nothing(reason: TerminalReason) -> None:
    assert () == after(running(), Settle(run_id="run-a", token=1, reason=reason, asked=ASKED)).approvals


def test_a_head_names_the_latest_approvals_only() -> None:
    many = tuple(AskedApproval(approval_id=f"apr-{number}") for number in range(PENDING_APPROVALS + 5))
    head = after(running(), Settle(run_id="run-a", token=1, reason=TerminalReason.PROVIDER_STOP, asked=many))

    assert many[5:] == head.approvals


@pytest.mark.parametrize(("approved", "decision"), [(True, "approved"), (False, "denied")])
def test_another_answer_under_any_key_is_told_how_the_first_one_decided(approved: bool, decision: str) -> None:
    head = after(waiting(), answer("b", approved=approved))
    same_key = reduce(head, answer("b", approved=not approved, content_digest="other"), NOW)
    other_key = reduce(head, answer("c", approved=not approved), NOW)

    assert [RefusalCode.DECIDED] * 2 == [code(same_key), code(other_key)]
    assert isinstance(same_key, Refusal) and isinstance(other_key, Refusal)
    assert [decision] * 2 == [same_key.detail, other_key.detail]


def test_the_same_answer_again_is_a_duplicate() -> None:
    head = after(waiting(), answer("b"))

    assert isinstance(reduce(head, answer("b"), NOW), Duplicate)


def test_an_answer_waits_as_a_run_of_its_own_and_no_input_joins_it() -> None:
    head = after(running(), answer("b", coalesce=True))
    head = after(head, accept("c", coalesce=True))

    assert [("run-b", True), ("run-c", False)] == [(run.id, bool(run.answers)) for run in head.queued]


def test_the_store_is_told_of_the_end_of_a_run_that_answers() -> None:
    head = after(running(), answer("b"))
    cancelled = reduce(head, Cancel(run_id="run-b"), NOW)
    plain = reduce(head, Settle(run_id="run-a", token=1, reason=TerminalReason.SUCCESS), NOW)

    effects = [each.mutation.effect for each in (cancelled, plain) if isinstance(each, Transition)]
    assert [True, False] == [effect.answers for effect in effects if isinstance(effect, SettleRun)]
