"""Summaries made by real SDKs, against a server that judges each request, and what a compaction leaves as it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.stage import BOUND
from tests.integration.talks import KEY_NAME, look
from turnlane.activities.providers.registry import Providers
from turnlane.agent import Agent, AnthropicModel, Compaction, Judged, Model, OpenAIChatModel, OpenAIModel, Prices
from turnlane.client import Turnlane
from turnlane.records.compaction import CompactionResult
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.records.usage import UNAVAILABLE_COST, CostValue, Provenance, Usage, UsageValue
from turnlane.testing.fault_plan import Figures, HttpError, Length, Pass, Reasoning, Step, ToolCalls, ToolUse
from turnlane.testing.fault_server import FaultServer

pytestmark = pytest.mark.server

GOOD = json.dumps({"goal": "to know", "facts": ["it is 42"]})
FIGURES = Figures(input_tokens=100, output_tokens=10)


@dataclass
class Talk:
    """A conversation whose agent and whose summariser are two models, each with its own server."""

    client: Turnlane
    conversation: str
    answers: FaultServer
    summaries: FaultServer

    async def turn(self, text: str = "hi") -> TerminalReason:
        ticket = await self.client.submit(self.conversation, text)
        return (await ticket.result(BOUND)).reason

    @property
    def refusals(self) -> list[str | None]:
        """What broke a rule of the providers."""
        return [request.refusal for server in (self.answers, self.summaries) for request in server.refusals]


class Talks:
    """Opens conversations."""

    def __init__(self, bench: Bench, serve: Serve, conversation: str) -> None:
        self._bench = bench
        self._serve = serve
        self._conversation = conversation
        self.servers: list[FaultServer] = []
        self.providers = Providers()

    async def open(
        self,
        kind: type[Model],
        answers: list[Step],
        summaries: list[Step],
        prices: Prices = Prices(input="1", output="10"),  # noqa: B008 (a frozen record)
        **options: Any,
    ) -> Talk:
        """A conversation that answers, and is summed up, by these plans."""
        for plan in (answers, summaries):
            self.servers.append(await FaultServer(plan).__aenter__())
        own, other = (self._model(kind, server) for server in self.servers)
        agent = Agent(
            name="faulty",
            model=own,
            tools=[look],
            compaction=Compaction(model=other, **options),
            prices={"test-model": prices},
        )
        await self._serve(agent, providers=self.providers)
        return Talk(self._bench.client(), self._conversation, *self.servers)

    def _model(self, kind: type[Model], server: FaultServer) -> Model:
        base_url = server.anthropic_url if kind is AnthropicModel else server.openai_url
        return kind(name="test-model", base_url=base_url, api_key_env=KEY_NAME)


@pytest.fixture
async def talks(bench: Bench, serve: Serve, conversation: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Talks]:
    monkeypatch.setenv(KEY_NAME, "sk-compaction-test")
    opened = Talks(bench, serve, conversation)
    yield opened
    await opened.providers.aclose()
    for server in opened.servers:
        await server.__aexit__(None, None, None)


async def test_a_model_sums_the_conversation_up(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, [Pass("42")], [Pass(f"```json\n{GOOD}\n```", usage=FIGURES)])
    await talk.turn("what is six times seven?")
    await talk.turn("thanks")
    reply = await talk.client.compact(talk.conversation)
    await talk.turn("and now?")
    asked = json.dumps(talk.summaries.requests[0].body)
    later = json.dumps(talk.answers.requests[-1].body)

    assert CompactionResult.APPLIED is reply.outcome
    assert ("what is six times seven?" in asked, "it is 42" in later, "six times seven" in later) == (True, True, False)
    assert reply.usage is not None and reply.usage.cost is not None
    assert (100, 0.0002) == (reply.usage.input_tokens.value, reply.usage.cost.value)
    assert [] == talk.refusals


async def test_the_next_summary_is_given_the_last_one(talks: Talks) -> None:
    talk = await talks.open(OpenAIChatModel, [Pass("ok")], [Pass(GOOD)])
    for text in ("one", "two", "three"):
        await talk.turn(text)
        await talk.client.compact(talk.conversation)
    first, second = (json.dumps(request.body) for request in talk.summaries.requests)

    assert ("earlier-summary" in first, "it is 42" in second, "two" in second) == (False, True, True)


async def test_an_answer_that_does_not_fit_is_told_so_and_mended(talks: Talks, kind: type[Model]) -> None:
    talk = await talks.open(kind, [Pass("ok")], [Pass('{"facts": "none"}', usage=FIGURES), Pass(GOOD, usage=FIGURES)])
    await talk.turn("one")
    await talk.turn("two")
    reply = await talk.client.compact(talk.conversation)
    repair = json.dumps(talk.summaries.requests[1].body)

    assert CompactionResult.APPLIED is reply.outcome
    assert "does not fit the schema" in repair
    assert reply.usage is not None and 200 == reply.usage.input_tokens.value
    assert [] == talk.refusals


@pytest.mark.parametrize(
    ("plan", "failure_class", "code", "calls"),
    [
        ([Pass("I would rather not.")], FailureClass.MALFORMED_RESPONSE, "SUMMARY_DOES_NOT_FIT", 2),
        ([Length("{")], FailureClass.MALFORMED_RESPONSE, "SUMMARY_CUT_OFF", 1),
        ([HttpError(500)], FailureClass.SERVER_ERROR, None, 1),
    ],
    ids=["no JSON", "cut off", "unavailable"],
)
async def test_a_model_that_fails_leaves_everything_as_it_was(
    talks: Talks, plan: list[Step], failure_class: FailureClass, code: str | None, calls: int
) -> None:
    talk = await talks.open(OpenAIChatModel, [Pass("ok")], plan)
    await talk.turn("one")
    await talk.turn("two")
    reply = await talk.client.compact(talk.conversation)
    messages = (await talk.client.messages(talk.conversation)).items

    assert CompactionResult.FAILED is reply.outcome
    assert reply.failure is not None
    assert failure_class is reply.failure.failure_class
    assert code is None or code == reply.failure.code
    assert (calls, 4) == (len(talk.summaries.requests), len(messages))


async def test_a_summariser_that_is_down_costs_no_answer(talks: Talks) -> None:
    talk = await talks.open(OpenAIChatModel, [Pass("ok")], [HttpError(500)], turns=1)
    reasons = [await talk.turn(text) for text in ("one", "two", "three")]

    assert [TerminalReason.SUCCESS] * 3 == reasons
    assert [] == talk.refusals


async def test_a_long_stretch_is_summed_up_in_pieces(talks: Talks) -> None:
    talk = await talks.open(OpenAIChatModel, [Pass("ok")], [Pass(GOOD, usage=FIGURES)], characters_per_call=60)
    for number in range(4):
        await talk.turn(f"a question of some length: {number}")
    reply = await talk.client.compact(talk.conversation)
    asked = [json.dumps(request.body) for request in talk.summaries.requests]

    assert 3 == len(asked)
    assert [False, True, True] == ["earlier-summary" in body for body in asked]
    assert reply.usage is not None and 300 == reply.usage.input_tokens.value


def thinking(body: Any) -> list[str]:
    """A digest of every piece of thinking in a request, of all that it consists of."""
    items = body.get("input") or [
        block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]
    ]
    found = [item for item in items if isinstance(item, dict) and item.get("type") in ("reasoning", "thinking")]
    return [hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest() for item in found]


@pytest.mark.parametrize("store_place", ["file", "postgresql"], indirect=True)
@pytest.mark.parametrize("loses_lane", [False, True], ids=["", "over a lost lane"])
@pytest.mark.parametrize("kind", [AnthropicModel, OpenAIModel], ids=["anthropic", "responses"])
async def test_signed_thinking_of_the_turns_that_stay_goes_back_byte_for_byte(
    talks: Talks, kind: type[Model], loses_lane: bool
) -> None:
    odd = "  Hm,\n“7 * 6” \u2028 é́ \t"
    steps: list[Step] = [
        Pass("old", reasoning=Reasoning("something else")),
        ToolCalls([ToolUse("look", {"at": "one"})], reasoning=Reasoning(odd)),
        ToolCalls([ToolUse("look", {"at": "two"})], reasoning=Reasoning(odd + " again")),
        Pass("seen", reasoning=Reasoning("so it is")),
        Pass("after"),
    ]
    talk = await talks.open(kind, steps, [Pass(GOOD)])
    await talk.turn("first")
    await talk.turn("second")
    before = thinking(talk.answers.requests[3].body)
    reply = await talk.client.compact(talk.conversation)
    if loses_lane:
        await talk.client.temporal.get_workflow_handle(f"lane/{talk.conversation}").terminate()
    await talk.turn("third")
    after = thinking(talk.answers.requests[-1].body)

    assert CompactionResult.APPLIED is reply.outcome
    assert 2 <= len(before) <= 3
    assert before[-2:] == after[:2]
    assert "something else" not in json.dumps(talk.answers.requests[-1].body)
    assert [] == talk.refusals


# --- what judging cost --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "total"),
    [
        (CostValue(value=0.75, currency="USD", provenance=Provenance.PROVIDER_REPORTED), 1.0),
        (None, None),
    ],
    ids=["with its cost", "without"],
)
async def test_what_a_threshold_spent_that_said_no_is_in_the_runs_total(
    talks: Talks, cost: CostValue | None, total: float | None
) -> None:
    spent = Usage(input_tokens=UsageValue.reported(400), output_tokens=UsageValue.reported(40), cost=cost)
    answer = Pass("42", usage=Figures(input_tokens=1000, output_tokens=100))
    prices = Prices(input="150", output="1000")
    talk = await talks.open(
        OpenAIModel, [answer], [Pass(GOOD)], prices, threshold=lambda state: Judged(False, usage=spent)
    )
    ticket = await talk.client.submit(talk.conversation, "hi")
    ended = await ticket.result(BOUND)
    spend = await talk.client.spend(talk.conversation)

    computed = Provenance.COMPUTED
    told = UNAVAILABLE_COST if total is None else CostValue(value=total, currency="USD", provenance=computed)
    assert ended.usage is not None
    assert (told, False) == (ended.usage.cost, ended.usage.partial)
    assert UsageValue(value=1400, provenance=computed) == ended.usage.input_tokens
    assert UsageValue(value=140, provenance=computed) == ended.usage.output_tokens
    assert (0, 1400) == (len(talk.summaries.requests), spend.total.input_tokens.value)


async def test_who_asks_hears_what_judging_cost(talks: Talks) -> None:
    spent = Usage(input_tokens=UsageValue.reported(400), output_tokens=UsageValue.reported(40))
    talk = await talks.open(
        OpenAIModel, [Pass("ok")], [Pass(GOOD)], threshold=lambda state: Judged(state.turns > 1, usage=spent)
    )
    await talk.turn("one")
    unneeded = await talk.client.compact(talk.conversation)
    spend = await talk.client.spend(talk.conversation)
    await talk.turn("two")
    applied = await talk.client.compact(talk.conversation)

    assert (CompactionResult.NOT_NEEDED, spent) == (unneeded.outcome, unneeded.usage)
    assert 2 * 400 + Figures().input_tokens == spend.total.input_tokens.value
    assert CompactionResult.APPLIED is applied.outcome
    assert applied.usage is not None and 400 < (applied.usage.input_tokens.value or 0)
