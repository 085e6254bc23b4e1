"""What only features together can get wrong: each pair of them held at the moment where they meet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import Gated, Till, asked, open_till, outputs, pending, respond
from tests.integration.dock import SHIP, Dock, Summing, open_calls, open_dock, outcome_of, shipping
from tests.integration.durable_stage import until_suspended
from tests.integration.play import Play, current, open_play, run_id, until_moved
from tests.integration.stage import BOUND, HeldStore, until
from turnlane.agent import PolicyContext, ToolContext, Upload, tool
from turnlane.records.admissions import Policy
from turnlane.records.compaction import CompactionResult
from turnlane.records.errors import ConversationActiveError, ConversationPurgedError
from turnlane.records.lane import LaneSettings
from turnlane.records.messages import TextPart, ToolCallPart, ToolOutcome
from turnlane.records.prompt import PromptFile
from turnlane.records.runs import Failure, FailureClass, RunState, TerminalReason

pytestmark = pytest.mark.server


# --- approvals and those who stop runs ------------------------------------------------------------


@pytest.mark.parametrize(("policy", "reason"), [(None, "interrupted"), ("supersede", "superseded")])
async def test_an_approved_call_that_is_stopped_is_over_and_not_made_again(
    bench: Bench, serve: Serve, conversation: str, policy: str | None, reason: str
) -> None:
    play, dock = await open_dock(bench, serve, conversation)
    await asked(play, ("p1", "pay", "{}"))
    ticket = await respond(play, "p1", True)
    await dock.paying.until_reached()

    if policy is None:
        await play.client.interrupt(conversation, run_id(ticket))
        instead = await play.submit("instead")
    else:
        instead = await play.submit("instead", policy)
    play.stage.play()
    reasons = await play.reasons(ticket, instead)

    assert [reason, "success"] == reasons
    assert (1, ToolOutcome.INTERRUPTED) == (dock.made["pay"], await outcome_of(play, "p1"))
    assert ([], {}) == (await open_calls(play), await pending(play))
    assert ["go", "instead"] == play.asked


async def test_an_answer_that_comes_while_another_run_streams_waits_and_is_acted_on(gated: Gated) -> None:
    play, till = gated
    await asked(play)
    other = await play.submit("other")
    streaming = await play.stage.call(2)
    streaming.say("thinking")
    ticket = await respond(play, "p1", True)
    state, made = (await play.run(ticket)).state, till.made["pay"]

    streaming.answer(" done")
    play.stage.play()
    reasons = await play.reasons(other, ticket)

    assert (RunState.QUEUED, 0) == (state, made)
    assert (["success", "success"], 1) == (reasons, till.made["pay"])
    assert {"p1": "paid 5"} == await outputs(play)


async def test_no_policy_of_the_application_is_asked_about_an_answer(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    judged: list[str] = []

    def policy(context: PolicyContext) -> Policy:
        judged.append(context.input.key)
        return Policy.SUPERSEDE

    play, till = await open_till(bench, serve, conversation, policy=policy)
    await asked(play)
    other = await play.submit("other")
    streaming = await play.stage.call(2)
    ticket = await respond(play, "p1", True)
    streaming.answer("done")
    play.stage.play()

    assert ["success", "success"] == await play.reasons(other, ticket)
    assert (["go", "other"], 1) == (judged, till.made["pay"])


async def test_a_lane_that_is_lost_before_an_approved_call_began_makes_it_once(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    till = Till()
    play = await open_play(bench, serve, conversation, hold="begin_call", tools=till.tools())
    await asked(play)
    ticket = await respond(play, "p1", True)
    await play.barrier.until_reached()

    await play.lane.terminate("a test loses it")
    play.stage.play()
    # Once this is admitted the next lane has the conversation: the held call comes too late to begin.
    other = await play.submit("other")
    play.barrier.release()
    reasons = await play.reasons(ticket, other)

    assert ["success", "success"] == reasons
    assert (1, {"p1": "paid 5"}) == (till.made["pay"], await outputs(play))


async def test_a_cancelled_lane_ends_an_approved_call_that_waits(bench: Bench, serve: Serve, conversation: str) -> None:
    @tool(durable=True, approval="user-approval")
    async def send(ctx: ToolContext) -> Any:
        """Wait for word, once approved."""
        return await ctx.wait_for("word", "1")

    play = await open_play(bench, serve, conversation, tools=[send])
    await asked(play, ("p1", "send", "{}"))
    ticket = await respond(play, "p1", True)
    await until_suspended(bench, conversation)

    await play.lane.cancel()
    ended = await ticket.result(BOUND)
    other = await play.submit("other")
    play.stage.play()

    assert ["shutdown", "success"] == [ended.reason.value, *await play.reasons(other)]
    assert ([], ToolOutcome.INTERRUPTED) == (await open_calls(play), await outcome_of(play, "p1"))


# --- calls that wait, and everything else ---------------------------------------------------------


@pytest.mark.parametrize("is_lost", [False, True], ids=["in one lane", "with its lane lost"])
async def test_a_step_that_waits_for_word_and_for_approval_waits_for_both(
    bench: Bench, serve: Serve, conversation: str, is_lost: bool
) -> None:
    play, dock = await open_dock(bench, serve, conversation)
    ticket = await shipping(play, ("p1", "pay", "{}"))
    early = await pending(play)

    if is_lost:
        await play.lane.terminate("a test loses it")
    await play.client.deliver(conversation, "word", "1", "said")
    stopped = await ticket.result(BOUND)
    answer = await respond(play, "p1", True)
    dock.paying.release()
    play.stage.play()
    reasons = await play.reasons(answer)

    assert ({}, "provider_stop", ["success"]) == (early, stopped.reason.value, reasons)
    assert {"s1": "said", "p1": "paid"} == await outputs(play)
    assert (1, 1) == (dock.made["pack"], dock.made["pay"])


@pytest.mark.parametrize("is_lost", [False, True], ids=["in one lane", "with its lane lost"])
async def test_what_is_injected_while_a_call_waits_joins_behind_it(
    bench: Bench, serve: Serve, conversation: str, is_lost: bool
) -> None:
    settings = LaneSettings(events_between_runs=45, events_between_steps=45)
    play, dock = await open_dock(bench, serve, conversation, settings=settings)
    ticket = await shipping(play)
    first = await current(play)
    joined = [await play.submit(f"joined {number}", "inject") for number in range(10)]
    if is_lost:
        await play.lane.terminate("a test loses it")
    else:
        await until_moved(play.lane, first)

    await play.client.deliver(conversation, "word", "1", "said")
    second = await play.stage.call(2)
    second.answer("all of it")
    results = [await each.result(BOUND) for each in (ticket, *joined)]

    assert [f"joined {number}" for number in range(10)] == [said for who, said in second.heard[3:]]
    assert {(run_id(ticket), "success")} == {(result.run_id, result.reason.value) for result in results}
    assert ({"s1": "said"}, 1) == (await outputs(play), dock.made["pack"])


async def test_what_a_run_had_taken_joins_once_although_its_lane_is_lost(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, _ = await open_dock(bench, serve, conversation)
    ticket = await play.submit("go")
    first = await play.stage.call(1)
    joined = await play.submit("joined", "inject")
    first.use(("l1", "nothing", "{}"))
    second = await play.stage.call(2)
    second.use(SHIP)
    await until_suspended(bench, conversation)

    await play.lane.terminate("a test loses it")
    await play.client.deliver(conversation, "word", "1", "said")
    third = await play.stage.call(3)
    third.answer("done")
    results = [await each.result(BOUND) for each in (ticket, joined)]

    assert [1, 1] == [call.heard.count(("user", "joined")) for call in (second, third)]
    assert {run_id(ticket)} == {result.run_id for result in results}
    assert ["go", "joined"] == await play.answered()


async def test_a_conversation_with_a_waiting_call_is_purged_only_when_that_has_ended(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, _ = await open_dock(bench, serve, conversation)
    ticket = await shipping(play)

    with pytest.raises(ConversationActiveError):
        await play.client.purge(conversation)
    await play.client.interrupt(conversation)
    ended = await ticket.result(BOUND)
    await play.client.purge(conversation)
    with pytest.raises(ConversationPurgedError):
        await play.client.deliver(conversation, "word", "1", "said")

    assert "interrupted" == ended.reason.value
    assert () == await play.store.load_entries(conversation, "conversation")


@pytest.mark.parametrize("how", ["abandoned", "interrupted"])
async def test_a_call_in_an_answer_that_never_ended_is_closed_with_its_run(
    bench: Bench, conversation: str, how: str
) -> None:
    """Its run is given up, or was asked to stop and lost its worker and its lane before it could."""
    summing, dock = Summing(), Dock()
    summing.barrier.release()
    play = Play(bench, bench.client(), conversation, bench.store)
    agent = play.stage.agent(tools=dock.tools, compaction=summing.compaction())
    held = HeldStore(bench.store, "finish_step")
    bench.store = held  # type: ignore[assignment]
    async with bench.worker(agent, providers=play.stage.providers):
        ticket = await play.submit("go")
        first = await play.stage.call(1)
        first.ask(*SHIP)
        await until(lambda: _holds_a_call(play))
        if how == "abandoned":
            run = await play.run(ticket)
            await play.client.abandon(conversation, run.id, expected_revision=run.revision, stale_owner=True)
        else:
            await play.client.interrupt(conversation)
            await held.barrier.until_reached()
            await play.lane.terminate("a test loses it")
            await play.client.deliver(conversation, "word", "1", "opens the lane")
        held.barrier.release()
        play.stage.play()
        others = [await play.submit("other"), await play.submit("another")]
        reasons = await play.reasons(ticket, *others)
        reply = await play.client.compact(conversation, force=True)

    assert [how, "success", "success"] == reasons
    assert (ToolOutcome.INTERRUPTED, []) == (await outcome_of(play, "s1"), await open_calls(play))
    assert CompactionResult.APPLIED is reply.outcome


async def _holds_a_call(play: Play) -> bool:
    return any(isinstance(part, ToolCallPart) for message in await play.messages() for part in message.parts)


async def test_a_step_that_failed_behind_a_call_is_made_again_by_the_next_lane_and_no_step_behind_it(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    refused = Failure(failure_class=FailureClass.INVALID_REQUEST, status=400)
    play = await open_play(bench, serve, conversation, hold="finish_step", hold_answer=True)
    ticket = await play.submit("go")
    first = await play.stage.call(1)
    first.ask("l1", "look")
    first.fail(refused)
    await play.barrier.until_reached()
    await play.lane.terminate("a test loses it")
    await play.client.deliver(conversation, "word", "1", "opens the lane")
    play.barrier.release()
    second = await play.stage.call(2)
    second.fail(refused)
    result = await ticket.result(BOUND)

    assert (0, [("user", "go")]) == (second.request.step, second.heard)
    assert (TerminalReason.PROVIDER_FAILURE, refused) == (result.reason, result.failure)


async def test_a_file_that_was_refused_is_refused_once_more_for_a_lane_that_was_lost(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    refused = Failure(failure_class=FailureClass.FILE_REFUSED, status=400)
    play = await open_play(bench, serve, conversation)
    upload = Upload(data=b"%PDF-1.4 words", media_type="application/pdf", filename="note.pdf")
    ticket = await play.client.submit(conversation, [TextPart(text="look"), upload])
    (await play.stage.call(1)).fail(refused)
    await play.stage.call(2)
    await play.lane.terminate("a test loses it")
    await play.client.deliver(conversation, "word", "1", "opens the lane")
    (await play.stage.call(3)).fail(refused)
    (await play.stage.call(4)).answer("a note")
    result = await ticket.result(BOUND)

    with_files = [
        any(isinstance(part, PromptFile) for message in call.request.prompt.messages for part in message.parts)
        for call in play.stage.calls
    ]
    assert (TerminalReason.SUCCESS, "a note") == (result.reason, result.text)
    assert [True, False, True, False] == with_files
