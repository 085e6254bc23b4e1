"""Approvals over restarts, rests, fresh histories and lanes that are lost."""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Serve
from tests.integration.approval_stage import (
    PAY,
    Till,
    asked,
    finished,
    open_till,
    pending,
    respond,
    working,
)
from tests.integration.play import Play, current, open_play
from tests.integration.stage import BOUND
from turnlane.records.lane import LaneSettings
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server


async def test_a_question_survives_a_restart_of_workers_and_clients(bench: Bench, conversation: str) -> None:
    till = Till()
    play = Play(bench, bench.client(), conversation, bench.store)
    async with working(play, till.tools()):
        await asked(play)
    before = await pending(play)
    again = Play(bench, bench.client(), conversation, bench.store)
    async with working(again, till.tools()):
        ticket = await respond(again, "p1", True)
        reason = await finished(again, ticket, 1)

    assert ("p1", {"sum": 5}) == (before["p1"].call_id, before["p1"].input)
    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_a_lane_closes_while_a_question_waits_and_opens_for_the_answer(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation, settings=LaneSettings(idle_close_seconds=0.2))
    await asked(play)
    report = await play.lane.result()
    ticket = await respond(play, "p1", True)
    reason = await finished(play, ticket, 2)

    assert "idle" == report["outcome"]
    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_a_lane_knows_what_is_pending_in_a_fresh_history_and_after_a_rest(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, _ = await open_till(bench, serve, conversation, settings=LaneSettings(events_between_runs=5))
    await asked(play)
    ids = [each.approval_id for each in (await pending(play)).values()]
    first = await current(play)
    seen = [each.approval_id for each in await play.client.lane_approvals(conversation)]
    await play.lane.terminate()
    unrelated = await play.submit("b")
    (await play.stage.call(2)).answer("Hm.")
    await unrelated.result(BOUND)
    opened = [each.approval_id for each in await play.client.lane_approvals(conversation)]
    ticket = await respond(play, "p1", True)
    await finished(play, ticket, 3)
    left = await play.client.lane_approvals(conversation)

    assert (ids, ids, []) == (seen, opened, left)
    assert first != await current(play)


async def test_by_signal_an_answer_is_safe_while_no_worker_is_there(bench: Bench, conversation: str) -> None:
    till = Till()
    play = Play(bench, bench.client(), conversation, bench.store)
    async with working(play, till.tools()):
        await asked(play)
    ticket = await respond(play, "p1", True, via="signal")
    again = Play(bench, bench.client(), conversation, bench.store)
    async with working(again, till.tools()):
        reason = await finished(again, ticket, 1)

    assert (TerminalReason.SUCCESS, {"pay": 1}) == (reason, dict(till.made))


async def test_an_answer_that_meets_a_closing_lane_is_acted_on_once(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, till = await open_till(bench, serve, conversation, settings=LaneSettings(idle_close_seconds=0.01))
    number = 1
    for turn in range(4):
        await asked(play, (f"p{turn}", "pay", '{"sum": 5}'), name=f"go {turn}", number=number)
        ticket = await respond(play, f"p{turn}", True)
        await finished(play, ticket, number + 1)
        number += 2

    assert ({"pay": 4}, {}) == (dict(till.made), await pending(play))


async def test_a_lane_that_is_lost_before_its_run_could_end_asks_all_the_same(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), hold="finish_step", hold_answer=True)
    ticket = await play.submit("go")
    (await play.stage.call(1)).use(PAY)
    await play.barrier.until_reached()
    await play.lane.terminate()
    unrelated = await play.submit("b")
    play.barrier.release()
    first = await ticket.result(BOUND)
    await finished(play, unrelated, 2)
    reason = await finished(play, await respond(play, "p1", True), 3)

    assert (TerminalReason.PROVIDER_STOP, TerminalReason.SUCCESS) == (first.reason, reason)
    assert {"pay": 1} == dict(till.made)
