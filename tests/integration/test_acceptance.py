"""Acceptance: an answer is judged before it counts as one."""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Serve
from tests.integration.looping import MARK, ended, scripted, turn
from turnlane.agent.acceptance import Answer, require_output
from turnlane.agent.models import Action, Call, Say, Stop, Think
from turnlane.agent.stopping import called
from turnlane.records.messages import MessageStatus
from turnlane.records.runs import RunState, TerminalReason

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    "actions",
    [[Think("hm")], [Say("  \n ")], [], [Think("and then"), Stop("length")]],
    ids=["reasoning", "blank", "nothing", "reasoning to the limit"],
)
async def test_an_answer_without_output_is_rejected(
    bench: Bench, serve: Serve, conversation: str, actions: list[Action]
) -> None:
    result = await turn(bench, serve, conversation, scripted(actions, accept=require_output()))

    assert (TerminalReason.OUTPUT_REJECTED, RunState.FAILED) == (result.reason, result.state)
    assert result.message is not None
    assert MessageStatus.FAILED is result.message.status


async def test_an_answer_with_output_is_accepted_also_where_it_was_cut(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    agent = scripted([Say("as far as"), Stop("length")], accept=require_output())

    assert TerminalReason.PROVIDER_STOP is (await turn(bench, serve, conversation, agent)).reason


async def test_the_calls_of_a_stopped_run_are_output(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = scripted([Call("look")], max_steps=1, accept=require_output())

    assert (TerminalReason.POLICY_STOP, "max-steps") == ended(await turn(bench, serve, conversation, agent))


async def test_an_application_judges_the_whole_answer(bench: Bench, serve: Serve, conversation: str) -> None:
    judged: list[Answer] = []

    async def accept(answer: Answer) -> bool:
        judged.append(answer)
        return "seen" in answer.text

    agent = scripted([Say("I see. "), Call("look")], [Say("Nothing to be seen.")], accept=accept)

    result = await turn(bench, serve, conversation, agent)

    (answer,) = judged
    assert TerminalReason.SUCCESS is result.reason
    assert (TerminalReason.SUCCESS, "I see. Nothing to be seen.") == (answer.reason, answer.text)
    assert result.message is not None
    assert result.message.parts == answer.parts


async def test_a_stopped_run_may_be_rejected_and_then_names_no_policy(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    agent = scripted([Call("look")], stop_when={"looked": called("look")}, accept=lambda answer: False)

    assert (TerminalReason.OUTPUT_REJECTED, None) == ended(await turn(bench, serve, conversation, agent))


@pytest.mark.parametrize("steps", [1, 50], ids=["at a boundary", "at the end"])
async def test_an_acceptance_that_raises_fails_the_run_as_the_applications_fault(
    bench: Bench, serve: Serve, conversation: str, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    def accept(answer: Answer) -> bool:
        raise KeyError(MARK)

    agent = scripted([Call("look")], [Say("so")], max_steps=steps, accept=accept)

    result = await turn(bench, serve, conversation, agent)

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert "ACCEPTANCE_FAILED" == result.failure.code
    assert MARK not in caplog.text
