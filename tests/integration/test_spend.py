"""Spend, over the real SDKs: every attempt is counted once, and budgets end what would go beyond them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conftest import Bench
from tests.integration.stage import BOUND
from tests.integration.talks import Talk, Talks
from turnlane.agent import AnthropicModel, OpenAIChatModel, OpenAIModel, Prices, SpendLimits, tool
from turnlane.client import Result
from turnlane.records.base import JsonObject
from turnlane.records.errors import BudgetExceededError, BudgetUnenforceableError
from turnlane.records.events import TerminalEvent
from turnlane.records.ledger import LedgerEvent, LedgerKind
from turnlane.records.usage import Provenance, Usage
from turnlane.testing.fault_plan import CutAfter, Figures, Gate, HttpError, Pass, Step, ToolCalls, ToolUse, UsageMissing

pytestmark = pytest.mark.server

DEAR = {"test-model": Prices(input="1000", output="1000", cache_read="1000", cache_write="1000")}
"""A thousand a million: a thousandth for a token."""


def spent(inputs: int, outputs: int = 0) -> Figures:
    return Figures(input_tokens=inputs, output_tokens=outputs)


def looking(inputs: int, outputs: int = 0) -> ToolCalls:
    return ToolCalls([ToolUse("look", {"at": "it"})], usage=spent(inputs, outputs))


def cost(usage: Usage | None) -> float | None:
    return usage.cost.value if usage is not None and usage.cost is not None else None


async def terminal_of(talk: Talk, result: Result) -> TerminalEvent:
    """How the end of a run was told to watchers."""
    async with asyncio.timeout(BOUND):
        async for event in talk.client.events(talk.conversation, from_seq=0):
            if isinstance(event, TerminalEvent) and event.run_id == result.run_id:
                return event
    raise AssertionError("the run has no terminal event")


async def ledger(bench: Bench, conversation: str, kind: LedgerKind) -> list[LedgerEvent]:
    return [event for event in (await bench.store.read_events(conversation)).items if event.kind == kind]


async def responses(bench: Bench, conversation: str) -> list[JsonObject]:
    return [event.payload for event in await ledger(bench, conversation, LedgerKind.PROVIDER_RESPONSE)]


async def test_steps_add_up_to_a_computed_total(talks: Talks, bench: Bench) -> None:
    plan: list[Step] = [looking(400, 100), looking(700, 300), Pass("done", usage=spent(900, 600))]
    talk = await talks.open(OpenAIChatModel, *plan, agent={"prices": DEAR})
    result = await talk.turn()

    told = await responses(bench, talk.conversation)
    terminal = await terminal_of(talk, result)

    assert result.usage is not None
    assert (2000, 1000, 3.0) == (result.usage.input_tokens.value, result.usage.output_tokens.value, cost(result.usage))
    assert Provenance.COMPUTED is result.usage.input_tokens.provenance
    usages = [Usage.model_validate_json(json.dumps(event["usage"])) for event in told]
    assert [0.5, 1.0, 1.5] == [cost(usage) for usage in usages]
    assert {Provenance.PROVIDER_REPORTED} == {usage.input_tokens.provenance for usage in usages}
    assert [(0, 1), (1, 1), (2, 1)] == [(event["step"], event["attempt"]) for event in told]
    assert terminal.metrics is not None
    assert (False, 3.0) == (terminal.metrics.partial, cost(terminal.metrics.usage))


async def test_an_attempt_that_was_cut_is_counted_with_what_it_had_told(talks: Talks, bench: Bench) -> None:
    plan: list[Step] = [CutAfter(events=3, of=Pass("lost", usage=spent(1200, 50))), Pass("kept", usage=spent(1300, 60))]
    talk = await talks.open(AnthropicModel, *plan, agent={"prices": DEAR})
    result = await talk.turn()

    one, two = await responses(bench, talk.conversation)

    assert ("kept", 2500, None) == (result.text, result.usage and result.usage.input_tokens.value, cost(result.usage))
    assert result.usage is not None
    assert result.usage.partial
    assert [(0, 1, None), (0, 2, "stop")] == [(told["step"], told["attempt"], told["finish"]) for told in (one, two)]
    raw = one["raw_usage"]
    assert isinstance(raw, dict)
    assert 1200 == raw["input_tokens"]
    assert 2 == len(talk.bodies)


async def test_each_attempt_has_a_row_and_the_run_has_their_sum(talks: Talks, bench: Bench) -> None:
    plan: list[Step] = [CutAfter(events=2, of=Pass("no", usage=spent(2_087_845))), Pass("yes", usage=spent(3_615_952))]
    talk = await talks.open(AnthropicModel, *plan)
    result = await talk.turn()

    told = await responses(bench, talk.conversation)

    assert result.usage is not None
    assert 5_703_797 == result.usage.input_tokens.value
    assert 2 == len({(event["token"], event["step"], event["attempt"]) for event in told})


async def test_an_interrupted_answer_counts_what_was_told_before_it_and_is_partial(talks: Talks, bench: Bench) -> None:
    gate = Gate(of=Pass("never whole", chunks=40, usage=spent(1200, 40)), after=4)
    talk = await talks.open(AnthropicModel, gate, agent={"prices": DEAR})
    ticket = await talk.submit("hi")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    await talk.client.interrupt(talk.conversation)
    result = await ticket.result(BOUND)
    gate.event.set()

    terminal = await terminal_of(talk, result)

    assert result.usage is not None
    assert (1200, True, None) == (result.usage.input_tokens.value, result.usage.partial, cost(result.usage))
    assert terminal.metrics is not None
    assert terminal.metrics.partial


async def test_usage_that_never_comes_is_unknown_and_not_zero(talks: Talks, bench: Bench) -> None:
    talk = await talks.open(OpenAIChatModel, UsageMissing(Pass("hello")), agent={"prices": DEAR})
    result = await talk.turn()
    total = await talk.client.spend(talk.conversation)

    assert result.usage is not None
    assert (None, None, True) == (result.usage.input_tokens.value, cost(result.usage), result.usage.partial)
    assert (1, 1, None) == (total.runs, total.missing, cost(total.total))


async def test_a_run_stopped_between_two_steps_tells_the_steps_it_had(
    talks: Talks, bench: Bench, conversation: str
) -> None:
    reached = asyncio.Event()

    @tool(read_only=True, name="look")
    async def hold(at: str) -> str:
        """Look, and be stopped at the second look."""
        if at == "it":
            return "seen"
        reached.set()
        await asyncio.Event().wait()
        return "never"

    second = ToolCalls([ToolUse("look", {"at": "that"})], usage=spent(20, 2))
    talk = await talks.open(OpenAIChatModel, looking(10, 1), second, tools=[hold], agent={"prices": DEAR})
    ticket = await talk.submit("hi")
    async with asyncio.timeout(BOUND):
        await reached.wait()
    await talk.client.interrupt(conversation)
    result = await ticket.result(BOUND)
    terminal = await terminal_of(talk, result)

    assert result.usage is not None
    assert (30, 3, 0.033) == (result.usage.input_tokens.value, result.usage.output_tokens.value, cost(result.usage))
    assert terminal.metrics is not None
    assert terminal.metrics.partial


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIModel, AnthropicModel])
async def test_a_call_that_was_refused_costs_nothing(talks: Talks, bench: Bench, kind: Any) -> None:
    talk = await talks.open(kind, HttpError(503), Pass("yes", usage=spent(10, 2)), agent={"prices": DEAR})
    result = await talk.turn()

    assert result.usage is not None
    assert (10, False) == (result.usage.input_tokens.value, result.usage.partial)


async def test_a_run_over_its_budget_stops_behind_its_calls(talks: Talks, bench: Bench) -> None:
    limits = SpendLimits(run_cost="0.5")
    plan: list[Step] = [looking(400), looking(400), Pass("never")]
    talk = await talks.open(OpenAIChatModel, *plan, agent={"prices": DEAR, "spend_limits": limits})
    result = await talk.turn()

    assert ("policy_stop", "budget-run", 2) == (result.reason.value, result.policy_name, len(talk.bodies))
    assert 0.8 == cost(result.usage)


async def test_a_failed_attempt_counts_before_the_next_one_is_made(talks: Talks, bench: Bench) -> None:
    limits = SpendLimits(run_tokens=1000)
    plan: list[Step] = [CutAfter(events=2, of=Pass("lost", usage=spent(1200))), Pass("never")]
    talk = await talks.open(AnthropicModel, *plan, agent={"spend_limits": limits})
    result = await talk.turn()

    assert ("policy_stop", "budget-run", 1) == (result.reason.value, result.policy_name, len(talk.bodies))


async def test_a_conversation_without_budget_admits_nothing_more(talks: Talks, bench: Bench) -> None:
    limits = SpendLimits(conversation_cost="0.5")
    talk = await talks.open(
        OpenAIChatModel, Pass("yes", usage=spent(500)), agent={"prices": DEAR, "spend_limits": limits}
    )
    await talk.turn()
    before = await bench.store.load_snapshot(talk.conversation)

    with pytest.raises(BudgetExceededError):
        await talk.submit("more")
    after = await bench.store.load_snapshot(talk.conversation)

    assert (before.messages, before.runs, 1) == (after.messages, after.runs, len(talk.bodies))


async def test_what_waited_in_the_queue_is_stopped_when_the_budget_is_gone(talks: Talks, bench: Bench) -> None:
    limits = SpendLimits(conversation_tokens=500)
    gate = Gate(of=Pass("yes", usage=spent(500)))
    talk = await talks.open(OpenAIChatModel, gate, Pass("never"), agent={"spend_limits": limits})
    first = await talk.submit("one")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    second = await talk.submit("two")
    gate.event.set()
    results = [await ticket.result(BOUND) for ticket in (first, second)]

    assert [("success", None), ("policy_stop", "budget-conversation")] == [
        (result.reason.value, result.policy_name) for result in results
    ]
    assert 1 == len(talk.bodies)


async def test_a_budget_that_cannot_be_enforced_refuses(talks: Talks, bench: Bench) -> None:
    limits = SpendLimits(conversation_cost="10")
    talk = await talks.open(OpenAIChatModel, Pass("yes", usage=spent(821_452)), agent={"spend_limits": limits})
    await talk.turn()
    total = await talk.client.spend(talk.conversation)

    with pytest.raises(BudgetUnenforceableError, match="cannot enforce"):
        await talk.submit("more")
    assert (821_452, None, 1) == (total.total.input_tokens.value, cost(total.total), total.missing)


async def test_an_answer_that_was_cut_does_not_close_a_conversation_with_a_budget(talks: Talks, bench: Bench) -> None:
    gate = Gate(of=Pass("cut short", usage=spent(300)), after=2)
    plan: list[Step] = [gate, Pass("a", usage=spent(400)), Pass("b", usage=spent(600)), Pass("never")]
    limits = SpendLimits(conversation_cost="1")
    talk = await talks.open(OpenAIChatModel, *plan, agent={"prices": DEAR, "spend_limits": limits})
    first = await talk.submit("one")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    await talk.client.interrupt(talk.conversation)
    cut = await first.result(BOUND)
    gate.event.set()
    heard = [(await talk.turn(text)).text for text in ("two", "three")]
    total = await talk.client.spend(talk.conversation)

    assert ("interrupted", None, ["a", "b"]) == (cut.reason.value, cost(cut.usage), heard)
    assert (None, 1, 0) == (cost(total.total), total.missing, total.unpriced)
    assert [1.0] == [each.value for each in total.costs]
    with pytest.raises(BudgetExceededError):
        await talk.submit("four")


async def test_a_model_without_a_price_closes_it_also_where_its_answers_are_cut(talks: Talks, bench: Bench) -> None:
    gate = Gate(of=Pass("cut short", usage=spent(300)), after=2)
    limits = SpendLimits(conversation_cost="1")
    talk = await talks.open(OpenAIChatModel, gate, agent={"spend_limits": limits})
    first = await talk.submit("one")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    await talk.client.interrupt(talk.conversation)
    await first.result(BOUND)
    gate.event.set()

    with pytest.raises(BudgetUnenforceableError, match="cannot enforce"):
        await talk.submit("two")


async def test_a_server_that_never_tells_what_it_counted_closes_it(talks: Talks, bench: Bench) -> None:
    limits = SpendLimits(conversation_tokens=1000)
    talk = await talks.open(OpenAIChatModel, UsageMissing(Pass("hm")), agent={"prices": DEAR, "spend_limits": limits})
    await talk.turn()

    with pytest.raises(BudgetUnenforceableError, match="cannot enforce"):
        await talk.submit("two")


async def test_a_budget_that_cannot_be_enforced_may_warn_and_go_on(talks: Talks, bench: Bench) -> None:
    limits = SpendLimits(conversation_cost="10", on_unknown="warn")
    talk = await talks.open(OpenAIChatModel, Pass("yes", usage=spent(821_452)), agent={"spend_limits": limits})
    await talk.turn()
    result = await talk.turn("more")

    warned = await ledger(bench, talk.conversation, LedgerKind.BUDGET_UNENFORCEABLE)

    assert "success" == result.reason.value
    assert [(result.run_id, 1)] == [(event.payload["run_id"], event.payload["missing"]) for event in warned]


async def test_an_input_that_joined_at_a_boundary_nobody_passed_is_answered_by_its_own_run(
    talks: Talks, bench: Bench
) -> None:
    gate = Gate(of=CutAfter(events=3, of=Pass("lost", usage=spent(1200))))
    plan: list[Step] = [gate, Pass("to you", usage=spent(5))]
    limits = SpendLimits(run_tokens=1000)
    talk = await talks.open(AnthropicModel, *plan, agent={"spend_limits": limits})
    first = await talk.submit("one")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    second = await talk.client.submit(talk.conversation, "two", policy="inject")
    gate.event.set()
    stopped, answered = [await ticket.result(BOUND) for ticket in (first, second)]

    assert ("policy_stop", "budget-run") == (stopped.reason.value, stopped.policy_name)
    assert ("success", "to you", 2) == (answered.reason.value, answered.text, len(talk.bodies))
    assert stopped.run_id != answered.run_id


async def test_the_run_in_flight_is_told_apart(talks: Talks, bench: Bench) -> None:
    gate = Gate(of=Pass("done", usage=spent(7)))
    talk = await talks.open(OpenAIChatModel, looking(400), gate, agent={"prices": DEAR})
    ticket = await talk.submit("hi")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    during = await talk.client.spend(talk.conversation)
    gate.event.set()
    result = await ticket.result(BOUND)
    after = await talk.client.spend(talk.conversation)

    assert during.active is not None
    assert (0, result.run_id, 400) == (during.runs, during.active_run_id, during.active.input_tokens.value)
    assert (1, None, 0.407) == (after.runs, after.active, cost(after.total))
