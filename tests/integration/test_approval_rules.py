"""The application's say in approvals: what its rules decide, who may answer and until when, and what if it fails."""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import (
    NOTE,
    PAY,
    SHIP,
    Gated,
    Till,
    approval_of,
    asked,
    finished,
    outputs,
    pending,
    respond,
    tamper,
)
from tests.integration.play import open_play, run_id
from tests.integration.stage import BOUND, until
from turnlane.activities import patience
from turnlane.agent import (
    ApprovalQuestion,
    ApprovalResponse,
    Approvals,
    ApprovalStatus,
    ResponseRejected,
    Ruling,
)
from turnlane.records.errors import (
    ApprovalExpiredError,
    ApprovalRefusedError,
    PolicyFailedError,
)
from turnlane.records.messages import (
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolResultPart,
)
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server


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

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "APPROVAL_POLICY_FAILED") == (result.reason, result.failure.code)
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
    approval_id = await approval_of(play)

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


async def test_a_sibling_that_lapsed_does_not_hold_the_others_up(gated: Gated) -> None:
    play, till = gated
    await asked(play, PAY, SHIP)
    await tamper(
        play.bench,
        "UPDATE turnlane_segment SET approval_expires_at = '2020-01-01T00:00:00.000000+00:00' WHERE call_id = 's1'",
    )
    reason = await finished(play, await respond(play, "p1", True), 2)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


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
