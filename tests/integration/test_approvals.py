"""Approvals on a real lane: what waits, what an answer does, and what never happens twice."""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import asked, open_till, outputs, pending, respond
from tests.integration.stage import BOUND
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server


async def test_an_approved_call_runs_once_and_the_model_goes_on(bench: Bench, serve: Serve, conversation: str) -> None:
    play, till = await open_till(bench, serve, conversation)
    first = await asked(play)
    waiting = (await pending(play))["p1"]
    ticket = await respond(play, "p1", True)
    second = await play.stage.call(2)
    heard = second.heard
    second.answer("Paid.")
    result = await ticket.result(BOUND)

    assert (TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS) == (first.reason, result.reason)
    assert ("pay", {"sum": 5}) == (waiting.tool_name, waiting.input)
    assert [("user", "go"), ("assistant", "p1"), ("tool", "p1")] == heard
    assert ({"pay": 1}, {"p1": "paid 5"}, {}) == (dict(till.made), await outputs(play), await pending(play))
