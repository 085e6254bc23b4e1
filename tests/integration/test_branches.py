"""Branches by the wire: a copy goes on as its source would, with real SDKs over a strict provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import Bench
from tests.integration.play import run_id
from tests.integration.stage import BOUND
from tests.integration.talks import WIRES, Talk, Talks, look
from turnlane.agent import Compaction, SummaryContext, tool
from turnlane.agent.models import AnthropicModel, Model
from turnlane.records.archives import Archive
from turnlane.records.base import canonical_json
from turnlane.records.errors import ConversationActiveError, ConversationExistsError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolResultPart
from turnlane.records.runs import TerminalReason
from turnlane.testing.fault_plan import Gate, Pass, Reasoning, Step, ToolCalls, ToolUse

pytestmark = pytest.mark.server

THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
Open = Callable[..., Any]


@pytest.fixture
def talk(talks: Talks) -> Open:
    """Open a conversation whose model answers by a plan."""

    async def opened(kind: type[Model], *plan: Step, tools: Any = (look,), **agent: Any) -> Talk:
        extra = THINKING if kind is AnthropicModel else {}
        return await talks.open(kind, *plan, tools=tools, agent=agent, extra=extra)

    return opened


async def branched(talk: Talk, *, through: str | None = None, key: str | None = None, to: str = "copy") -> Talk:
    """The talk that goes on in a branch."""
    destination = f"{talk.conversation}-{to}"
    await talk.client.branch(talk.conversation, destination, through_run_id=through, key=key)
    return replace(talk, conversation=destination)


async def texts(talk: Talk) -> list[str]:
    return [message.text for message in (await talk.client.snapshot(talk.conversation)).messages]


def heard(body: Any) -> Any:
    """What a request says was said: all of it but what belongs to one conversation's cache."""
    return body.get("messages") or body["input"]


async def shared_names(source: Talk, copy: Talk) -> list[str]:
    """The ids of the source that its copy names, but where it tells what it was made of."""
    one, two = [
        Archive.model_validate_json(await each.client.export_conversation(each.conversation)) for each in (source, copy)
    ]
    made_of = next(event for event in two.events if event.kind == LedgerKind.BRANCHED)
    told = two.to_bytes().decode().replace(canonical_json(made_of.payload), "")
    ids = {one.conversation_id, *(event.event_id for event in one.events)}
    ids |= {name for run in one.snapshot.runs for name in (run.run.id, run.run.assistant_message_id)}
    ids |= {message.id for message in one.snapshot.messages}
    pieces = [piece for message in one.snapshot.messages for piece in message.segments]
    ids |= {piece.approval_id for piece in pieces if piece.approval_id is not None}
    return [name for name in sorted(ids) if name in told.replace(two.conversation_id, "")]


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_is_made_again_in_a_branch_of_what_came_before_it(talk: Open, wire: str) -> None:
    source = await talk(WIRES[wire], *(Pass(f"answer {turn}") for turn in range(6)))
    results = [await source.turn(f"question {turn}") for turn in range(5)]
    before = await source.client.export_conversation(source.conversation)

    copy = await branched(source, through=results[3].run_id)
    again = await copy.turn("question 4, again")

    said = [text for turn in range(4) for text in (f"question {turn}", f"answer {turn}")]
    request = str(heard(source.bodies[-1]))
    assert (TerminalReason.SUCCESS, "answer 5") == (again.reason, again.text)
    assert [*said, "question 4, again", "answer 5"] == await texts(copy)
    assert [True] * 9 == [text in request for text in (*said, "question 4, again")]
    assert "answer 4" not in request
    assert before == await source.client.export_conversation(source.conversation)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_copy_sends_what_its_source_would_send(talk: Open, wire: str) -> None:
    """With tools and thinking in what was said: two requests for the same input differ in nothing that was said."""
    thought = Reasoning("Let me see.") if wire != "chat" else None
    calls = [ToolUse("look", {"at": "the sea"}), ToolUse("look", {"at": "the sky"})]
    plan = [
        ToolCalls(calls, text="Looking.", reasoning=thought),
        Pass("Blue.", reasoning=thought),
        Pass("1"),
        Pass("2"),
    ]
    source = await talk(WIRES[wire], *plan)
    await source.turn("what colour?")
    copy = await branched(source)

    ends = [(await each.turn("and now?")).reason for each in (source, copy)]

    *_, one, two = source.bodies
    assert [TerminalReason.SUCCESS] * 2 == ends
    assert heard(one) == heard(two)
    assert len(heard(one)) > 3


async def test_a_compacted_history_is_continued_from_its_summary(talk: Open) -> None:
    async def sum_up(context: SummaryContext) -> dict[str, str]:
        return {"goal": "They greeted each other."}

    source = await talk(
        WIRES["responses"],
        *(Pass(f"answer {turn}") for turn in range(6)),
        compaction=Compaction(summarize=sum_up, keep_recent_turns=1),
    )
    for turn in range(4):
        await source.turn(f"question {turn}")
    reply = await source.client.compact(source.conversation, force=True)
    copy = await branched(source)

    ends = [(await each.turn("go on")).reason for each in (source, copy)]

    *_, one, two = source.bodies
    assert ("applied", [TerminalReason.SUCCESS] * 2) == (reply.outcome, ends)
    assert (heard(one), one["instructions"]) == (heard(two), two["instructions"])
    assert "They greeted each other." in two["instructions"]
    assert "answer 0" not in str(two)
    assert [] == await shared_names(source, copy)


async def test_a_call_that_waits_in_the_source_is_closed_in_the_copy_which_goes_on(talk: Open) -> None:
    paid: list[str] = []

    @tool(approval="user-approval")
    def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return f"paid {to}"

    plan = [ToolCalls([ToolUse("pay", {"to": "bob"})]), Pass("Never mind."), Pass("It is done.")]
    source = await talk(WIRES["anthropic"], *plan, tools=[pay])
    await source.turn("pay bob")
    copy = await branched(source)

    there = await copy.turn("forget it")
    [waiting] = await source.client.pending_approvals(source.conversation)
    answered = await source.client.respond(source.conversation, waiting.approval_id, True)
    here = await answered.result(BOUND)

    results = [
        part.output["error"]  # type: ignore[index,call-overload]
        for message in (await copy.client.messages(copy.conversation)).items
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
    assert ["LEFT_BEHIND"] == results
    assert "LEFT_BEHIND" in str(heard(source.bodies[1]))
    assert ("Never mind.", "It is done.") == (there.text, here.text)
    assert ["bob"] == paid
    assert [] == await shared_names(source, copy)
    assert () == await copy.client.pending_approvals(copy.conversation)


def _input_tokens(usage: Any) -> int:
    return int(usage["input_tokens"]["value"])


async def test_each_request_is_counted_once_in_all_branches_together(talk: Open, bench: Bench) -> None:
    """Four branches, each of the one before; lanes are lost in between, and go on from the store."""
    turn = [ToolCalls([ToolUse("look", {"at": "it"})]), Pass("Seen."), Pass("Yes.")]
    current = source = await talk(WIRES["responses"], *(turn * 5))
    names = []
    for branches in range(5):
        await current.turn("look at it")
        await bench.temporal.get_workflow_handle(f"lane/{current.conversation}").terminate()
        await current.turn("sure?")
        names.append(current.conversation)
        if branches < 4:
            current = await branched(current, to=f"copy-{branches}")

    spent = [await source.client.spend(name) for name in names]
    ledgers = [(await source.client.ledger(name)).items for name in names]
    responses = [[event for event in ledger if event.kind == LedgerKind.PROVIDER_RESPONSE] for ledger in ledgers]
    reported = [_input_tokens(event.payload["usage"]) for found in responses for event in found]

    assert 15 == len(source.bodies) == len(reported)
    assert [3] * 5 == [len(found) for found in responses]
    assert sum(reported) == sum(each.total.input_tokens.value or 0 for each in spent)
    inherited = [0 if each.inherited is None else each.inherited.total.input_tokens.value for each in spent]
    assert [sum(reported[: 3 * place]) for place in range(5)] == inherited


async def test_a_conversation_is_branched_while_its_answer_streams(talk: Open) -> None:
    gate = Gate(of=Pass("late", chunks=3), after=1)
    source = await talk(WIRES["responses"], Pass("first"), gate, Pass("other"))
    first = await source.turn("one")
    streaming = await source.submit("two")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    with pytest.raises(ConversationActiveError) as refused:
        await branched(source)
    copy = await branched(source, through=first.run_id)
    there = await copy.turn("three")
    gate.event.set()

    assert [run_id(streaming)] == refused.value.details["run_ids"]
    assert ["one", "first", "three", "other"] == await texts(copy)
    assert "late" == (await streaming.result(BOUND)).text
    assert "other" == there.text


async def test_a_conversation_that_has_a_lane_is_not_written_over(talk: Open) -> None:
    source = await talk(WIRES["chat"], Pass("1"), Pass("2"))
    await source.turn("one")
    taken = replace(source, conversation=f"{source.conversation}-copy")
    await taken.turn("mine")

    with pytest.raises(ConversationExistsError):
        await branched(source)
    assert ["mine", "2"] == await texts(taken)


async def test_a_branch_outlives_its_source_and_a_repeat_of_the_call_finds_it(talk: Open) -> None:
    source = await talk(WIRES["chat"], Pass("1"), Pass("2"))
    await source.turn("one")
    copy = await branched(source, key="b-1")
    await source.client.purge(source.conversation)

    again = await source.client.branch(source.conversation, copy.conversation, key="b-1")

    assert ("2", "duplicate") == ((await copy.turn("two")).text, again.outcome)
    assert ["one", "1", "two", "2"] == await texts(copy)


async def test_watchers_of_a_copy_are_told_its_history_and_what_comes(talk: Open) -> None:
    source = await talk(WIRES["chat"], Pass("1"), Pass("2"))
    await source.turn("one")
    copy = await branched(source)
    ticket = await copy.submit("two")

    told = []
    async with asyncio.timeout(BOUND):
        async for event in copy.client.events(copy.conversation, from_seq=0):
            told.append(event)
            if event.type == "terminal" and event.run_id == run_id(ticket):
                break

    ends = [event.message.text for event in told if event.type == "terminal"]
    assert ["1", "2"] == ends
    assert {copy.conversation} == {event.conversation_id for event in told}
