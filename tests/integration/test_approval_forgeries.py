"""Approvals that are not genuine, or not any more: nothing is done that nobody was asked about."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Bench
from tests.integration.approval_stage import (
    SHIP,
    Gated,
    Till,
    asked,
    finished,
    respond,
    tamper,
    working,
)
from tests.integration.play import Play
from tests.integration.stage import BOUND
from turnlane.agent import (
    ApprovalKeys,
    tool,
)
from turnlane.records.runs import RunState, TerminalReason

pytestmark = pytest.mark.server

KEYS = ApprovalKeys({"k1": b"k" * 32})


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
    async with working(play, till.tools(), approval_keys=KEYS):
        await asked(play)
        await tamper(
            bench,
            "UPDATE turnlane_segment SET parts = replace(replace(parts, :old, :new), :reason, '') WHERE slot = 0",
            old=old,
            new=new,
            reason=',"reason":null',
        )
        result = await (await respond(play, "p1", True)).result(BOUND)

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, code) == (result.reason, result.failure.code)
    assert ({}, 1) == (dict(till.made), len(play.stage.calls))
    assert "signature" not in json.dumps([part.model_dump() for part in result.message.parts] if result.message else [])


async def test_a_signed_question_is_acted_on_where_the_key_is_known_and_nowhere_else(
    bench: Bench, conversation: str
) -> None:
    till = Till()
    play = Play(bench, bench.client(), conversation, bench.store)
    async with working(play, till.tools(), approval_keys=KEYS):
        await asked(play)
        await asked(play, SHIP, name="again", number=2)
    rotated = ApprovalKeys({"k2": b"n" * 32, "k1": b"k" * 32})
    async with working(play, till.tools(), approval_keys=rotated):
        known = await finished(play, await respond(play, "p1", True), 3)
    async with working(play, till.tools()):
        unknown = await (await respond(play, "s1", True)).result(BOUND)

    assert (TerminalReason.SUCCESS, TerminalReason.RUNTIME_FAILURE) == (known, unknown.reason)
    assert {"pay": 1} == dict(till.made)


async def test_arguments_that_the_tool_takes_no_more_fail_the_run(bench: Bench, conversation: str) -> None:
    @tool(approval="user-approval")
    def pay(total: str) -> str:
        """Pay."""
        return total

    play = Play(bench, bench.client(), conversation, bench.store)
    async with working(play, Till().tools()):
        await asked(play)
    async with working(play, [pay]):
        result = await (await respond(play, "p1", True)).result(BOUND)

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "APPROVAL_ARGUMENTS") == (result.reason, result.failure.code)
    assert 1 == len(play.stage.calls)


async def test_an_answer_whose_question_is_gone_by_then_fails_the_run(gated: Gated) -> None:
    play, till = gated
    await asked(play)
    busy = await play.submit("busy")
    held = await play.stage.call(2)
    ticket = await respond(play, "p1", True)
    await tamper(play.bench, "UPDATE turnlane_segment SET approval_id = NULL, approval = NULL WHERE call_id = 'p1'")
    held.answer("Yes.")
    await busy.result(BOUND)
    result = await ticket.result(BOUND)

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, "APPROVAL_UNKNOWN") == (result.reason, result.failure.code)
    assert ({}, 2, RunState.FAILED) == (dict(till.made), len(play.stage.calls), result.state)
