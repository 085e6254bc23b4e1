"""Answers in which the provider pauses, in tools of its own: the run goes on with them, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.stage import BOUND
from tests.integration.talks import Talk, Talks, look
from turnlane.agent.acceptance import Answer
from turnlane.agent.models import AnthropicModel, OpenAIModel
from turnlane.records.lane import RetryFacts
from turnlane.records.messages import ProviderPart
from turnlane.records.runs import TerminalReason
from turnlane.records.usage import Provenance, UsageValue
from turnlane.testing.fault_plan import CutAfter, Figures, Gate, HttpError, Pass, Paused, ToolCalls, ToolUse

pytestmark = pytest.mark.server

HOSTED = {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}
SEARCHED = ["text", "server_tool_use"]
WHOLE = [*SEARCHED, "web_search_tool_result", "text"]


async def opened(talks: Talks, *plan: Any, **options: Any) -> Talk:
    return await talks.open(AnthropicModel, *plan, extra=HOSTED, **options)


def kinds(message: dict[str, Any]) -> list[str]:
    """The blocks of a message on the wire."""
    return [block["type"] for block in message["content"]]


async def test_a_paused_answer_is_given_back_as_it_is_and_goes_on(talks: Talks) -> None:
    talk = await opened(talks, Paused("Looking."), Pass("It rains.", found=["srvtoolu_1"]), Pass("Yes."))

    result = await talk.turn()
    await talk.turn("sure?")

    first, second, third = talk.bodies
    asked, paused = second["messages"]
    assert (TerminalReason.SUCCESS, "Looking.It rains.") == (result.reason, result.text)
    assert ("assistant", SEARCHED) == (paused["role"], kinds(paused))
    assert ([asked], {"query": "news"}) == (first["messages"], paused["content"][1]["input"])
    assert WHOLE == kinds(third["messages"][1])
    assert paused["content"] == third["messages"][1]["content"][:2]


async def test_every_pause_is_a_step_that_counts_and_costs(talks: Talks) -> None:
    figures = Figures(input_tokens=10, output_tokens=1)
    pauses = [Paused(searches=[f"srvtoolu_{n}"], found=[f"srvtoolu_{n}"], usage=figures) for n in range(2)]
    talk = await opened(talks, *pauses, Pass("Done.", usage=figures))

    result = await talk.turn()

    said = result.message
    assert result.usage is not None and said is not None
    assert UsageValue(value=30, provenance=Provenance.COMPUTED) == result.usage.input_tokens
    assert (3, 4) == (len(talk.bodies), sum(isinstance(part, ProviderPart) for part in said.parts))


async def test_a_run_that_may_make_no_more_steps_stops_at_a_pause_and_the_next_is_accepted(talks: Talks) -> None:
    talk = await opened(talks, Paused("Looking."), Pass("What for?"), agent={"max_steps": 1})

    stopped = await talk.turn()
    await talk.turn("and?")

    assert (TerminalReason.POLICY_STOP, "max-steps") == (stopped.reason, stopped.policy_name)
    assert ["text"] == kinds(talk.bodies[1]["messages"][1])


async def test_an_acceptance_is_asked_about_the_whole_answer(talks: Talks) -> None:
    seen: list[str] = []

    def accept(answer: Answer) -> bool:
        seen.append(answer.text)
        return True

    talk = await opened(talks, Paused("Looking."), Pass(" Rain.", found=["srvtoolu_1"]), agent={"accept": accept})

    result = await talk.turn()

    assert (["Looking. Rain."], TerminalReason.SUCCESS) == (seen, result.reason)


async def test_calls_beside_a_hosted_one_run_and_the_search_goes_on_behind_their_results(talks: Talks) -> None:
    calls = ToolCalls([ToolUse("look", {"at": "the sky"})], text="Looking.", searches=["srvtoolu_1"])
    talk = await opened(talks, calls, Pass("It rains.", found=["srvtoolu_1"]), Pass("Yes."), tools=(look,))

    result = await talk.turn()
    await talk.turn("sure?")

    _, second, third = talk.bodies
    assert TerminalReason.SUCCESS is result.reason
    assert [*SEARCHED, "tool_use"] == kinds(second["messages"][1])
    assert [[*SEARCHED, "tool_use"], ["tool_result"], ["web_search_tool_result", "text"]] == [
        kinds(message) for message in third["messages"][1:4]
    ]


async def test_what_is_injected_at_a_pause_is_heard_and_the_search_that_nobody_ended_goes(talks: Talks) -> None:
    gate = Gate(of=Paused("Looking."), after=3)
    talk = await opened(talks, gate, Pass("In Rome, too."))
    ticket = await talk.submit("weather?")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()

    injected = await talk.submit("and in Rome?", policy="inject")
    gate.event.set()
    result, joined = await ticket.result(BOUND), await injected.result(BOUND)

    said = talk.bodies[1]["messages"]
    assert ("Looking.In Rome, too.", result.run_id) == (result.text, joined.run_id)
    assert [["text"], ["text"], ["text"]] == [kinds(message) for message in said]


async def test_a_step_behind_a_pause_that_is_cut_is_made_again_from_the_pause(talks: Talks) -> None:
    cut = CutAfter(of=Pass("It rains.", found=["srvtoolu_1"]), events=3)
    talk = await opened(talks, Paused("Looking."), cut, Pass("It rains.", found=["srvtoolu_1"]))

    result = await talk.turn()

    assert "Looking.It rains." == result.text
    assert talk.bodies[1]["messages"] == talk.bodies[2]["messages"]


async def test_another_provider_goes_on_with_what_was_said_before_the_pause(talks: Talks) -> None:
    plan = [Paused("Looking."), HttpError(500), Pass(" It rains.")]
    talk = await opened(talks, *plan, fallback=OpenAIModel, agent={"retry": RetryFacts(max_tries=1)})

    result = await talk.turn()

    assert (TerminalReason.SUCCESS, "Looking. It rains.") == (result.reason, result.text)
    assert ["user", "assistant", "user"] == [item["role"] for item in talk.bodies[-1]["input"]]
