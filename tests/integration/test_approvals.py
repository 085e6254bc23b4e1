"""Approvals on a real lane: what is asked, what an answer does, and what goes on meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import (
    CLOSE,
    NOTE,
    PAY,
    SHIP,
    Gated,
    Till,
    asked,
    finished,
    open_till,
    outputs,
    pending,
    respond,
)
from tests.integration.play import Play, open_play, run_id, shown_details
from tests.integration.stage import BOUND
from turnlane.agent import (
    Approvals,
    ToolContext,
    require_output,
    tool,
)
from turnlane.records.base import JsonObject
from turnlane.records.messages import (
    Role,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolResultPart,
)
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server


async def decisions(play: Play) -> list[tuple[Any, ...]]:
    """What the ledger says of answers: call, tool and decision."""
    kept = [event.payload for event in await play.ledger() if event.kind == "approval/decided"]
    return [(each["call_id"], each["tool_name"], each["decision"]) for each in kept]


# --- asking and answering -----------------------------------------------------------------------


async def test_an_approved_call_runs_once_and_the_model_goes_on(gated: Gated) -> None:
    play, till = gated
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


async def test_a_denied_call_is_never_made_and_the_model_is_told_why(gated: Gated) -> None:
    play, till = gated
    await asked(play)
    ticket = await respond(play, "p1", False, reason="too much")
    reason = await finished(play, ticket, 2, "Then not.")

    told = (await outputs(play))["p1"]
    assert isinstance(told, dict)
    assert ("DENIED", "too much") == (told["error"], told["details"]["reason"])  # type: ignore[index,call-overload]
    assert (TerminalReason.SUCCESS, {}) == (reason, dict(till.made))
    assert ("tool", "p1") == play.stage.calls[1].heard[-1]


async def test_the_other_calls_of_the_step_run_before_anybody_is_asked(gated: Gated) -> None:
    play, till = gated
    await asked(play, NOTE, PAY)

    assert ({"note": 1}, {"n1": "noted"}, ["p1"]) == (dict(till.made), await outputs(play), list(await pending(play)))


async def test_one_of_two_gated_calls_is_approved_and_the_other_denied(gated: Gated) -> None:
    play, till = gated
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


async def test_answers_may_come_in_another_order_than_the_questions(gated: Gated) -> None:
    play, till = gated
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


async def test_one_input_may_answer_several_approvals(gated: Gated) -> None:
    play, till = gated
    await asked(play, PAY, SHIP)
    parts = [
        ToolApprovalResponsePart(approval_id=each.approval_id, approved=each.call_id == "p1")
        for each in (await pending(play)).values()
    ]
    ticket = await play.client.submit(play.conversation, parts, role=Role.TOOL, key="both")
    reason = await finished(play, ticket, 2)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_an_approved_call_has_the_context_of_the_run_that_asked(gated: Gated) -> None:
    play, till = gated
    asking = await play.submit("go", context={"user": "ann"}, metadata={"from": "web"})
    (await play.stage.call(1)).use(PAY)
    await asking.result(BOUND)
    ticket = await respond(play, "p1", True, responder="bob")
    await finished(play, ticket, 2)

    seen = till.contexts[0]
    run = await play.store.load_run_context(play.conversation, run_id(ticket))
    answer = next(message for message in await play.messages() if message.role is Role.TOOL)
    assert run is not None
    assert ({"user": "ann"}, {"from": "web"}, run_id(asking), 0) == (
        seen.context,
        seen.metadata,
        seen.run_id,
        seen.step_number,
    )
    assert ({"user": "ann"}, {"responder": "bob"}) == (run.context, answer.metadata)


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


# --- meanwhile ----------------------------------------------------------------------------------


async def test_while_a_question_waits_users_are_answered_and_the_model_sees_that_it_waits(gated: Gated) -> None:
    play, till = gated
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


async def test_while_a_question_waits_nothing_is_open(gated: Gated) -> None:
    play, _ = gated
    await asked(play)
    described = await play.lane.describe()
    stopped = await play.client.stop(play.conversation)
    ticket = await play.submit("a scheduled one")
    reason = await finished(play, ticket, 2)

    assert [] == list(described.raw_description.pending_activities)
    assert (False, TerminalReason.SUCCESS, ["p1"]) == (stopped, reason, list(await pending(play)))


async def test_the_details_of_a_lane_say_that_it_waits_for_approval(gated: Gated) -> None:
    play, _ = gated
    await asked(play)
    details = await shown_details(play.bench, play.conversation)

    assert details.startswith("**waiting for approval**")
    assert f"- waiting for approval: 1\n  - `{(await pending(play))['p1'].approval_id}`" in details


async def test_chat_messages_answer_no_approval(gated: Gated) -> None:
    play, till = gated
    await asked(play)
    ticket = await play.submit("yes, do it")
    await finished(play, ticket, 2)
    calls = [part for message in await play.messages() for part in message.parts if isinstance(part, ToolCallPart)]

    assert (["p1"], 1, {}) == (list(await pending(play)), len(calls), dict(till.made))


# --- how the run that asked is judged -----------------------------------------------------------


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
