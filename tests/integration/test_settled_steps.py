"""Runs that their own last step ended, and what callers ask of the lane before it hears of that.

In most of these tests the end is in the store, and the step is held before it tells its lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from tests.conftest import Bench, Serve
from tests.integration.play import Play, anything, at_rest, open_play, run_id
from tests.integration.stage import BOUND, until
from turnlane.activities.operator_sink import OperatorSink
from turnlane.records.errors import ConversationActiveError, RunConflictError
from turnlane.records.lane import LaneSettings, RunLine
from turnlane.records.mutations import MutationKind
from turnlane.records.operator_events import OperatorEvent, RunTerminal, StepFinished
from turnlane.records.runs import RunState
from turnlane.store.payloads import StepFinish, Written

pytestmark = pytest.mark.server


@pytest.fixture
async def ended(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation in which A was answered, which the lane does not know yet."""
    play = await open_play(bench, serve, conversation, hold="finish_step", hold_answer=True)
    a = await play.submit("A")
    (await play.stage.call(1)).answer("Yes.")
    await play.barrier.until_reached()
    assert RunState.COMPLETED is (await play.run(a)).state
    yield play
    release(play)


def release(play: Play) -> None:
    """Let the lane hear, and everything after go its way."""
    play.barrier.release()
    play.stage.play()


async def terminal_commits(play: Play) -> int:
    """How many ends of runs stand in the ledger."""
    return [event.payload.get("type") for event in await play.ledger()].count(MutationKind.TERMINAL.value)


async def markers(play: Play) -> int:
    """How many local activities the lane has made once it is at rest."""
    history = await at_rest(play.lane)
    return sum(event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED for event in history)


async def test_a_plain_turn_of_a_warm_lane_makes_one_commit_and_one_activity(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    before = await markers(play)
    assert ["success"] == await play.reasons(await play.submit("B"))

    assert 1 == await markers(play) - before
    assert 2 == await terminal_commits(play)


async def test_an_answer_that_its_agent_judges_is_ended_by_the_lane(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, accept=anything)
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    before = await markers(play)
    assert ["success"] == await play.reasons(await play.submit("B"))

    assert 2 == await markers(play) - before


async def test_the_result_is_there_before_the_lane_knows_it(ended: Play) -> None:
    run = ended.stage.calls[0].request.run_id
    result = await ended.client.await_result(ended.conversation, run)
    (line,) = await ended.lane.query("runs", result_type=list[RunLine])

    assert ("success", "Yes.") == (result.reason, result.text)
    assert (run, RunState.RUNNING) == (line.run_id, line.state)


async def test_an_interrupt_that_comes_behind_the_end_conflicts_and_changes_nothing(ended: Play) -> None:
    run = ended.stage.calls[0].request.run_id
    with pytest.raises(RunConflictError) as refused:
        await ended.client.interrupt(ended.conversation, run)
    await ended.lane.signal("interrupt", {"run_id": run})
    await ended.lane.signal("stop")
    b = await ended.submit("B")
    release(ended)

    assert "completed" == refused.value.details["state"]
    assert ["success"] == await ended.reasons(b)
    assert [("user", "A"), ("assistant", "Yes.")] == (await ended.said())[:2]
    assert "interrupt" not in [event.payload.get("type") for event in await ended.ledger()]


@pytest.mark.parametrize("policy", ["queue", "inject", "interrupt", "interrupt-next", "supersede"])
async def test_an_input_behind_the_end_is_answered_next_whatever_its_policy(ended: Play, policy: str) -> None:
    b = await ended.submit("B", policy)
    release(ended)

    assert ["success"] == await ended.reasons(b)
    assert [("user", "A"), ("assistant", "Yes."), ("user", "B"), ("assistant", "answer to B")] == await ended.said()
    assert ["A", "B"] == ended.asked


async def test_a_run_that_has_ended_cannot_be_abandoned(ended: Play) -> None:
    view = await ended.client.run(ended.conversation, ended.stage.calls[0].request.run_id)
    assert view is not None
    with pytest.raises(RunConflictError):
        await ended.client.abandon(
            ended.conversation, view.run.id, stale_owner=True, expected_revision=view.run.revision
        )
    b = await ended.submit("B")
    release(ended)

    assert ["success"] == await ended.reasons(b)
    after = await ended.client.run(ended.conversation, view.run.id)
    assert after is not None and view.run == after.run


async def test_who_has_the_result_may_purge_at_once(ended: Play) -> None:
    purging = asyncio.create_task(ended.client.purge(ended.conversation))
    await until(lambda: looked_up(ended))
    assert not purging.done()
    release(ended)

    await purging
    assert await ended.store.is_purged(ended.conversation)


async def looked_up(play: Play) -> bool:
    """Whether the lane has asked the store how its run stands."""
    history = await play.lane.fetch_history()
    return any(b"find_run" in event.SerializeToString() for event in history.events)


async def test_a_purge_while_the_run_goes_on_is_refused_as_ever(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation)
    a = await play.submit("A")
    await play.stage.call(1)
    with pytest.raises(ConversationActiveError):
        await play.client.purge(conversation)
    play.stage.play()

    assert ["success"] == await play.reasons(a)


async def test_a_lane_that_is_lost_behind_the_end_leaves_nothing_to_do(ended: Play) -> None:
    await ended.lane.terminate("a test loses it")
    release(ended)
    b = await ended.submit("B")

    assert ["success"] == await ended.reasons(b)
    assert ["A", "B"] == ended.asked


# --- workers that are lost behind the end -------------------------------------------------------


class Losing:
    """A store that ends a run with its step, once, without its worker ever hearing of that."""

    def __init__(self, store: Any) -> None:
        self.lost = 0
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def finish_step(self, finish: StepFinish, now: datetime) -> Written:
        written: Written = await self._store.finish_step(finish, now)
        if finish.settles and not self.lost:
            self.lost += 1
            raise ConnectionResetError
        return written


async def test_an_attempt_that_finds_the_run_ended_by_the_one_before_calls_nobody(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    told: list[OperatorEvent] = []
    sink = OperatorSink(told.append)
    kept = bench.store
    bench.store = losing = Losing(kept)  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation, sink=sink)
    bench.store = play.store = kept
    play.client = bench.client()
    play.stage.play()
    a, b = await play.submit("A"), await play.submit("B")

    assert ["success", "success"] == await play.reasons(a, b)
    assert (1, ["A", "B"]) == (losing.lost, play.asked)
    await sink.close()
    ends = [event.run_id for event in told if isinstance(event, RunTerminal)]
    steps = [event.run_id for event in told if isinstance(event, StepFinished)]
    assert ([run_id(a), run_id(b)],) * 2 == (ends, steps)


async def test_receipts_of_invocations_are_written_with_an_end_that_the_lane_decides(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(invocations=True))
    play.stage.play()
    a = await play.submit("A")

    assert ["success"] == await play.reasons(a)
    assert 1 == await terminal_commits(play)
