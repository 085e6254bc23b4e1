"""Control: cancelling, abandoning, purging, and what a lane says of itself, with a store and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import Play, open_play, run_id
from tests.integration.stage import BOUND, until
from turnlane.client import Turnlane
from turnlane.records.errors import (
    AgentMismatchError,
    ConversationActiveError,
    ConversationPurgedError,
    IdempotencyConflictError,
    InvalidInputError,
    RunConflictError,
    RunNotFoundError,
    StoreRequiredError,
)
from turnlane.records.events import RunStateEvent, TerminalEvent
from turnlane.records.lane import AdmissionQuery, LaneHead, LaneSettings, WaitReply, WaitRequest
from turnlane.records.messages import MessageStatus
from turnlane.records.runs import RunState, Snapshot

pytestmark = pytest.mark.server


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation)
    yield opened
    opened.stage.play()


async def told(play: Play, run: str) -> list[str]:
    """What watchers are told of a run: its states and its end."""
    events, _ = await play.store.events_since(play.conversation, 0)
    mine = [event for event in events if event.run_id == run]
    states = [event.state.value for event in mine if isinstance(event, RunStateEvent)]
    return states + [f"terminal {event.reason.value}" for event in mine if isinstance(event, TerminalEvent)]


# --- cancel -------------------------------------------------------------------------------------


async def test_a_cancelled_run_never_runs_and_its_input_stays_unheard(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b, c = await play.submit("B"), await play.submit("C")
    reply = await play.client.cancel(play.conversation, run_id(b))
    play.stage.play()

    assert (run_id(b), RunState.CANCELLED) == (reply.run_id, reply.state)
    assert ["success", "cancelled", "success"] == await play.reasons(a, b, c)
    assert ["A", "C"] == play.asked
    assert ("user", "B") not in play.stage.calls[1].heard


async def test_a_cancel_is_told_to_watchers_and_marked_on_the_answer(play: Play) -> None:
    await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    await play.client.cancel(play.conversation, run_id(b))
    ended = await b.result(BOUND)

    assert ["queued", "cancelled", "terminal cancelled"] == await told(play, run_id(b))
    assert ended.message is not None
    assert (MessageStatus.INTERRUPTED, "") == (ended.message.status, ended.text)


async def test_only_a_run_that_waits_can_be_cancelled(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    revision = (await play.run(b)).revision
    with pytest.raises(RunConflictError):
        await play.client.cancel(play.conversation, run_id(a))
    with pytest.raises(RunConflictError):
        await play.client.cancel(play.conversation, run_id(b), expected_revision=revision + 1)
    with pytest.raises(RunNotFoundError):
        await play.client.cancel(play.conversation, "nobody")
    await play.client.cancel(play.conversation, run_id(b), expected_revision=revision)
    with pytest.raises(RunConflictError):
        await play.client.cancel(play.conversation, run_id(b))
    play.stage.play()

    assert ["success", "cancelled"] == await play.reasons(a, b)


async def test_a_cancelled_input_sent_again_is_told_that_it_was_cancelled(play: Play) -> None:
    await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    await play.client.cancel(play.conversation, run_id(b))
    again = await play.submit("B")

    assert again.admission is not None
    assert (True, RunState.CANCELLED) == (again.admission.duplicate, again.admission.run_state)
    assert ["cancelled"] == await play.reasons(again)


# --- abandon ------------------------------------------------------------------------------------


async def test_an_abandoned_run_is_over_and_the_next_one_runs(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    (await play.stage.call(1)).say("Once upon")
    await play.until_draft("Once upon")
    running = await play.run(a)
    reply = await play.client.abandon(
        play.conversation, run_id(a), expected_revision=running.revision, stale_owner=True
    )
    play.stage.play()
    ended = await a.result(BOUND)

    assert RunState.ABANDONED is reply.state
    assert ["abandoned", "success"] == await play.reasons(a, b)
    assert ended.message is not None
    assert MessageStatus.FAILED is ended.message.status
    assert ["queued", "running", "abandoned"] == await told(play, run_id(a))


async def test_abandoning_takes_evidence_and_the_revision_that_was_seen(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    running = await play.until_state(a, RunState.RUNNING)
    with pytest.raises(InvalidInputError):
        await play.client.abandon(play.conversation, run_id(a), expected_revision=running.revision, stale_owner=False)
    with pytest.raises(RunConflictError):
        await play.client.abandon(play.conversation, run_id(a), expected_revision=0, stale_owner=True)
    play.stage.play()

    assert ["success"] == await play.reasons(a)


async def test_a_run_of_a_lost_lane_can_be_abandoned(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    await play.client.cancel(play.conversation, run_id(b))
    c = await play.submit("C")
    waiting = await play.run(c)
    await play.lane.terminate()
    await play.client.abandon(play.conversation, run_id(c), expected_revision=waiting.revision, stale_owner=True)
    play.stage.play()

    assert ["success", "cancelled", "abandoned"] == await play.reasons(a, b, c)


# --- purge --------------------------------------------------------------------------------------


async def test_a_conversation_with_active_runs_is_not_purged(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    with pytest.raises(ConversationActiveError) as caught:
        await play.client.purge(play.conversation)
    play.stage.play()

    assert [run_id(a), run_id(b)] == caught.value.details["run_ids"]
    assert ["success", "success"] == await play.reasons(a, b)


async def test_a_purge_at_another_version_conflicts_and_deletes_nothing(play: Play) -> None:
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    before = await play.client.snapshot(play.conversation)
    with pytest.raises(RunConflictError) as caught:
        await play.client.purge(play.conversation, expected_version=before.version - 1)

    assert before.version == caught.value.details["head_version"]
    assert before == await play.client.snapshot(play.conversation)


async def test_after_a_purge_every_call_is_refused_and_the_lane_has_ended(play: Play) -> None:
    play.stage.play()
    a = await play.submit("A")
    await a.result(BOUND)
    version = (await play.client.snapshot(play.conversation)).version
    await play.client.purge(play.conversation, expected_version=version)
    report = await asyncio.wait_for(play.lane.result(), BOUND)

    assert "purged" == report["outcome"]
    for call in (
        play.submit("B"),
        play.submit("A"),
        play.client.cancel(play.conversation, run_id(a)),
        play.client.abandon(play.conversation, run_id(a), expected_revision=1, stale_owner=True),
        play.client.purge(play.conversation),
    ):
        with pytest.raises(ConversationPurgedError):
            await call
    assert Snapshot(conversation_id=play.conversation, version=0) == await play.client.snapshot(play.conversation)
    assert 1 == len(play.stage.calls)


async def test_a_conversation_that_nobody_used_can_be_purged_for_good(play: Play) -> None:
    await play.client.purge(play.conversation)
    with pytest.raises(ConversationPurgedError):
        await play.submit("A")

    assert [] == await play.said()


# --- stop and look ------------------------------------------------------------------------------


async def test_stop_ends_the_run_in_flight_and_the_queue_goes_on(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    stopped = await play.client.stop(play.conversation)
    play.stage.play()

    assert stopped
    assert ["interrupted", "success"] == await play.reasons(a, b)
    assert not await play.client.stop(play.conversation)


async def test_the_stop_signal_does_the_same(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    await play.lane.signal("stop")
    await a.result(BOUND)
    play.stage.play()

    assert ["interrupted", "success"] == await play.reasons(a, b)


async def test_queries_tell_of_the_head_the_runs_and_an_admission(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    head: LaneHead = await play.lane.query("head", result_type=LaneHead)
    lines = await play.client.lane_runs(play.conversation)
    known: AdmissionQuery = await play.lane.query("admission", "B", result_type=AdmissionQuery)
    unknown: AdmissionQuery = await play.lane.query("admission", "C", result_type=AdmissionQuery)
    version = (await play.client.snapshot(play.conversation)).version

    assert ("actor", ()) == (head.agent, head.receipts)
    assert version >= head.version > 0
    assert [(run_id(a), "running", 0), (run_id(b), "queued", None)] == [
        (line.run_id, line.state.value, line.step) for line in lines
    ]
    assert known.admission is not None
    assert run_id(b) == known.admission.run_id
    assert unknown.admission is None


async def test_a_person_sees_state_run_and_queue_in_the_ui(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    await play.submit("B")
    description = await play.lane.describe()
    metadata = await play.lane.query("__temporal_workflow_metadata")
    details = metadata["currentDetails"] if isinstance(metadata, dict) else metadata.current_details

    assert f"conversation {play.conversation}" == await description.static_summary()
    for expected in ("**running**", "agent: `actor`", f"active run: `{run_id(a)}`", "queued runs: 1"):
        assert expected in details


async def test_lanes_can_be_listed_by_agent_and_state(bench: Bench, serve: Serve, conversation: str) -> None:
    settings = LaneSettings(search_attributes=True, idle_close_seconds=1)
    play = await open_play(bench, serve, conversation, settings=settings)
    await play.submit("A")
    await play.stage.call(1)

    async def listed(state: str) -> list[str]:
        query = f"TurnlaneAgent = 'actor' AND TurnlaneState = '{state}'"
        found = [lane.id async for lane in bench.temporal.list_workflows(query)]
        return [name for name in found if name == f"lane/{conversation}"]

    is_open = await until(lambda: listed("open"))
    play.stage.play()
    await asyncio.wait_for(play.lane.result(), BOUND)

    assert [f"lane/{conversation}"] == is_open
    assert [f"lane/{conversation}"] == await until(lambda: listed("idle"))


# --- waiting ------------------------------------------------------------------------------------


async def test_watchers_never_block_an_input(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    plain = play.bench.client(store=False, bus=False)
    watchers = [asyncio.create_task(plain.await_result(play.conversation, run_id(a))) for _ in range(30)]
    b = await play.submit("B")
    play.stage.play()
    ends = await asyncio.wait_for(asyncio.gather(*watchers), 3 * BOUND)

    assert b.admission is not None
    assert [(run_id(a), "success")] * 30 == [(end.run_id, end.reason.value) for end in ends]
    assert ["success"] == await play.reasons(b)


async def test_waiting_for_a_run_that_nobody_knows_is_refused(play: Play) -> None:
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    plain = play.bench.client(store=False, bus=False)
    with pytest.raises(RunNotFoundError):
        await asyncio.wait_for(plain.await_result(play.conversation, "nobody"), BOUND)


async def test_a_wait_that_takes_long_is_asked_again(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(wait_seconds=0.2))
    a = await play.submit("A")
    await play.stage.call(1)
    reply: WaitReply = await play.lane.execute_update("wait", WaitRequest(run_id=run_id(a)), result_type=WaitReply)
    plain = bench.client(store=False, bus=False)
    watcher = asyncio.create_task(plain.await_result(conversation, run_id(a)))
    play.stage.play()

    assert (True, None) == (reply.again, reply.terminal)
    assert "success" == (await asyncio.wait_for(watcher, BOUND)).reason.value


# --- without a store ----------------------------------------------------------------------------


@pytest.fixture
def plain(play: Play) -> Turnlane:
    """A client that has Temporal and nothing else."""
    return play.bench.client(store=False, bus=False)


async def test_a_client_without_a_store_submits_and_gets_the_control_facts(play: Play, plain: Turnlane) -> None:
    play.stage.play()
    ticket = await plain.submit(play.conversation, "A", key="A")
    ended = await ticket.result(BOUND)
    again = await plain.submit(play.conversation, "A", key="A")

    assert ("success", None, "") == (ended.reason.value, ended.message, ended.text)
    assert ended.run_id == run_id(ticket) == run_id(again)
    assert ended.run_id == (await again.result(BOUND)).run_id
    assert "answer to A" == (await play.messages())[-1].text
    await plain.close()


async def test_a_client_without_a_store_controls_runs(play: Play, plain: Turnlane) -> None:
    a = await plain.submit(play.conversation, "A")
    await play.stage.call(1)
    b, c = await plain.submit(play.conversation, "B"), await plain.submit(play.conversation, "C")
    await plain.cancel(play.conversation, run_id(b))
    await plain.interrupt(play.conversation, run_id(a))
    play.stage.play()

    assert ["interrupted", "cancelled", "success"] == await play.reasons(a, b, c)
    await plain.close()


async def test_a_client_without_a_store_says_what_it_cannot_read(play: Play, plain: Turnlane) -> None:
    with pytest.raises(StoreRequiredError):
        await plain.messages(play.conversation)
    with pytest.raises(StoreRequiredError):
        await plain.snapshot(play.conversation)

    assert [] == await plain.lane_runs(play.conversation)


async def test_a_signal_without_a_store_finds_its_admission_after_continue_as_new(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, settings=LaneSettings(events_between_runs=5))
    play.stage.play()
    plain = bench.client(store=False, bus=False)
    first = (await play.lane.describe()).run_id if (await play.submit("A")).admission else ""
    ticket = await plain.submit(conversation, "B", key="B", via="signal")
    await until(lambda: _has_moved_on(play, first))
    admission = await ticket.admitted(BOUND)

    assert "B" == admission.idempotency_key
    assert "success" == (await ticket.result(BOUND)).reason.value


async def _has_moved_on(play: Play, first: str) -> bool:
    return "B" in await play.answered() and (await play.lane.describe()).run_id != first


async def test_a_client_without_a_store_hears_that_its_signal_was_refused(play: Play, plain: Turnlane) -> None:
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    other_agent = await plain.submit(play.conversation, "B", key="B", agent="another", via="signal")
    other_content = await plain.submit(play.conversation, "not A", key="A", via="signal")

    with pytest.raises(AgentMismatchError):
        await other_agent.admitted(BOUND)
    with pytest.raises(IdempotencyConflictError):
        await other_content.admitted(BOUND)


async def test_a_client_without_a_store_does_not_take_another_inputs_admission_for_its_own(
    play: Play, plain: Turnlane
) -> None:
    play.stage.play()
    await (await play.submit("A")).result(BOUND)

    with pytest.raises(IdempotencyConflictError):
        await plain.submit(play.conversation, "not A", key="A")
