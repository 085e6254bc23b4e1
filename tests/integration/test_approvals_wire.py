"""Approvals with the real SDKs: what a provider is sent before, between and after question and answer is legal."""

from __future__ import annotations

import json

import pytest

from tests.integration.stage import BOUND
from tests.integration.talks import Talks
from turnlane.agent import tool
from turnlane.agent.models import Model
from turnlane.records.runs import TerminalReason
from turnlane.testing.fault_plan import Pass, ToolCalls, ToolUse

pytestmark = pytest.mark.server


@pytest.mark.parametrize("approved", [True, False], ids=["approved", "denied"])
async def test_a_provider_hears_a_legal_story_whatever_was_answered_and_said_meanwhile(
    talks: Talks, kind: type[Model], approved: bool
) -> None:
    made: list[int] = []

    @tool(approval="user-approval")
    def pay(total: int) -> str:
        """Pay."""
        made.append(total)
        return f"paid {total}"

    calls = [ToolUse("pay", {"total": 5}), ToolUse("pay", {"total": 6})]
    talk = await talks.open(kind, ToolCalls(calls), Pass("Patience."), Pass("Done."), tools=(pay,))
    first = await talk.turn("pay both")
    meanwhile = await talk.turn("hello?")
    waiting = await talk.client.pending_approvals(talk.conversation)
    tickets = [
        await talk.client.respond(talk.conversation, each.approval_id, approved, reason="because") for each in waiting
    ]
    ends = [(await ticket.result(BOUND)).reason for ticket in tickets]

    told = json.dumps(talk.bodies[2])
    assert [TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS] == [first.reason, meanwhile.reason]
    assert [TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS] == ends
    assert 3 == len(talk.bodies)
    assert 2 == json.dumps(talk.bodies[1]).count("waiting for approval")
    assert ([5, 6] if approved else []) == sorted(made)
    assert ("paid 5" in told and "paid 6" in told) if approved else 2 == told.count("DENIED")
