"""Rules of approval: whose word counts about a call, and what it may be."""

from __future__ import annotations

from typing import Any

import pytest

from turnlane.agent import (
    Agent,
    ApprovalQuestion,
    ApprovalResponse,
    Approvals,
    ApprovalStatus,
    Ruling,
    ScriptedModel,
    tool,
)
from turnlane.records.approvals import PendingApproval, answer_key, approval_id_of

QUESTION = ApprovalQuestion(tool="pay", call_id="c1", input={"sum": 5}, conversation_id="c", run_id="r")
MODEL = ScriptedModel(script=lambda request: [])
REQUEST = PendingApproval(
    conversation_id="c", run_id="r", message_id="m", approval_id="a", call_id="c1", tool_name="pay", input={}
)
RESPONSE = ApprovalResponse(responder="ann", conversation_id="c", request=REQUEST, approved=True)


def large_ones(question: ApprovalQuestion) -> str:
    arguments = question.input
    assert isinstance(arguments, dict)
    return "user-approval" if arguments["sum"] == 5 else "approved"


async def never(question: ApprovalQuestion) -> Ruling:
    return Ruling(ApprovalStatus.DENIED, "never")


@pytest.mark.parametrize(
    ("policy", "own", "expected"),
    [
        (None, None, "not-applicable"),
        (None, "user-approval", "user-approval"),
        (None, large_ones, "user-approval"),
        ({}, "denied", "denied"),
        ({"look": "denied"}, None, "not-applicable"),
        ({"pay": "approved"}, "user-approval", "approved"),
        ({"pay": "not-applicable"}, "user-approval", "not-applicable"),
        ({"pay": large_ones}, None, "user-approval"),
        (large_ones, "denied", "user-approval"),
        (never, None, "denied"),
    ],
)
async def test_the_agents_word_counts_before_the_tools_own(policy: Any, own: Any, expected: str) -> None:
    ruling = await Approvals(policy=policy).judge(QUESTION, own)

    assert expected == ruling.status.value


async def test_a_policy_may_give_a_reason() -> None:
    assert Ruling(ApprovalStatus.DENIED, "never") == await Approvals(policy=never).judge(QUESTION)


@pytest.mark.parametrize("answer", ["yes", "", None, True])
async def test_an_answer_that_is_no_status_is_the_policys_mistake(answer: Any) -> None:
    with pytest.raises(ValueError):
        await Approvals(policy=lambda question: answer).judge(QUESTION)


@pytest.mark.parametrize(
    "wrong",
    [{"policy": {"pay": "perhaps"}}, {"expires_after": 0}, {"expires_after": -1.0}, {"expires_after": float("inf")}],
)
def test_rules_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Approvals(**wrong)


def test_a_tool_with_a_status_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError):
        tool(approval="perhaps")(lambda: None)


@pytest.mark.parametrize(
    ("authorize", "expected"),
    [(None, True), (lambda response: response.responder == "ann", True), (lambda response: False, False)],
)
async def test_without_a_hook_everybody_may_answer(authorize: Any, expected: bool) -> None:
    assert expected is await Approvals(authorize=authorize).permits(RESPONSE)


def test_an_agent_has_rules_where_it_or_one_of_its_tools_says_something() -> None:
    @tool(approval="user-approval")
    def pay() -> None: ...

    @tool
    def look() -> None: ...

    own = Approvals(expires_after=5)

    assert Agent(name="a", model=MODEL, tools=[look]).approval_rules is None
    assert Approvals() == Agent(name="a", model=MODEL, tools=[pay, look]).approval_rules
    assert own is Agent(name="a", model=MODEL, approvals=own).approval_rules


def test_each_place_of_a_run_has_an_approval_id_of_its_own() -> None:
    ids = {approval_id_of("c", "r", *place) for place in [(1, 0, 1, 1), (1, 0, 2, 1), (2, 0, 1, 1), (1, 1, 1, 1)]}

    assert 4 == len(ids)
    assert approval_id_of("c", "r", 1, 0, 1, 1) in ids
    assert len(answer_key("a" * 200)) <= 256
