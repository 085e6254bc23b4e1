"""Approvals at bad moments: many answers at once, functions that hang, runs that end early, budgets that are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import Till, asked, open_till, outputs, pending, respond
from tests.integration.play import Play, open_play, run_id
from tests.integration.stage import BOUND, until
from turnlane.activities import patience
from turnlane.agent import ApprovalQuestion, ApprovalResponse, Approvals, SpendLimits, ToolContext, tool
from turnlane.client import Ticket
from turnlane.records.approvals import RespondRequest
from turnlane.records.base import JsonObject
from turnlane.records.errors import (
    AgentMismatchError,
    ApprovalDecidedError,
    InvalidInputError,
    PolicyFailedError,
    TurnlaneError,
)
from turnlane.records.lane import LaneSettings
from turnlane.records.messages import Role, ToolApprovalResponsePart
from turnlane.records.runs import RunState, TerminalReason

pytestmark = pytest.mark.server


async def finished(play: Play, ticket: Ticket, number: int) -> TerminalReason:
    """Answer the model call of this number, and return how the run ended."""
    (await play.stage.call(number)).answer("Done.")
    return (await ticket.result(BOUND)).reason


# --- functions of the application that hang -----------------------------------------------------


async def test_an_authorize_that_hangs_admits_nobody_and_lets_other_inputs_in(
    bench: Bench, serve: Serve, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(response: ApprovalResponse) -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.2)
    play = await open_play(bench, serve, conversation, tools=Till().tools(), approvals=Approvals(authorize=hangs))
    await asked(play)
    with pytest.raises(PolicyFailedError, match="took too long"):
        await respond(play, "p1", True)
    reason = await finished(play, await play.submit("still there?"), 2)

    assert (TerminalReason.SUCCESS, ["p1"]) == (reason, list(await pending(play)))


async def test_a_policy_that_hangs_fails_the_run_that_asks(
    bench: Bench, serve: Serve, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(question: ApprovalQuestion) -> str:
        await asyncio.Event().wait()
        return "approved"

    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.2)
    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), approvals=Approvals(policy=hangs))
    result = await asked(play)

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "APPROVAL_POLICY_TIMED_OUT") == (result.reason, result.failure.code)
    assert {} == dict(till.made)


async def test_a_policy_that_hangs_when_it_is_asked_again_fails_the_run_that_answers(
    bench: Bench, serve: Serve, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = asyncio.Event()

    async def policy(question: ApprovalQuestion) -> str:
        if hanging.is_set():
            await asyncio.Event().wait()
        return "user-approval"

    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.2)
    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), approvals=Approvals(policy=policy))
    await asked(play)
    hanging.set()
    result = await (await respond(play, "p1", True)).result(BOUND)

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "APPROVAL_POLICY_TIMED_OUT") == (result.reason, result.failure.code)
    assert ({}, {}, 1) == (dict(till.made), await pending(play), len(play.stage.calls))


# --- answers that meet --------------------------------------------------------------------------


async def test_two_clients_a_signal_and_an_update_at_once_make_one_call(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id
    said = RespondRequest(approval_id=approval_id, approved=True)
    first, second = bench.client(), bench.client()
    answers = await asyncio.gather(
        first.respond(conversation, approval_id, True),
        second.respond(conversation, approval_id, False),
        second.respond(conversation, approval_id, True, via="signal"),
        play.lane.signal("respond", said),
        play.lane.execute_update("respond", said),
        return_exceptions=True,
    )
    (await play.stage.call(2)).answer("Done.")

    async def rests() -> bool:
        return not await play.client.runs(conversation)

    await until(rests)
    decided = [event.payload["decision"] for event in await play.ledger() if event.kind == "approval/decided"]
    refused = [each for each in answers if isinstance(each, Exception)]
    assert 1 == len(decided)
    assert ({"pay": 1} if decided == ["approved"] else {}) == dict(till.made)
    assert refused and all(isinstance(each, ApprovalDecidedError | WorkflowUpdateFailedError) for each in refused)
    assert (2, 2) == (len(play.stage.calls), len((await play.client.snapshot(conversation)).runs))


async def test_an_answer_that_meets_a_closing_lane_is_acted_on_once(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation, settings=LaneSettings(idle_close_seconds=0.01))
    number = 1
    for turn in range(4):
        await asked(play, (f"p{turn}", "pay", '{"sum": 5}'), name=f"go {turn}", number=number)
        ticket = await respond(play, f"p{turn}", True)
        await finished(play, ticket, number + 1)
        number += 2

    assert ({"pay": 4}, {}) == (dict(till.made), await pending(play))


# --- answering runs that end early --------------------------------------------------------------


async def test_an_answering_run_that_is_interrupted_before_it_looks_closes_its_call(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    till = Till()
    play = await open_play(bench, serve, conversation, hold="load_answers", tools=till.tools())
    assert play.held is not None
    await asked(play)
    ticket = await respond(play, "p1", True)
    await play.held.barrier.until_reached()
    await play.client.interrupt(conversation, run_id(ticket))
    play.held.barrier.release()
    result = await ticket.result(BOUND)
    told = (await outputs(play))["p1"]

    assert isinstance(told, dict)
    assert (TerminalReason.INTERRUPTED, "INTERRUPTED") == (result.reason, told["error"])
    assert ({}, {}, 1) == (dict(till.made), await pending(play), len(play.stage.calls))


async def test_an_answering_run_that_is_superseded_in_its_call_leaves_one_result(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    started = asyncio.Event()

    @tool(approval="user-approval")
    async def pay() -> str:
        """Pay."""
        started.set()
        await asyncio.Event().wait()
        return "paid"

    play = await open_play(bench, serve, conversation, tools=[pay])
    await asked(play, ("p1", "pay", "{}"))
    ticket = await respond(play, "p1", True)
    await started.wait()
    other = await play.submit("something else", policy="supersede")
    await finished(play, other, 2)
    result = await ticket.result(BOUND)
    told = (await outputs(play))["p1"]

    assert isinstance(told, dict)
    assert (TerminalReason.SUPERSEDED, "INTERRUPTED") == (result.reason, told["error"])
    assert ("user", "something else") == play.stage.calls[1].heard[-1]


async def test_an_answering_run_that_is_abandoned_in_the_queue_closes_its_call(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    busy = await play.submit("busy")
    held = await play.stage.call(2)
    ticket = await respond(play, "p1", True)
    run = await play.until_state(ticket, RunState.QUEUED)
    await play.client.abandon(conversation, run.id, expected_revision=run.revision, stale_owner=True)
    held.answer("Yes.")
    await busy.result(BOUND)
    told = (await outputs(play))["p1"]

    assert isinstance(told, dict)
    assert ("INTERRUPTED", {}, {}) == (told["error"], dict(till.made), await pending(play))


# --- who, and how much --------------------------------------------------------------------------


async def test_another_tenant_answers_nothing_and_learns_nothing(bench: Bench, serve: Serve, conversation: str) -> None:
    play, till = await open_till(bench, serve, conversation)
    ticket = await play.submit("go", tenant="acme")
    (await play.stage.call(1)).use(("p1", "pay", '{"sum": 5}'))
    await ticket.result(BOUND)
    approval_id = (await pending(play))["p1"].approval_id
    for asked_id in (approval_id, "apr-none"):
        with pytest.raises(AgentMismatchError):
            await play.client.respond(conversation, asked_id, True, tenant="other")
    answered = await play.client.respond(conversation, approval_id, True, tenant="acme")
    reason = await finished(play, answered, 2)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_an_input_with_more_answers_than_a_step_may_ask_is_refused(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, _ = await open_till(bench, serve, conversation)
    await asked(play)
    parts = [ToolApprovalResponsePart(approval_id=f"apr-{n}", approved=True) for n in range(129)]

    with pytest.raises(InvalidInputError, match="at most 128"):
        await play.client.submit(conversation, parts, role=Role.TOOL)


async def test_a_hook_may_still_change_the_arguments_of_an_approved_call(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    def cap(ctx: ToolContext, name: str, given: JsonObject) -> JsonObject:
        return {**given, "sum": 1}

    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), before_call=cap)
    await asked(play)
    await finished(play, await respond(play, "p1", True), 2)

    assert {"p1": "paid 1"} == await outputs(play)


@pytest.mark.parametrize("limits", [{"conversation_tokens": 5}, {"conversation_cost": "1"}])
async def test_without_a_budget_an_approved_call_is_made_and_no_model_is_called(
    bench: Bench, serve: Serve, conversation: str, limits: dict[str, Any]
) -> None:
    play, till = await open_till(bench, serve, conversation, spend_limits=SpendLimits(**limits))
    await asked(play)
    with pytest.raises(TurnlaneError, match="budget"):
        await play.submit("more")
    result = await (await respond(play, "p1", True)).result(BOUND)

    assert (TerminalReason.POLICY_STOP, {"pay": 1}, {"p1": "paid 5"}) == (
        result.reason,
        dict(till.made),
        await outputs(play),
    )
    assert 1 == len(play.stage.calls)


async def test_a_step_that_asks_as_much_as_it_may_stays_within_what_a_history_takes(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation, approvals=Approvals(expires_after=3600.0))
    ids = ["\u540d" * 190 + str(number) for number in range(128)]
    await asked(play, *((call_id, "ship", "{}") for call_id in ids))
    waiting = await play.client.pending_approvals(conversation, limit=200)
    parts = [ToolApprovalResponsePart(approval_id=each.approval_id, approved=True) for each in waiting]
    ticket = await play.client.submit(conversation, parts, role=Role.TOOL)
    reason = await finished(play, ticket, 2)
    history = await play.lane.fetch_history()

    assert (128, TerminalReason.SUCCESS, {"ship": 128}) == (len(waiting), reason, dict(till.made))
    assert 128 * 1024 > max(event.ByteSize() for event in history.events)
