"""Approvals on a real lane: what waits, what an answer does, and what never happens twice."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from temporalio.client import WorkflowUpdateFailedError

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import (
    Till,
    asked,
    open_till,
    outputs,
    pending,
    respond,
)
from tests.integration.play import Play, current, open_play, run_id, shown_details
from tests.integration.stage import BOUND, until
from turnlane.agent import (
    ApprovalKeys,
    ApprovalQuestion,
    ApprovalResponse,
    Approvals,
    ApprovalStatus,
    ResponseRejected,
    Ruling,
    ToolContext,
    require_output,
    tool,
)
from turnlane.client import Ticket
from turnlane.records.approvals import RespondRequest
from turnlane.records.errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    ApprovalNotPendingError,
    ApprovalRefusedError,
    InvalidInputError,
    PolicyFailedError,
)
from turnlane.records.lane import LaneSettings
from turnlane.records.messages import (
    Role,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolResultPart,
)
from turnlane.records.runs import RunState, TerminalReason

pytestmark = pytest.mark.server

PAY, SHIP, CLOSE, NOTE = (
    ("p1", "pay", '{"sum": 5}'),
    ("s1", "ship", "{}"),
    ("c1", "close", "{}"),
    ("n1", "note", "{}"),
)
KEYS = ApprovalKeys({"k1": b"k" * 32})


async def finished(play: Play, ticket: Ticket, number: int, text: str = "Done.") -> TerminalReason:
    """Answer the model call of this number, and return how the run ended."""
    (await play.stage.call(number)).answer(text)
    return (await ticket.result(BOUND)).reason


async def decisions(play: Play) -> list[tuple[Any, ...]]:
    """What the ledger says of answers: call, tool and decision."""
    kept = [event.payload for event in await play.ledger() if event.kind == "approval/decided"]
    return [(each["call_id"], each["tool_name"], each["decision"]) for each in kept]


def tamper(bench: Bench, statement: str, **values: Any) -> None:
    """Change the store behind everybody's back."""
    engine = create_engine(f"sqlite:///{bench.path}")
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


# --- asking and answering -----------------------------------------------------------------------


async def test_an_approved_call_runs_once_and_the_model_goes_on(bench: Bench, serve: Serve, conversation: str) -> None:
    play, till = await open_till(bench, serve, conversation)
    first = await asked(play)
    waiting = (await pending(play))["p1"]
    ticket = await respond(play, "p1", True)
    second = await play.stage.call(2)
    heard = second.heard
    reason = await finished(play, ticket, 2, "Paid.")

    assert (TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS) == (first.reason, reason)
    assert ("pay", {"sum": 5}) == (waiting.tool_name, waiting.input)
    assert [("user", "go"), ("assistant", "p1"), ("tool", "p1")] == heard
    assert ({"pay": 1}, {"p1": "paid 5"}, {}) == (dict(till.made), await outputs(play), await pending(play))


async def test_a_denied_call_is_never_made_and_the_model_is_told_why(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    ticket = await respond(play, "p1", False, reason="too much")
    reason = await finished(play, ticket, 2, "Then not.")

    told = (await outputs(play))["p1"]
    assert isinstance(told, dict)
    assert ("DENIED", "too much") == (told["error"], told["details"]["reason"])  # type: ignore[index,call-overload]
    assert (TerminalReason.SUCCESS, {}) == (reason, dict(till.made))
    assert ("tool", "p1") == play.stage.calls[1].heard[-1]


async def test_the_other_calls_of_the_step_run_before_anybody_is_asked(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play, NOTE, PAY)

    assert ({"note": 1}, {"n1": "noted"}, ["p1"]) == (dict(till.made), await outputs(play), list(await pending(play)))


async def test_one_of_two_gated_calls_is_approved_and_the_other_denied(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play, NOTE, PAY, SHIP)
    waiting = await pending(play)
    first = await respond(play, "p1", True)
    early = (await first.result(BOUND)).reason
    second = await play.client.respond(play.conversation, waiting["s1"].approval_id, False)
    reason = await finished(play, second, 2)

    assert (TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS) == (early, reason)
    assert {"note": 1, "pay": 1} == dict(till.made)
    assert {"n1", "p1", "s1"} == set(await outputs(play))
    assert 2 == len(play.stage.calls)


async def test_answers_may_come_in_another_order_than_the_questions(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play, PAY, SHIP, CLOSE)
    waiting = await pending(play)
    tickets = [
        await play.client.respond(play.conversation, waiting[name].approval_id, approved)
        for name, approved in (("c1", False), ("p1", True), ("s1", True))
    ]
    (await play.stage.call(2)).answer("Done.")
    reasons = await play.reasons(*tickets)

    assert 3 == len({each.approval_id for each in waiting.values()})
    assert ["provider_stop", "provider_stop", "success"] == reasons
    assert {"pay": 1, "ship": 1} == dict(till.made)
    assert [("c1", "close", "denied"), ("p1", "pay", "approved"), ("s1", "ship", "approved")] == await decisions(play)
    assert [("user", "go"), ("assistant", "p1 s1 c1"), ("tool", "p1 s1 c1")] == play.stage.calls[1].heard


async def test_one_input_may_answer_several_approvals(bench: Bench, serve: Serve, conversation: str) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play, PAY, SHIP)
    parts = [
        ToolApprovalResponsePart(approval_id=each.approval_id, approved=each.call_id == "p1")
        for each in (await pending(play)).values()
    ]
    ticket = await play.client.submit(conversation, parts, role=Role.TOOL, key="both")
    reason = await finished(play, ticket, 2)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_an_approved_call_has_the_context_of_the_run_that_asked(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    asking = await play.submit("go", context={"user": "ann"}, metadata={"from": "web"})
    (await play.stage.call(1)).use(PAY)
    await asking.result(BOUND)
    ticket = await respond(play, "p1", True, responder="bob")
    await finished(play, ticket, 2)

    seen = till.contexts[0]
    run = await play.store.load_run_context(conversation, run_id(ticket))
    answer = next(message for message in await play.messages() if message.role is Role.TOOL)
    assert run is not None
    assert ({"user": "ann"}, {"from": "web"}, run_id(asking), 0) == (
        seen.context,
        seen.metadata,
        seen.run_id,
        seen.step_number,
    )
    assert ({"user": "ann"}, {"responder": "bob"}) == (run.context, answer.metadata)


# --- a restart, a rest, a fresh history ---------------------------------------------------------


async def test_a_question_survives_a_restart_of_workers_and_clients(bench: Bench, conversation: str) -> None:
    till = Till()
    play = Play(bench, bench.client(), conversation, bench.store)
    async with bench.worker(play.stage.agent(tools=till.tools()), providers=play.stage.providers):
        await asked(play)
    before = await pending(play)
    again = Play(bench, bench.client(), conversation, bench.store)
    async with bench.worker(again.stage.agent(tools=till.tools()), providers=again.stage.providers):
        ticket = await respond(again, "p1", True)
        reason = await finished(again, ticket, 1)

    assert ("p1", {"sum": 5}) == (before["p1"].call_id, before["p1"].input)
    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_a_lane_closes_while_a_question_waits_and_opens_for_the_answer(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation, settings=LaneSettings(idle_close_seconds=0.2))
    await asked(play)
    report = await play.lane.result()
    ticket = await respond(play, "p1", True)
    reason = await finished(play, ticket, 2)

    assert "idle" == report["outcome"]
    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_a_lane_knows_what_is_pending_in_a_fresh_history_and_after_a_rest(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, _ = await open_till(bench, serve, conversation, settings=LaneSettings(events_between_runs=5))
    await asked(play)
    ids = [each.approval_id for each in (await pending(play)).values()]
    first = await current(play)
    seen = [each.approval_id for each in await play.client.lane_approvals(conversation)]
    await play.lane.terminate()
    unrelated = await play.submit("b")
    (await play.stage.call(2)).answer("Hm.")
    await unrelated.result(BOUND)
    opened = [each.approval_id for each in await play.client.lane_approvals(conversation)]
    ticket = await respond(play, "p1", True)
    await finished(play, ticket, 3)
    left = await play.client.lane_approvals(conversation)

    assert (ids, ids, []) == (seen, opened, left)
    assert first != await current(play)


async def test_the_details_of_a_lane_say_that_it_waits_for_approval(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, _ = await open_till(bench, serve, conversation)
    await asked(play)
    details = await shown_details(bench, conversation)

    assert details.startswith("**waiting for approval**")
    assert f"- waiting for approval: 1\n  - `{(await pending(play))['p1'].approval_id}`" in details


# --- answers that meet --------------------------------------------------------------------------


async def test_of_two_opposite_answers_at_once_one_is_told_how_it_was_decided(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id
    answers = await asyncio.gather(
        *(play.client.respond(conversation, approval_id, approved) for approved in (True, False)),
        return_exceptions=True,
    )
    won = next(answer for answer in answers if isinstance(answer, Ticket))
    lost = next(answer for answer in answers if not isinstance(answer, Ticket))
    await finished(play, won, 2)

    approved = won is answers[0]
    assert isinstance(lost, ApprovalDecidedError)
    assert ("approved" if approved else "denied") == lost.details["decision"]
    assert ({"pay": 1} if approved else {}) == dict(till.made)


async def test_the_same_answer_twice_at_once_is_one_answer(bench: Bench, serve: Serve, conversation: str) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id
    tickets = await asyncio.gather(*(play.client.respond(conversation, approval_id, True) for _ in range(3)))
    await finished(play, tickets[0], 2)

    admissions = [ticket.admission for ticket in tickets if ticket.admission is not None]
    assert (1, 2) == (
        len({admission.run_id for admission in admissions}),
        sum(admission.duplicate for admission in admissions),
    )
    assert {"pay": 1} == dict(till.made)


@pytest.mark.parametrize("restarts", [False, True], ids=["warm", "after a rest"])
async def test_an_answer_after_the_answer_is_refused_by_name(
    bench: Bench, serve: Serve, conversation: str, restarts: bool
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id
    await finished(play, await respond(play, "p1", True), 2)
    if restarts:
        await play.lane.terminate()
    with pytest.raises(ApprovalDecidedError) as refused:
        await play.client.respond(conversation, approval_id, False)
    part = ToolApprovalResponsePart(approval_id=approval_id, approved=False)
    with pytest.raises(ApprovalDecidedError):
        await play.client.submit(conversation, [part], role=Role.TOOL, key="another way")

    again = await play.client.respond(conversation, approval_id, True)
    assert "approved" == refused.value.details["decision"]
    assert again.admission is not None and again.admission.duplicate
    assert {"pay": 1} == dict(till.made)


async def test_an_input_with_one_stale_answer_uses_up_none_of_the_others(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id
    parts = [ToolApprovalResponsePart(approval_id=name, approved=True) for name in (approval_id, "apr-unknown")]
    with pytest.raises(ApprovalNotPendingError):
        await play.client.submit(conversation, parts, role=Role.TOOL)
    reason = await finished(play, await respond(play, "p1", True), 2)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_an_approval_is_answered_in_its_own_conversation_only(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, _ = await open_till(bench, serve, conversation)
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id
    with pytest.raises(ApprovalNotPendingError):
        await play.client.respond(f"{conversation}-2", approval_id, True)

    assert ["p1"] == list(await pending(play))


async def test_two_answers_to_one_approval_in_one_input_are_refused(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, _ = await open_till(bench, serve, conversation)
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id
    parts = [ToolApprovalResponsePart(approval_id=approval_id, approved=approved) for approved in (True, False)]
    with pytest.raises(InvalidInputError):
        await play.client.submit(conversation, parts, role=Role.TOOL)

    assert ["p1"] == list(await pending(play))


async def test_by_signal_an_answer_is_safe_while_no_worker_is_there(bench: Bench, conversation: str) -> None:
    till = Till()
    play = Play(bench, bench.client(), conversation, bench.store)
    async with bench.worker(play.stage.agent(tools=till.tools()), providers=play.stage.providers):
        await asked(play)
    ticket = await respond(play, "p1", True, via="signal")
    again = Play(bench, bench.client(), conversation, bench.store)
    async with bench.worker(again.stage.agent(tools=till.tools()), providers=again.stage.providers):
        reason = await finished(again, ticket, 1)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_a_lane_hears_answers_by_update_and_by_signal_of_its_own(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
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


# --- meanwhile ----------------------------------------------------------------------------------


async def test_while_a_question_waits_users_are_answered_and_the_model_sees_that_it_waits(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    for number, name in enumerate(("a", "b", "c"), 2):
        ticket = await play.submit(name)
        await finished(play, ticket, number, f"to {name}")
    shown = [
        part.output
        for message in play.stage.calls[3].request.prompt.messages
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
    ticket = await respond(play, "p1", True)
    reason = await finished(play, ticket, 5)

    last = play.stage.calls[4].request.prompt.messages
    results = [part.output for message in last for part in message.parts if isinstance(part, ToolResultPart)]
    assert [{"status": "waiting for approval"}] == shown
    assert (TerminalReason.SUCCESS, ["paid 5"], {"pay": 1}) == (reason, results, dict(till.made))


async def test_while_a_question_waits_nothing_is_open(bench: Bench, serve: Serve, conversation: str) -> None:
    play, _ = await open_till(bench, serve, conversation)
    await asked(play)
    described = await play.lane.describe()
    stopped = await play.client.stop(conversation)
    ticket = await play.submit("a scheduled one")
    reason = await finished(play, ticket, 2)

    assert [] == list(described.raw_description.pending_activities)
    assert (False, TerminalReason.SUCCESS, ["p1"]) == (stopped, reason, list(await pending(play)))


async def test_an_interrupted_step_leaves_no_question(bench: Bench, serve: Serve, conversation: str) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Take long."""
        started.set()
        await release.wait()
        return "slow"

    till = Till()
    play = await open_play(bench, serve, conversation, tools=[*till.tools(), slow])
    ticket = await play.submit("go")
    (await play.stage.call(1)).use(PAY, ("w1", "slow", "{}"))
    await started.wait()
    await play.client.interrupt(conversation)
    result = await ticket.result(BOUND)
    release.set()

    assert (TerminalReason.INTERRUPTED, {}) == (result.reason, await pending(play))
    assert {"p1", "w1"} == set(await outputs(play))


async def test_an_answer_that_is_cancelled_in_the_queue_closes_its_call(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    busy = await play.submit("busy")
    held = await play.stage.call(2)
    ticket = await respond(play, "p1", True)
    await play.client.cancel(conversation, run_id(ticket))
    held.answer("Yes.")
    await busy.result(BOUND)

    told = (await outputs(play))["p1"]
    assert isinstance(told, dict) and "INTERRUPTED" == told["error"]
    assert ({}, {}) == (dict(till.made), await pending(play))


# --- the agent's own rules ----------------------------------------------------------------------


async def test_what_the_rules_approve_runs_at_once_and_leaves_a_trace(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    till = Till()
    rules = Approvals(policy={"pay": "approved", "ship": lambda question: Ruling(ApprovalStatus.DENIED, "closed")})
    play = await open_play(bench, serve, conversation, tools=till.tools(), approvals=rules)
    ticket = await play.submit("go")
    (await play.stage.call(1)).use(PAY, SHIP)
    reason = await finished(play, ticket, 2)

    parts = [part for message in await play.messages() for part in message.parts]
    requests = [part for part in parts if isinstance(part, ToolApprovalRequestPart)]
    answers = [(part.approved, part.reason) for part in parts if isinstance(part, ToolApprovalResponsePart)]
    told = (await outputs(play))["s1"]
    assert [("p1", True), ("s1", True)] == [(part.call_id, part.is_automatic) for part in requests]
    assert [(True, None), (False, "closed")] == answers
    assert isinstance(told, dict) and "DENIED" == told["error"]
    assert (TerminalReason.SUCCESS, {"pay": 1}, {}) == (reason, dict(till.made), await pending(play))


async def test_a_policy_that_fails_fails_the_run_and_runs_nothing(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    def broken(question: ApprovalQuestion) -> str:
        raise KeyError("secret")

    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), approvals=Approvals(policy=broken))
    result = await asked(play, PAY, NOTE)

    assert result.run is not None and result.run.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "APPROVAL_POLICY_FAILED") == (result.reason, result.run.failure.code)
    assert ({}, {}) == (dict(till.made), await pending(play))


async def test_a_policy_is_told_of_the_call_and_its_run(bench: Bench, serve: Serve, conversation: str) -> None:
    heard: list[ApprovalQuestion] = []

    async def listening(question: ApprovalQuestion) -> str:
        heard.append(question)
        return "approved"

    play = await open_play(bench, serve, conversation, tools=Till().tools(), approvals=Approvals(policy=listening))
    ticket = await play.submit("go", context={"user": "ann"}, tenant="acme")
    (await play.stage.call(1)).use(PAY)
    await finished(play, ticket, 2)

    assert [("pay", "p1", {"sum": 5}, conversation, run_id(ticket), "acme", {"user": "ann"})] == [
        (each.tool, each.call_id, each.input, each.conversation_id, each.run_id, each.tenant, each.context)
        for each in heard
    ]


async def test_a_call_that_the_rules_deny_by_now_is_denied_although_the_user_approved(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    status = ["user-approval"]
    till = Till()
    rules = Approvals(policy=lambda question: status[0])
    play = await open_play(bench, serve, conversation, tools=till.tools(), approvals=rules)
    await asked(play)
    status[0] = "denied"
    reason = await finished(play, await respond(play, "p1", True), 2)

    told = (await outputs(play))["p1"]
    assert isinstance(told, dict) and "DENIED" == told["error"]
    assert (TerminalReason.SUCCESS, {}) == (reason, dict(till.made))


# --- who may answer, and until when -------------------------------------------------------------


async def test_a_responder_who_may_not_answer_leaves_the_question_to_others(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    def owners_only(response: ApprovalResponse) -> bool:
        if response.responder == "mallory":
            raise ResponseRejected("not an owner")
        return response.responder == "ann"

    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), approvals=Approvals(authorize=owners_only))
    await asked(play)
    for responder in ("mallory", None):
        with pytest.raises(ApprovalRefusedError):
            await respond(play, "p1", True, responder=responder)
    rejected = [event.payload for event in await play.ledger() if event.kind == "approval/response-rejected"]
    reason = await finished(play, await respond(play, "p1", True, responder="ann"), 2)

    assert [("p1", "pay", "not an owner"), ("p1", "pay", "")] == [
        (each["call_id"], each["tool_name"], each["reason"]) for each in rejected
    ]
    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_a_hook_that_fails_admits_nobody(bench: Bench, serve: Serve, conversation: str) -> None:
    def broken(response: ApprovalResponse) -> bool:
        raise KeyError("secret")

    play = await open_play(bench, serve, conversation, tools=Till().tools(), approvals=Approvals(authorize=broken))
    await asked(play)
    with pytest.raises(PolicyFailedError):
        await respond(play, "p1", True)

    assert ["p1"] == list(await pending(play))


async def test_after_its_time_a_question_cannot_be_answered(bench: Bench, serve: Serve, conversation: str) -> None:
    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), approvals=Approvals(expires_after=1.0))
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id

    async def lapsed() -> bool:
        return not await pending(play)

    await until(lapsed)
    with pytest.raises(ApprovalExpiredError):
        await play.client.respond(conversation, approval_id, True)
    ticket = await play.submit("and now?")
    (await play.stage.call(2)).answer("It lapsed.")
    await ticket.result(BOUND)

    prompt = play.stage.calls[1].request.prompt.messages
    shown = [part.output for message in prompt for part in message.parts if isinstance(part, ToolResultPart)]
    assert [{"code": "APPROVAL_EXPIRED", "message": "not run: nobody approved the call in time"}] == shown
    assert {} == dict(till.made)


async def test_a_sibling_that_lapsed_does_not_hold_the_others_up(bench: Bench, serve: Serve, conversation: str) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play, PAY, SHIP)
    tamper(
        bench,
        "UPDATE turnlane_segment SET approval_expires_at = '2020-01-01T00:00:00.000000+00:00' WHERE call_id = 's1'",
    )
    reason = await finished(play, await respond(play, "p1", True), 2)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


# --- what is not genuine ------------------------------------------------------------------------

FORGERIES = {
    "other arguments": ('"sum":5', '"sum":5000', "APPROVAL_SIGNATURE"),
    "no signature": ('"signature":"', '"reason":"', "APPROVAL_SIGNATURE"),
    "another signature": ('"signature":"k1.', '"signature":"k1.A', "APPROVAL_SIGNATURE"),
    "no question": ("tool-approval-request", "provider", "APPROVAL_CALL_MISSING"),
}


@pytest.mark.parametrize("name", ["other arguments", "no signature", "another signature"])
async def test_a_question_that_was_altered_in_the_store_is_not_acted_on(
    bench: Bench, conversation: str, name: str
) -> None:
    old, new, code = FORGERIES[name]
    till = Till()
    play = Play(bench, bench.client(), conversation, bench.store)
    agent = play.stage.agent(tools=till.tools())
    async with bench.worker(agent, providers=play.stage.providers, approval_keys=KEYS):
        await asked(play)
        tamper(
            bench,
            "UPDATE turnlane_segment SET parts = replace(replace(parts, :old, :new), :reason, '') WHERE slot = 0",
            old=old,
            new=new,
            reason=',"reason":null',
        )
        result = await (await respond(play, "p1", True)).result(BOUND)

    assert result.run is not None and result.run.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, code) == (result.reason, result.run.failure.code)
    assert ({}, 1) == (dict(till.made), len(play.stage.calls))
    assert "signature" not in json.dumps([part.model_dump() for part in result.message.parts] if result.message else [])


async def test_a_signed_question_is_acted_on_where_the_key_is_known_and_nowhere_else(
    bench: Bench, conversation: str
) -> None:
    till = Till()
    play = Play(bench, bench.client(), conversation, bench.store)
    async with bench.worker(play.stage.agent(tools=till.tools()), providers=play.stage.providers, approval_keys=KEYS):
        await asked(play)
        await asked(play, SHIP, name="again", number=2)
    rotated = ApprovalKeys({"k2": b"n" * 32, "k1": b"k" * 32})
    async with bench.worker(
        play.stage.agent(tools=till.tools()), providers=play.stage.providers, approval_keys=rotated
    ):
        known = await finished(play, await respond(play, "p1", True), 3)
    async with bench.worker(play.stage.agent(tools=till.tools()), providers=play.stage.providers):
        unknown = await (await respond(play, "s1", True)).result(BOUND)

    assert (TerminalReason.SUCCESS, TerminalReason.RUNTIME_FAILURE) == (known, unknown.reason)
    assert {"pay": 1} == dict(till.made)


async def test_arguments_that_the_tool_takes_no_more_fail_the_run(bench: Bench, conversation: str) -> None:
    @tool(approval="user-approval")
    def pay(total: str) -> str:
        """Pay."""
        return total

    play = Play(bench, bench.client(), conversation, bench.store)
    async with bench.worker(play.stage.agent(tools=Till().tools()), providers=play.stage.providers):
        await asked(play)
    async with bench.worker(play.stage.agent(tools=[pay]), providers=play.stage.providers):
        result = await (await respond(play, "p1", True)).result(BOUND)

    assert result.run is not None and result.run.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "APPROVAL_ARGUMENTS") == (result.reason, result.run.failure.code)
    assert 1 == len(play.stage.calls)


async def test_an_answer_whose_question_is_gone_by_then_fails_the_run(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    busy = await play.submit("busy")
    held = await play.stage.call(2)
    ticket = await respond(play, "p1", True)
    tamper(bench, "UPDATE turnlane_segment SET approval_id = NULL, approval = NULL WHERE call_id = 'p1'")
    held.answer("Yes.")
    await busy.result(BOUND)
    result = await ticket.result(BOUND)

    assert result.run is not None and result.run.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "APPROVAL_UNKNOWN") == (result.reason, result.run.failure.code)
    assert ({}, 2, RunState.FAILED) == (dict(till.made), len(play.stage.calls), result.state)


async def test_chat_messages_answer_no_approval(bench: Bench, serve: Serve, conversation: str) -> None:
    play, till = await open_till(bench, serve, conversation)
    await asked(play)
    ticket = await play.submit("yes, do it")
    await finished(play, ticket, 2)
    calls = [part for message in await play.messages() for part in message.parts if isinstance(part, ToolCallPart)]

    assert (["p1"], 1, {}) == (list(await pending(play)), len(calls), dict(till.made))


async def test_a_durable_call_that_was_approved_may_sleep_and_goes_on_where_it_was(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    done: list[str] = []

    @tool(approval="user-approval", durable=True)
    async def ship(ctx: ToolContext) -> str:
        """Ship."""
        await ctx.step("pack", lambda: done.append("packed"))
        await ctx.sleep(0.05)
        return "shipped"

    play = await open_play(bench, serve, conversation, tools=[ship])
    await asked(play, SHIP)
    reason = await finished(play, await respond(play, "s1", True), 2)

    assert (TerminalReason.SUCCESS, ["packed"], {"s1": "shipped"}) == (reason, done, await outputs(play))


@pytest.mark.parametrize("role", [Role.USER, Role.TOOL])
async def test_an_answer_that_is_hidden_in_a_blob_is_refused(
    bench: Bench, serve: Serve, conversation: str, role: Role
) -> None:
    play, _ = await open_till(bench, serve, conversation)
    await asked(play)
    approval_id = (await pending(play))["p1"].approval_id
    parts = [ToolApprovalResponsePart(approval_id=approval_id, approved=True).model_dump(mode="json")]
    blob = await play.store.put_blob(conversation, json.dumps(parts).encode(), "application/json", datetime.now(UTC))
    given = {"key": "hidden", "role": role.value, "blob": blob.model_dump(mode="json")}
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await play.lane.execute_update("submit", given)

    assert "INVALID_INPUT" == getattr(refused.value.cause, "type", None)
    assert ["p1"] == list(await pending(play))


# --- with acceptance, and with a lane that is lost ----------------------------------------------


async def test_an_unanswered_question_is_no_answer_to_be_judged(bench: Bench, serve: Serve, conversation: str) -> None:
    play, _ = await open_till(bench, serve, conversation, accept=require_output())
    result = await asked(play)
    await play.lane.terminate()
    reopened = [each.approval_id for each in await play.store.pending_approvals(conversation)]

    assert (TerminalReason.PROVIDER_STOP, 1) == (result.reason, len(reopened))


async def test_an_empty_answer_behind_an_automatic_approval_is_judged(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(
        bench, serve, conversation, accept=require_output(), approvals=Approvals(policy=lambda question: "approved")
    )
    ticket = await play.submit("go")
    (await play.stage.call(1)).use(PAY)
    reason = await finished(play, ticket, 2, "")

    assert (TerminalReason.OUTPUT_REJECTED, {"pay": 1}) == (reason, dict(till.made))


async def test_a_lane_that_is_lost_before_its_run_could_end_asks_all_the_same(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), hold="finish_step", hold_answer=True)
    assert play.held is not None
    ticket = await play.submit("go")
    (await play.stage.call(1)).use(PAY)
    await play.held.barrier.until_reached()
    await play.lane.terminate()
    unrelated = await play.submit("b")
    play.held.barrier.release()
    first = await ticket.result(BOUND)
    await finished(play, unrelated, 2)
    reason = await finished(play, await respond(play, "p1", True), 3)

    assert (TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS) == (first.reason, reason)
    assert {"pay": 1} == dict(till.made)
