"""Stop policies and acceptance: their names, and what they see and say."""

from __future__ import annotations

from typing import Any

import pytest

from turnlane.agent import Agent, ScriptedModel
from turnlane.agent.acceptance import Answer, require_output, waits_for_approval
from turnlane.agent.stopping import StepResult, StopContext, StopPolicy, called, stop_policies
from turnlane.records.base import ProviderEnvelope
from turnlane.records.messages import (
    FilePart,
    Part,
    ProviderPart,
    ReasoningPart,
    RefusalPart,
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.runs import TerminalReason
from turnlane.records.usage import Usage, stated

CALL = ToolCallPart(call_id="1", tool_name="look", input={"at": "it"})
RESULT = ToolResultPart(call_id="1", tool_name="look", outcome=ToolOutcome.SUCCESS, output="seen")
ASKED = ToolApprovalRequestPart(approval_id="a", call_id="1")
APPROVED = ToolApprovalResponsePart(approval_id="a", approved=True)


def never(context: StopContext) -> bool:
    return False


def agent(**options: Any) -> Agent:
    return Agent(name="a", model=ScriptedModel(script=lambda request: []), **options)


def answer(*parts: Part, reason: TerminalReason = TerminalReason.SUCCESS) -> Answer:
    return Answer(conversation_id="c", run_id="r", reason=reason, parts=parts, context=None, metadata=None)


def seen(*steps: StepResult) -> StopContext:
    return StopContext(
        conversation_id="c",
        run_id="r",
        steps=steps,
        usage=stated(Usage()),
        context=None,
        metadata=None,
        tenant=None,
    )


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "  ", "max-steps", "x" * 129, "two\nlines", "bell\x07"])
def test_a_name_that_cannot_be_a_policys_is_refused_when_the_agent_is_made(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        agent(stop_when={name: never})


def test_two_policies_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        agent(stop_when=[StopPolicy("enough", never), StopPolicy("enough", never)])


def test_policies_keep_the_order_in_which_they_were_declared() -> None:
    given = stop_policies({"second-thoughts": never, "a-first": never})

    assert ["second-thoughts", "a-first"] == [policy.name for policy in given]


@pytest.mark.parametrize(
    ("options", "judges"),
    [({}, False), ({"stop_when": {"enough": never}}, True), ({"accept": require_output()}, True)],
    ids=["nothing", "a policy", "an acceptance"],
)
def test_a_lane_asks_for_a_judgement_only_where_there_is_something_to_judge(
    options: dict[str, Any], judges: bool
) -> None:
    assert judges is agent(**options).facts.judges


def test_a_lane_knows_the_names_of_the_models_that_may_take_over() -> None:
    second = ScriptedModel(name="second", script=lambda request: [])

    assert ("second",) == agent(fallbacks=[second]).facts.fallbacks


# --- what a condition sees ----------------------------------------------------------------------


def test_a_condition_sees_the_calls_and_results_of_all_steps() -> None:
    context = seen(StepResult(0, (TextPart(text="hm"), CALL), (RESULT,)), StepResult(1, (TextPart(text="so"),), ()))

    assert ((CALL,), (RESULT,), 1) == (context.calls, context.results, context.step_number)
    assert ["hm", "so"] == [step.text for step in context.steps]


@pytest.mark.parametrize(("name", "stops"), [("look", True), ("leap", False)])
def test_a_run_can_be_stopped_by_the_tool_that_it_called(name: str, stops: bool) -> None:
    assert stops is called(name)(seen(StepResult(0, (CALL,), (RESULT,))))


# --- acceptance ---------------------------------------------------------------------------------

OPAQUE = ProviderPart(envelope=ProviderEnvelope(provider="openai", data={"type": "search"}))
FILE = FilePart(media_type="image/png", reference="blob:1")


@pytest.mark.parametrize(
    ("parts", "finished", "stopped"),
    [
        ((), False, False),
        ((TextPart(text=" \n"),), False, False),
        ((ReasoningPart(text="I think so"),), False, False),
        ((RefusalPart(text="no"),), False, False),
        ((CALL, RESULT), False, True),
        ((ReasoningPart(text="hm"), CALL, RESULT), False, True),
        ((TextPart(text="yes"),), True, True),
        ((FILE,), True, True),
        ((OPAQUE,), True, True),
    ],
    ids=["nothing", "blank", "reasoning", "refusal", "calls", "reasoned calls", "text", "file", "opaque"],
)
def test_required_output_is_something_a_person_or_a_provider_reads(
    parts: tuple[Part, ...], finished: bool, stopped: bool
) -> None:
    accept = require_output()
    reasons = (TerminalReason.SUCCESS, TerminalReason.PROVIDER_STOP, TerminalReason.POLICY_STOP)

    assert [finished, finished, stopped] == [accept(answer(*parts, reason=reason)) for reason in reasons]


@pytest.mark.parametrize(
    ("parts", "waits"),
    [
        ((CALL,), False),
        ((CALL, ASKED), True),
        ((CALL, ASKED, APPROVED), False),
        ((CALL, ASKED.model_copy(update={"is_automatic": True}), APPROVED, RESULT), False),
    ],
    ids=["no question", "a question", "an answer", "an automatic answer"],
)
def test_an_answer_is_not_judged_while_it_waits_for_an_approval(parts: tuple[Part, ...], waits: bool) -> None:
    assert waits is waits_for_approval(parts)
