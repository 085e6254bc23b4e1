"""Compaction and everything else: each pair held at the moment where they meet."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import Till, asked, open_till, respond
from tests.integration.dock import Summing
from tests.integration.play import Play, open_play
from tests.integration.stage import BOUND, HeldStore
from turnlane.agent import Compaction, SummaryContext
from turnlane.records.compaction import CompactionResult

pytestmark = pytest.mark.server


async def test_a_call_that_is_approved_during_a_compaction_is_made_behind_it_and_heard(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    summing = Summing()
    play, till = await open_till(bench, serve, conversation, compaction=summing.compaction())
    play.stage.play()
    for name in ("one", "two"):
        await (await play.submit(name)).result(BOUND)
    play.stage.hold()
    await asked(play, number=3)
    wish = asyncio.create_task(play.client.compact(conversation, force=True))
    await summing.barrier.until_reached()
    ticket = await respond(play, "p1", True)
    made = till.made["pay"]

    summing.barrier.release()
    reply = await asyncio.wait_for(wish, BOUND)
    fourth = await play.stage.call(4)
    fourth.answer("done")

    assert (0, CompactionResult.APPLIED) == (made, reply.outcome)
    assert (["success"], 1) == (await play.reasons(ticket), till.made["pay"])
    assert ("tool", "p1") in fourth.heard
    assert ["one", "answer to one"] == summing.summed[-1]


async def test_a_compaction_that_was_asked_for_outlives_its_lane(bench: Bench, serve: Serve, conversation: str) -> None:
    summing = Summing()
    play = await open_play(bench, serve, conversation, compaction=summing.compaction())
    play.stage.play()
    for name in ("one", "two"):
        await (await play.submit(name)).result(BOUND)
    wish = asyncio.create_task(play.client.compact(conversation, force=True))
    await summing.barrier.until_reached()

    await play.lane.terminate("a test loses it")
    await play.client.deliver(conversation, "word", "1", "opens the lane")
    summing.barrier.release()
    reply = await asyncio.wait_for(wish, BOUND)

    assert CompactionResult.APPLIED is reply.outcome
    assert 1 == len([message for message in await play.messages() if message.role.value == "summary"])


async def test_a_run_that_is_superseded_in_its_compaction_lets_the_next_one_compact(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    summing = Summing()
    play = await open_play(bench, serve, conversation, compaction=summing.compaction(turns=2))
    play.stage.play()
    for name in ("one", "two"):
        await (await play.submit(name)).result(BOUND)
    first = await play.submit("three")
    await summing.barrier.until_reached()

    second = await play.submit("four", "supersede")
    summing.barrier.release()

    assert ["superseded", "success"] == await play.reasons(first, second)
    assert 1 == len([message for message in await play.messages() if message.role.value == "summary"])
    assert ["one", "two", "four"] == play.asked


async def test_an_answered_run_whose_lane_was_lost_at_its_end_is_not_compacted_and_asked_again(
    bench: Bench, conversation: str
) -> None:
    till, tried = Till(), Counter[str]()

    async def fail(context: SummaryContext) -> dict[str, str]:
        tried.update(["summary"])
        raise RuntimeError

    compaction = Compaction(summarize=fail, threshold=lambda state: till.made["pay"] > 0)
    play = Play(bench, bench.client(), conversation, bench.store)
    agent = play.stage.agent(tools=till.tools(), compaction=compaction)
    async with bench.worker(agent, providers=play.stage.providers):
        play.stage.play()
        for name in ("one", "two"):
            await (await play.submit(name)).result(BOUND)
        play.stage.hold()
        await asked(play, number=3)
    held = HeldStore(bench.store, "finish_step", after=True)
    bench.store = held  # type: ignore[assignment]
    async with bench.worker(agent, providers=play.stage.providers):
        ticket = await respond(play, "p1", True)
        (await play.stage.call(4)).answer("done")
        await held.barrier.until_reached()
        await play.lane.terminate("a test loses it")
        play.stage.play()
        await play.client.deliver(conversation, "word", "1", "opens the lane")
        held.barrier.release()
        reasons = await play.reasons(ticket)

    assert (["success"], 4) == (reasons, len(play.stage.calls))
    assert (1, 1) == (till.made["pay"], tried["summary"])
