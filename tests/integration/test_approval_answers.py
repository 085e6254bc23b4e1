"""Answers to approvals that meet, come too late, or are not to be taken: one decides, the others are told by name."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.integration.approval_stage import (
    PAY,
    SHIP,
    Gated,
    approval_of,
    asked,
    finished,
    pending,
    respond,
)
from tests.integration.stage import BOUND, until
from turnlane.client import Ticket
from turnlane.records.approvals import RespondRequest
from turnlane.records.errors import (
    AgentMismatchError,
    ApprovalDecidedError,
    ApprovalNotPendingError,
    InvalidInputError,
)
from turnlane.records.messages import (
    Role,
    ToolApprovalResponsePart,
)
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server


# --- answers that meet --------------------------------------------------------------------------


async def test_of_two_opposite_answers_at_once_one_is_told_how_it_was_decided(gated: Gated) -> None:
    play, till = gated
    await asked(play)
    approval_id = await approval_of(play)
    answers = await asyncio.gather(
        *(play.client.respond(play.conversation, approval_id, approved) for approved in (True, False)),
        return_exceptions=True,
    )
    won = next(answer for answer in answers if isinstance(answer, Ticket))
    lost = next(answer for answer in answers if not isinstance(answer, Ticket))
    await finished(play, won, 2)

    approved = won is answers[0]
    assert isinstance(lost, ApprovalDecidedError)
    assert ("approved" if approved else "denied") == lost.details["decision"]
    assert ({"pay": 1} if approved else {}) == dict(till.made)


async def test_the_same_answer_twice_at_once_is_one_answer(gated: Gated) -> None:
    play, till = gated
    await asked(play)
    approval_id = await approval_of(play)
    tickets = await asyncio.gather(*(play.client.respond(play.conversation, approval_id, True) for _ in range(3)))
    await finished(play, tickets[0], 2)

    admissions = [ticket.admission for ticket in tickets if ticket.admission is not None]
    assert (1, 2) == (
        len({admission.run_id for admission in admissions}),
        sum(admission.duplicate for admission in admissions),
    )
    assert {"pay": 1} == dict(till.made)


async def test_two_clients_a_signal_and_an_update_at_once_make_one_call(gated: Gated) -> None:
    play, till = gated
    await asked(play)
    approval_id = await approval_of(play)
    said = RespondRequest(approval_id=approval_id, approved=True)
    first, second = play.bench.client(), play.bench.client()
    answers = await asyncio.gather(
        first.respond(play.conversation, approval_id, True),
        second.respond(play.conversation, approval_id, False),
        second.respond(play.conversation, approval_id, True, via="signal"),
        play.lane.signal("respond", said),
        play.lane.execute_update("respond", said),
        return_exceptions=True,
    )
    (await play.stage.call(2)).answer("Done.")

    async def rests() -> bool:
        return not await play.client.runs(play.conversation)

    await until(rests)
    decided = [event.payload["decision"] for event in await play.ledger() if event.kind == "approval/decided"]
    refused = [each for each in answers if isinstance(each, Exception)]
    assert 1 == len(decided)
    assert ({"pay": 1} if decided == ["approved"] else {}) == dict(till.made)
    assert refused and all(isinstance(each, ApprovalDecidedError | WorkflowUpdateFailedError) for each in refused)
    assert (2, 2) == (len(play.stage.calls), len((await play.client.snapshot(play.conversation)).runs))


async def test_a_lane_hears_answers_by_update_and_by_signal_of_its_own(gated: Gated) -> None:
    play, till = gated
    await asked(play, PAY, SHIP)
    waiting = await pending(play)
    reply = await play.lane.execute_update(
        "respond", RespondRequest(approval_id=waiting["p1"].approval_id, approved=True)
    )
    await play.lane.signal("respond", RespondRequest(approval_id=waiting["s1"].approval_id, approved=True))
    await play.lane.signal("respond", RespondRequest(approval_id="apr-unknown", approved=True))
    (await play.stage.call(2)).answer("Done.")

    async def refused() -> bool:
        events = await play.ledger()
        return any(each.payload.get("code") == "APPROVAL_NOT_PENDING" for each in events)

    await until(refused)
    assert "queued" == reply["admission"]["run_state"]
    assert {"pay": 1, "ship": 1} == dict(till.made)


# --- answers that are refused -------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True], ids=["warm", "after a rest"])
async def test_an_answer_after_the_answer_is_refused_by_name(gated: Gated, restarts: bool) -> None:
    play, till = gated
    await asked(play)
    approval_id = await approval_of(play)
    await finished(play, await respond(play, "p1", True), 2)
    if restarts:
        await play.lane.terminate()
    with pytest.raises(ApprovalDecidedError) as refused:
        await play.client.respond(play.conversation, approval_id, False)
    part = ToolApprovalResponsePart(approval_id=approval_id, approved=False)
    with pytest.raises(ApprovalDecidedError):
        await play.client.submit(play.conversation, [part], role=Role.TOOL, key="another way")

    again = await play.client.respond(play.conversation, approval_id, True)
    assert "approved" == refused.value.details["decision"]
    assert again.admission is not None and again.admission.duplicate
    assert {"pay": 1} == dict(till.made)


async def test_an_input_with_one_stale_answer_uses_up_none_of_the_others(gated: Gated) -> None:
    play, till = gated
    await asked(play)
    approval_id = await approval_of(play)
    parts = [ToolApprovalResponsePart(approval_id=name, approved=True) for name in (approval_id, "apr-unknown")]
    with pytest.raises(ApprovalNotPendingError):
        await play.client.submit(play.conversation, parts, role=Role.TOOL)
    reason = await finished(play, await respond(play, "p1", True), 2)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_an_approval_is_answered_in_its_own_conversation_only(gated: Gated) -> None:
    play, _ = gated
    await asked(play)
    approval_id = await approval_of(play)
    with pytest.raises(ApprovalNotPendingError):
        await play.client.respond(f"{play.conversation}-2", approval_id, True)

    assert ["p1"] == list(await pending(play))


async def test_another_tenant_answers_nothing_and_learns_nothing(gated: Gated) -> None:
    play, till = gated
    ticket = await play.submit("go", tenant="acme")
    (await play.stage.call(1)).use(("p1", "pay", '{"sum": 5}'))
    await ticket.result(BOUND)
    approval_id = await approval_of(play)
    for asked_id in (approval_id, "apr-none"):
        with pytest.raises(AgentMismatchError):
            await play.client.respond(play.conversation, asked_id, True, tenant="other")
    answered = await play.client.respond(play.conversation, approval_id, True, tenant="acme")
    reason = await finished(play, answered, 2)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_two_answers_to_one_approval_in_one_input_are_refused(gated: Gated) -> None:
    play, _ = gated
    await asked(play)
    approval_id = await approval_of(play)
    parts = [ToolApprovalResponsePart(approval_id=approval_id, approved=approved) for approved in (True, False)]
    with pytest.raises(InvalidInputError):
        await play.client.submit(play.conversation, parts, role=Role.TOOL)

    assert ["p1"] == list(await pending(play))


async def test_an_input_with_more_answers_than_a_step_may_ask_is_refused(gated: Gated) -> None:
    play, _ = gated
    await asked(play)
    parts = [ToolApprovalResponsePart(approval_id=f"apr-{n}", approved=True) for n in range(129)]

    with pytest.raises(InvalidInputError, match="at most 128"):
        await play.client.submit(play.conversation, parts, role=Role.TOOL)


@pytest.mark.parametrize("role", [Role.USER, Role.TOOL])
async def test_an_answer_that_is_hidden_in_a_blob_is_refused(gated: Gated, role: Role) -> None:
    play, _ = gated
    await asked(play)
    approval_id = await approval_of(play)
    parts = [ToolApprovalResponsePart(approval_id=approval_id, approved=True).model_dump(mode="json")]
    blob = await play.store.put_blob(
        play.conversation, json.dumps(parts).encode(), "application/json", datetime.now(UTC)
    )
    given = {"key": "hidden", "role": role.value, "blob": blob.model_dump(mode="json")}
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await play.lane.execute_update("submit", given)

    assert "INVALID_INPUT" == getattr(refused.value.cause, "type", None)
    assert ["p1"] == list(await pending(play))
