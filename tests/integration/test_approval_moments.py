"""Approvals at bad moments: runs that end early, budgets that are gone, and as much as may be asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import (
    PAY,
    Gated,
    Till,
    asked,
    finished,
    open_till,
    outputs,
    pending,
    respond,
)
from tests.integration.play import open_play, run_id
from tests.integration.stage import BOUND
from turnlane.agent import (
    Approvals,
    SpendLimits,
    tool,
)
from turnlane.records.errors import (
    TurnlaneError,
)
from turnlane.records.messages import (
    Role,
    ToolApprovalResponsePart,
)
from turnlane.records.runs import RunState, TerminalReason

pytestmark = pytest.mark.server


# --- runs that end early ------------------------------------------------------------------------


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


async def test_an_answering_run_that_is_interrupted_before_it_looks_closes_its_call(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    till = Till()
    play = await open_play(bench, serve, conversation, hold="load_answers", tools=till.tools())
    await asked(play)
    ticket = await respond(play, "p1", True)
    await play.barrier.until_reached()
    await play.client.interrupt(conversation, run_id(ticket))
    play.barrier.release()
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


@pytest.mark.parametrize("how", ["cancelled", "abandoned"])
async def test_an_answering_run_that_ends_in_the_queue_closes_its_call(gated: Gated, how: str) -> None:
    play, till = gated
    await asked(play)
    busy = await play.submit("busy")
    held = await play.stage.call(2)
    ticket = await respond(play, "p1", True)
    if how == "cancelled":
        await play.client.cancel(play.conversation, run_id(ticket))
    else:
        run = await play.until_state(ticket, RunState.QUEUED)
        await play.client.abandon(play.conversation, run.id, expected_revision=run.revision, stale_owner=True)
    held.answer("Yes.")
    await busy.result(BOUND)
    told = (await outputs(play))["p1"]

    assert isinstance(told, dict)
    assert ("INTERRUPTED", {}, {}) == (told["error"], dict(till.made), await pending(play))


# --- how much -----------------------------------------------------------------------------------


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
