"""Compaction before a run on a real server: what is summed up, and whatever gets in its way."""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Serve
from tests.integration.compacting import Talk, said, summary, tokens
from tests.integration.stage import BOUND, until
from turnlane.agent import Agent, Compaction, CompactionState, ScriptedModel
from turnlane.records.compaction import CompactionResult
from turnlane.records.events import RunOperationEvent
from turnlane.records.messages import TextPart
from turnlane.records.runs import OperationKind, TerminalReason
from turnlane.records.usage import CostValue, Provenance, Usage, UsageValue

pytestmark = pytest.mark.server

NEXT_REQUEST_SECONDS = 5.0
"""So soon after an input its model is asked, whatever came before."""


# --- before a run -------------------------------------------------------------------------------


async def test_a_run_starts_with_a_summary_of_what_is_old(talk: Talk) -> None:
    await talk.start(turns=3)
    await talk.turns("A", "B", "C", "D")
    last = talk.asked[-1].prompt
    kept = [("user", "C"), ("assistant", "answer to C"), ("user", "D"), ("assistant", "answer to D")]
    heard = [part.text for told in last.messages for part in told.parts if isinstance(part, TextPart)]

    assert [summary("A B"), *kept] == await talk.messages()
    assert ((summary("A B")[1],), ["C", "answer to C", "D"]) == (last.system, heard)


async def test_what_was_compacted_stays_readable_with_the_summary_behind_it(talk: Talk) -> None:
    await talk.start(turns=2)
    await talk.turns("A", "B", "C")
    everything = await talk.messages(all=True)

    assert [("user", "A"), ("assistant", "answer to A"), summary("A"), ("user", "B")] == everything[:4]


async def test_a_conversation_below_the_threshold_is_left_alone(talk: Talk) -> None:
    await talk.start(turns=9)
    await talk.turns("A", "B", "C")

    assert ([], 6) == (talk.contexts, len(await talk.messages()))
    assert [] == await talk.ledger("compaction/finished")


async def test_a_long_conversation_is_compacted_again_and_again(talk: Talk) -> None:
    await talk.start(turns=3)
    await talk.turns(*(str(number) for number in range(1, 10)))
    previous = [getattr(context.previous, "goal", None) for context in talk.contexts]

    assert [None, "1 2", "3 4", "5 6"][: len(previous)] == previous
    assert 3 <= len(previous)
    assert 1 == [role for role, _ in await talk.messages()].count("summary")
    assert 18 + len(previous) == len(await talk.messages(all=True))


async def test_a_threshold_sees_the_conversation_as_the_run_finds_it(talk: Talk) -> None:
    states: list[CompactionState] = []

    def threshold(state: CompactionState) -> bool:
        states.append(state)
        return len(states) == 3

    await talk.start(threshold=threshold)
    await talk.turns("A", "B", "C", "D")

    assert [0, 1, 2, 2] == [state.turns for state in states]
    # The scripted model counts words: `A`, then `A`, `answer to A` and `B`; nobody counted since the summary but C's.
    assert [None, 1, 5] == [state.last_input_tokens for state in states[:3]]
    assert states[1].characters > 0


async def test_the_run_tells_of_its_compaction_and_pays_for_it(talk: Talk) -> None:
    talk.usage = Usage(input_tokens=UsageValue.reported(400), output_tokens=UsageValue.reported(40))
    await talk.start(turns=1)
    await talk.turns("A", "B")
    ticket = await talk.client.submit(talk.conversation, "C")
    operations = [
        (event.operation.kind, event.operation.phase.value)
        async for event in ticket.events()
        if isinstance(event, RunOperationEvent)
    ]
    result = await ticket.result(BOUND)
    (event,) = await talk.ledger("compaction/finished")

    compaction = [phase for kind, phase in operations if kind is OperationKind.COMPACTION]
    assert (["started", "completed"], OperationKind.COMPACTION) == (compaction, operations[0][0])
    assert result.usage is not None
    assert (tokens(400 + 12), tokens(40 + 3)) == (result.usage.input_tokens, result.usage.output_tokens)
    assert ("ready", result.run_id) == (event.payload["outcome"], event.payload["run_id"])


async def test_no_content_of_a_compaction_is_in_the_history(talk: Talk) -> None:
    await talk.start(turns=1)
    await talk.turns("walnut", "B", "C")
    assert summary("walnut") in await talk.messages()
    history = (await talk.lane.fetch_history()).to_json()

    assert "Summary of" not in history
    assert len(history) < 128 * 1024


async def test_the_usage_of_a_compaction_that_came_to_nothing_is_in_the_runs_total(talk: Talk) -> None:
    def threshold(state: CompactionState) -> bool:
        return state.turns >= 2 and not talk.contexts

    cost = CostValue(value=0.75, currency="USD", provenance=Provenance.PROVIDER_REPORTED)
    talk.usage = Usage(input_tokens=UsageValue.reported(400), output_tokens=UsageValue.reported(40), cost=cost)
    ticket = await talk.held_in_a_run(threshold=threshold)
    later = await talk.client.submit(talk.conversation, "D")
    talk.gate.release()
    result = await ticket.result(BOUND)
    await later.result(BOUND)

    assert result.usage is not None
    assert (tokens(400 + 9), tokens(40 + 3)) == (result.usage.input_tokens, result.usage.output_tokens)
    assert 1 == len(talk.contexts)
    assert "summary" not in [role for role, _ in await talk.messages()]


# --- conflicts ----------------------------------------------------------------------------------


async def test_an_input_that_comes_meanwhile_makes_a_fresh_summary_of_a_fresh_look(talk: Talk) -> None:
    first = await talk.held_in_a_run(turns=2, max_attempts=2)
    second = await talk.client.submit(talk.conversation, "D")
    talk.gate.release()
    await first.result(BOUND)
    await second.result(BOUND)

    assert [1, 2] == [event.payload["attempt"] for event in await talk.ledger("compaction/finished")][:2]
    assert (summary("A")[1],) == talk.asked[2].prompt.system


async def test_a_single_attempt_that_meets_a_conflict_changes_nothing(talk: Talk) -> None:
    first = await talk.held_in_a_run(turns=2, max_attempts=1)
    second = await talk.client.submit(talk.conversation, "D")
    talk.gate.release()
    result = await first.result(BOUND)

    assert (TerminalReason.SUCCESS, ()) == (result.reason, talk.asked[2].prompt.system)
    assert TerminalReason.SUCCESS is (await second.result(BOUND)).reason


# --- failures and aborts ------------------------------------------------------------------------


async def test_a_compaction_that_fails_costs_no_answer(talk: Talk) -> None:
    talk.error = RuntimeError("the summariser is broken")
    await talk.start(turns=1)
    await talk.turns("A", "B")
    result = await talk.turn("C")
    events = await talk.ledger("compaction/finished")

    assert (TerminalReason.SUCCESS, "answer to C") == (result.reason, result.text)
    assert {"SUMMARIZE_FAILED"} == {event.payload["failure"]["code"] for event in events}  # type: ignore[index,call-overload]
    assert () == talk.asked[-1].prompt.system


async def test_a_threshold_that_fails_costs_no_answer(talk: Talk) -> None:
    def threshold(state: CompactionState) -> bool:
        raise RuntimeError("broken")

    await talk.start(threshold=threshold)

    assert "answer to A" == (await talk.turn("A")).text


async def test_an_interrupt_stops_a_compaction_at_once(talk: Talk) -> None:
    ticket = await talk.held_in_a_run(turns=1)
    await talk.client.interrupt(talk.conversation)
    result = await ticket.result(BOUND)
    (event,) = await talk.ledger("compaction/finished")

    assert TerminalReason.INTERRUPTED is result.reason
    assert "cancelled" == event.payload["outcome"]
    assert result.run is not None and result.run.last_operation is not None
    assert (OperationKind.COMPACTION, "cancelled") == (
        result.run.last_operation.kind,
        result.run.last_operation.phase.value,
    )
    assert "summary" not in [role for role, _ in await talk.messages()]


async def test_a_worker_that_goes_away_in_a_compaction_leaves_it_to_another(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    talk = Talk(bench, serve, conversation, is_held=True)
    agent = Agent(
        name="actor",
        model=ScriptedModel(script=talk.script),
        compaction=Compaction(turns=2, summarize=talk.summarize),
    )
    async with bench.worker(agent, graceful_seconds=0.1):
        await talk.turns("A", "B")
        ticket = await talk.client.submit(conversation, "C")
        await talk.gate.until_reached()
    await serve(agent)
    result = await ticket.result(BOUND)

    assert "answer to C" == result.text
    assert (2, (summary("A")[1],)) == (len(talk.contexts), talk.asked[-1].prompt.system)
    assert result.usage is not None
    assert Provenance.COMPUTED is result.usage.input_tokens.provenance


async def test_a_cut_off_answer_and_a_compaction_leave_the_conversation_going(talk: Talk) -> None:
    await talk.start(turns=2)
    await talk.turn("A")
    cut = await talk.turn("think")
    ticket = await talk.client.submit(talk.conversation, "B")

    async def is_asked() -> bool:
        return said(talk.asked[-1]) == "B"

    await until(is_asked, NEXT_REQUEST_SECONDS)
    after = await ticket.result(BOUND)

    assert 1 == len(talk.contexts)
    assert (TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS) == (cut.reason, after.reason)
    assert "answer to B" == after.text


# --- what turns a run may have ------------------------------------------------------------------


async def test_a_turn_that_failed_is_compacted_unheard(talk: Talk) -> None:
    await talk.start()
    await talk.turn("A")
    broken = await talk.turn("fail")
    await talk.turn("B")
    await talk.client.compact(talk.conversation)
    (context,) = talk.contexts

    assert TerminalReason.PROVIDER_FAILURE is broken.reason
    assert ["A", "answer to A", "fail"] == [message.text for message in context.messages]
    assert ["summary", "user", "assistant"] == [role for role, _ in await talk.messages()]


async def test_what_was_taken_back_is_not_summed_up(talk: Talk) -> None:
    wish = await talk.held_in_a_wish()
    ticket = await talk.client.submit(talk.conversation, "never mind")
    assert ticket.admission is not None
    await talk.client.cancel(talk.conversation, ticket.admission.run_id)
    talk.gate.release()
    await wish
    await talk.turn("C")
    await talk.client.compact(talk.conversation)

    heard = [message.text for context in talk.contexts for message in context.messages]
    assert "never mind" not in heard
    assert "B" in heard


async def test_a_resend_of_what_was_compacted_is_answered_as_ever(talk: Talk) -> None:
    await talk.start()
    first = await talk.client.submit(talk.conversation, "A", key="k")
    answered = await first.result(BOUND)
    await talk.turn("B")
    await talk.client.compact(talk.conversation)
    again = await talk.client.submit(talk.conversation, "A", key="k")
    result = await again.result(BOUND)

    assert again.admission is not None and again.admission.duplicate
    assert (answered.run_id, answered.text) == (result.run_id, result.text)


async def test_a_purge_during_a_compaction_leaves_nothing(talk: Talk) -> None:
    wish = await talk.held_in_a_wish()
    await talk.client.purge(talk.conversation)
    reply = await wish

    assert CompactionResult.CANCELLED is reply.outcome
    assert [] == await talk.messages(all=True)
