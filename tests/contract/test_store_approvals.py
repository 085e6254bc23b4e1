"""Approvals in the store: what is pending, who decided what, and what a run's end leaves open."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from turnlane.records.approvals import ApprovalState, CallOrigin
from turnlane.records.errors import ConversationPurgedError, StaleFenceError, StoreIntegrityError
from turnlane.records.messages import (
    Role,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.mutations import Mutation
from turnlane.records.runs import TerminalReason
from turnlane.records.steps import Fence
from turnlane.store.payloads import NewCall

if TYPE_CHECKING:
    from tests.contract.conftest import Lane

SOON, PAST = datetime(2100, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC)
REFUSED = ToolResultPart(call_id="c1", tool_name="look", outcome=ToolOutcome.ERROR, output={"error": "DENIED"})


async def ask(lane: Lane, *call_ids: str, key: str = "a", expires_at: datetime | None = None, **options: Any) -> Fence:
    """Run a step whose calls all wait for approval."""
    fence = await lane.begin_run(key, context={"user": "ann"}, **options)
    await lane.begin_step(fence)
    parts = [ToolCallPart(call_id=name, tool_name="look", input={"at": name}) for name in call_ids]
    asked = [
        ToolApprovalRequestPart(approval_id=f"apr-{name}", call_id=name, signature="k.s", reason="why")
        for name in call_ids
    ]
    calls = [
        NewCall(slot=slot, call_id=name, tool_name="look", approval_id=f"apr-{name}", approval_expires_at=expires_at)
        for slot, name in enumerate(call_ids, 1)
    ]
    await lane.finish_step(fence, *parts, *asked, calls=calls)
    return fence


async def asked(lane: Lane, *call_ids: str, **options: Any) -> Fence:
    """Ask, and let the run end as one that waits."""
    fence = await ask(lane, *call_ids, **options)
    await lane.apply(lane.settle(fence.run_id, TerminalReason.PROVIDER_STOP))
    return fence


def answer(lane: Lane, key: str, **approved: bool) -> Mutation:
    """Admit an input that answers approvals by the ids of their calls."""
    parts = tuple(
        ToolApprovalResponsePart(approval_id=f"apr-{name}", approved=verdict) for name, verdict in approved.items()
    )
    message = lane.message(f"in-{key}", role=Role.TOOL, parts=parts, metadata={"responder": "bob"})
    return lane.admit(key, message=message)


async def answering(lane: Lane, key: str, **approved: bool) -> Fence:
    """Start a run that answers approvals; the fence for what it does before its first step."""
    await lane.apply(answer(lane, key, **approved), lane.start(f"run-{key}"))
    return lane.fence(f"run-{key}", step=-1, attempt=0)


async def ids(lane: Lane, **options: Any) -> list[str]:
    pending = await lane.store.pending_approvals(lane.conversation_id, **options)
    return [each.approval_id for each in pending]


async def results(lane: Lane) -> dict[str, Any]:
    """The results of the conversation's calls, as (outcome, error)."""
    messages = (await lane.store.load_snapshot(lane.conversation_id)).messages
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]
    return {part.call_id: part.output["error"] if isinstance(part.output, dict) else part.output for part in parts}


async def test_a_pending_approval_tells_everything_that_an_answer_needs(lane: Lane) -> None:
    await asked(lane, "c1", expires_at=SOON)
    (found,) = await lane.store.pending_approvals(lane.conversation_id)

    assert {
        "conversation_id": lane.conversation_id,
        "run_id": "run-a",
        "message_id": "out-a",
        "approval_id": "apr-c1",
        "call_id": "c1",
        "tool_name": "look",
        "input": {"at": "c1"},
        "signature": "k.s",
        "reason": "why",
        "expires_at": SOON,
    } == found.model_dump()


async def test_while_a_run_goes_on_nothing_of_it_is_pending(lane: Lane) -> None:
    await ask(lane, "c1")

    assert [] == await ids(lane)


async def test_what_lapsed_is_not_pending_any_more(lane: Lane) -> None:
    await asked(lane, "c1", expires_at=PAST)
    found = await lane.store.find_approvals(lane.conversation_id, ["apr-c1"])

    assert ([], ApprovalState.PENDING) == (await ids(lane), found["apr-c1"].state)


async def test_approvals_of_all_conversations_are_listed_within_tenant_and_limit(lane: Lane) -> None:
    await asked(lane, "c1", "c2", key="a", tenant="acme")
    other = await lane.beside().open()
    await asked(other, "c3", key="b", tenant="other")
    everywhere = {each.approval_id for each in await lane.store.pending_approvals(limit=1000)}
    of_acme = {each.approval_id for each in await lane.store.pending_approvals(tenant="acme", limit=1000)}

    assert {"apr-c1", "apr-c2", "apr-c3"} <= everywhere
    assert {"apr-c1", "apr-c2"} <= of_acme and "apr-c3" not in of_acme
    assert (["apr-c1"], []) == (await ids(lane, limit=1), await ids(lane, tenant="other"))


@pytest.mark.parametrize(
    "reason", [TerminalReason.INTERRUPTED, TerminalReason.RUNTIME_FAILURE, TerminalReason.SUPERSEDED]
)
async def test_a_run_that_ends_badly_leaves_no_question(lane: Lane, reason: TerminalReason) -> None:
    await ask(lane, "c1")
    await lane.apply(lane.settle("run-a", reason))
    found = await lane.store.find_approvals(lane.conversation_id, ["apr-c1"])

    assert ([], {"c1": "INTERRUPTED"}) == (await ids(lane), await results(lane))
    assert ApprovalState.WITHDRAWN is found["apr-c1"].state


async def test_an_answer_is_decided_with_its_admission_and_told_in_the_ledger(lane: Lane) -> None:
    await asked(lane, "c1", "c2")
    await lane.apply(answer(lane, "b", c1=False))
    events = (await lane.store.read_events(lane.conversation_id)).items
    told = [event.payload for event in events if event.kind == "approval/decided"]

    assert ["apr-c2"] == await ids(lane)
    assert [("apr-c1", "c1", "look", "denied", "bob")] == [
        (each["approval_id"], each["call_id"], each["tool_name"], each["decision"], each["responder"]) for each in told
    ]
    assert isinstance(told[0]["input_sha256"], str) and 64 == len(told[0]["input_sha256"])


async def test_of_two_answers_the_first_stands(lane: Lane) -> None:
    await asked(lane, "c1")
    await lane.apply(answer(lane, "b", c1=True), answer(lane, "c", c1=False))
    found = await lane.store.find_approvals(lane.conversation_id, ["apr-c1"])

    assert ApprovalState.APPROVED is found["apr-c1"].state


async def test_an_answering_run_has_the_context_of_the_one_that_asked(lane: Lane) -> None:
    await asked(lane, "c1")
    await answering(lane, "b", c1=True)
    run = await lane.store.load_run_context(lane.conversation_id, "run-b")

    assert run is not None and {"user": "ann"} == run.context


async def test_an_approved_call_is_made_under_the_fence_of_the_run_that_answers(lane: Lane) -> None:
    await asked(lane, "c1", "c2")
    fence = await answering(lane, "b", c1=True)
    origin = CallOrigin(run_id="run-a", message_id="out-a", step=0)
    start = await lane.store.begin_call(fence, "out-b", 1, lane.clock(), origin=origin)
    again = await lane.store.begin_call(fence, "out-b", 1, lane.clock(), origin=origin)
    written = await lane.store.finish_call(fence, "out-b", 1, lane.result("c1"), lane.clock(), origin=origin)

    assert ({"at": "c1"}, False, True) == (start.input, start.started_before, again.started_before)
    assert {"c1": "done"} == await results(lane)
    assert ["out-a"] == [event.message.id for event in written.events if event.type == "assistant-checkpoint"]
    assert ["apr-c2"] == await ids(lane)


@pytest.mark.parametrize("verdict", [None, False], ids=["pending", "denied"])
async def test_a_call_that_nobody_approved_is_not_made(lane: Lane, verdict: bool | None) -> None:
    await asked(lane, "c1", "c2")
    fence = await answering(lane, "b", **({"c2": True} if verdict is None else {"c1": verdict}))
    origin = CallOrigin(run_id="run-a", message_id="out-a", step=0)
    with pytest.raises(StoreIntegrityError):
        await lane.store.begin_call(fence, "out-b", 1, lane.clock(), origin=origin)
    with pytest.raises(StoreIntegrityError):
        await lane.store.finish_call(fence, "out-b", 1, lane.result("c1"), lane.clock(), origin=origin)

    assert {} == await results(lane)


async def test_a_denied_call_takes_its_refusal_and_no_success(lane: Lane) -> None:
    await asked(lane, "c1")
    fence = await answering(lane, "b", c1=False)
    origin = CallOrigin(run_id="run-a", message_id="out-a", step=0)
    await lane.store.finish_call(fence, "out-b", 1, REFUSED, lane.clock(), origin=origin)
    await lane.store.finish_call(fence, "out-b", 1, lane.result("c1"), lane.clock(), origin=origin)

    assert {"c1": "DENIED"} == await results(lane)


async def test_a_fence_of_a_step_makes_no_call_of_an_earlier_run(lane: Lane) -> None:
    await asked(lane, "c1")
    fence = await answering(lane, "b", c1=True)
    await lane.begin_step(lane.fence("run-b"))
    origin = CallOrigin(run_id="run-a", message_id="out-a", step=0)
    with pytest.raises(StaleFenceError):
        await lane.store.begin_call(fence, "out-b", 1, lane.clock(), origin=origin)

    assert {} == await results(lane)


async def test_answers_are_loaded_with_their_calls_and_with_what_else_is_open(lane: Lane) -> None:
    await asked(lane, "c1", "c2")
    await answering(lane, "b", c1=True, c9=True)
    found = await lane.store.load_answers(lane.conversation_id, "run-b")

    assert [("apr-c1", "c1"), ("apr-c9", None)] == [
        (each.answer.approval_id, each.approval.call_id if each.approval else None) for each in found.calls
    ]
    assert found.waits


@pytest.mark.parametrize("lapsed", [False, True])
async def test_a_run_waits_for_the_other_calls_of_a_step_unless_they_lapsed(lane: Lane, lapsed: bool) -> None:
    await asked(lane, "c1", "c2", expires_at=PAST if lapsed else SOON)
    await answering(lane, "b", c1=True)
    found = await lane.store.load_answers(lane.conversation_id, "run-b")

    assert (not lapsed) is found.waits


async def test_a_run_waits_for_calls_that_another_answer_is_to_make(lane: Lane) -> None:
    await asked(lane, "c1", "c2")
    await lane.apply(answer(lane, "b", c1=True), answer(lane, "c", c2=True), lane.start("run-b"))
    found = await lane.store.load_answers(lane.conversation_id, "run-b")

    assert found.waits


@pytest.mark.parametrize("approved", [True, False])
async def test_an_answer_that_is_cancelled_while_it_waits_closes_its_call(lane: Lane, approved: bool) -> None:
    await asked(lane, "c1")
    await lane.apply(answer(lane, "b", c1=approved))
    await lane.apply(_ending(lane, "run-b", TerminalReason.CANCELLED))

    assert {"c1": "INTERRUPTED" if approved else "DENIED"} == await results(lane)


def _ending(lane: Lane, run_id: str, reason: TerminalReason) -> Mutation:
    """The end of a run that answers approvals."""
    mutation = lane.settle(run_id, reason)
    return mutation.model_copy(update={"effect": mutation.effect.model_copy(update={"answers": True})})


async def test_a_lane_that_opens_knows_what_waits_and_what_its_runs_answer(lane: Lane) -> None:
    await asked(lane, "c1", "c2", expires_at=SOON)
    await lane.apply(answer(lane, "b", c1=True))
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert [("apr-c2", SOON)] == [(each.approval_id, each.expires_at) for each in opened.head.approvals]
    assert [("apr-c1", True)] == [tuple(answer) for answer in opened.head.runs[0].answers]


async def test_a_run_whose_lane_was_lost_while_it_asked_goes_on_asking(lane: Lane) -> None:
    await ask(lane, "c1")
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)
    lane.epoch = opened.epoch or 0
    await lane.apply(lane.requeue("run-a"), lane.start("run-a", resumes=True))
    await lane.apply(lane.settle("run-a", TerminalReason.PROVIDER_STOP))

    assert opened.progress is not None
    assert ["apr-c1"] == [each.approval_id for each in opened.progress.asked]
    assert (["apr-c1"], {}) == (await ids(lane), await results(lane))


async def test_what_was_compacted_is_not_asked_any_more(lane: Lane) -> None:
    await asked(lane, "c1")
    await lane.apply(lane.compact("s", "in-a", "out-a"))

    assert [] == await ids(lane)


async def test_a_purge_takes_the_questions_along(lane: Lane) -> None:
    await asked(lane, "c1")
    await lane.apply(lane.purge())

    assert ([], {}) == (await ids(lane), await lane.store.find_approvals(lane.conversation_id, ["apr-c1"]))
    with pytest.raises(ConversationPurgedError):
        await lane.begin_step(lane.fence("run-a"))


async def test_storing_a_step_again_asks_once(lane: Lane) -> None:
    fence = await ask(lane, "c1")
    await lane.finish_step(fence)
    await lane.apply(lane.settle("run-a", TerminalReason.PROVIDER_STOP))

    assert ["apr-c1"] == await ids(lane)
