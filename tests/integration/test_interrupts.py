"""Interrupts: a run that was asked to stop stops, at once and for good, and what it said so far is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle

from tests.conftest import Bench, Serve
from tests.integration.play import Play, look, open_play, run_id
from tests.integration.stage import BOUND, MANY_LANES, Stage, until
from turnlane.activities.projection import INTERRUPTED_MARKER
from turnlane.agent import Agent, ScriptedModel, ToolContext, tool
from turnlane.agent.models import Action, Call, Pause, Say, ScriptedRequest
from turnlane.client import Turnlane
from turnlane.records.errors import RunConflictError, RunNotFoundError, WorkersUnavailableError
from turnlane.records.lane import RetryFacts, RunRequest
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ControlPart, ControlReason, MessageStatus, ToolOutcome, ToolResultPart
from turnlane.records.runs import Failure, FailureClass, OperationPhase, RunState, TerminalReason

pytestmark = pytest.mark.server


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation)
    yield opened
    opened.stage.play()


# --- asking -------------------------------------------------------------------------------------


async def test_an_interrupt_is_durable_when_it_is_answered(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    reply = await play.client.interrupt(play.conversation, run_id(a))
    run = await play.run(a)

    assert run_id(a) == reply.run_id
    assert run.state in (RunState.INTERRUPT_REQUESTED, RunState.INTERRUPTED)
    assert reply.run_revision is not None
    assert run.revision >= reply.run_revision
    assert ["interrupted"] == await play.reasons(a)


async def test_an_interrupt_that_names_no_run_means_the_one_in_flight(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    reply = await play.client.interrupt(play.conversation)
    play.stage.play()

    assert run_id(a) == reply.run_id
    assert ["interrupted", "success"] == await play.reasons(a, b)


async def test_a_signal_interrupts_as_well(play: Play) -> None:
    a = await play.submit("A")
    call = await play.stage.call(1)
    await play.lane.signal("interrupt", RunRequest(run_id=run_id(a)))
    await asyncio.wait_for(call.closed.wait(), BOUND)

    assert ["interrupted"] == await play.reasons(a)


async def test_a_signal_that_names_a_queued_run_touches_nothing(play: Play) -> None:
    a = await play.submit("A")
    call = await play.stage.call(1)
    b = await play.submit("B")
    await play.lane.signal("interrupt", RunRequest(run_id=run_id(b)))
    states = {line.run_id: line.state for line in await play.client.lane_runs(play.conversation)}
    play.stage.play()

    assert {run_id(a): RunState.RUNNING, run_id(b): RunState.QUEUED} == states
    assert ["success", "success"] == await play.reasons(a, b)
    assert "A" == call.asked


async def test_a_conflict_names_the_versions_it_found(play: Play) -> None:
    await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    with pytest.raises(RunConflictError) as caught:
        await play.client.interrupt(play.conversation, run_id(b))
    snapshot = await play.client.snapshot(play.conversation)

    assert snapshot.version == caught.value.details["head_version"]
    assert (await play.run(b)).revision == caught.value.details["run_revision"]


async def test_a_stale_revision_conflicts_and_stops_nothing(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    with pytest.raises(RunConflictError):
        await play.client.interrupt(play.conversation, run_id(a), expected_revision=0)
    play.stage.play()

    assert ["success"] == await play.reasons(a)


async def test_the_revision_that_a_checkpoint_made_is_not_stale(play: Play) -> None:
    a = await play.submit("A")
    (await play.stage.call(1)).say("Once upon")
    await play.until_draft("Once upon")
    seen = await play.run(a)
    reply = await play.client.interrupt(play.conversation, run_id(a), expected_revision=seen.revision)

    assert seen.revision + 1 == reply.run_revision
    assert ["interrupted"] == await play.reasons(a)


async def test_an_unknown_run_is_not_found(play: Play) -> None:
    a = await play.submit("A")
    await play.stage.call(1)
    with pytest.raises(RunNotFoundError):
        await play.client.interrupt(play.conversation, "nobody")
    play.stage.play()

    assert ["success"] == await play.reasons(a)


async def test_an_idle_lane_and_an_unknown_conversation_have_no_run_to_stop(play: Play) -> None:
    a = await play.submit("A")
    play.stage.play()
    await a.result(BOUND)
    with pytest.raises(RunConflictError):
        await play.client.interrupt(play.conversation)
    with pytest.raises(RunConflictError):
        await play.client.interrupt("c-nobody-ever-used")

    assert not await play.client.stop(play.conversation)


async def test_an_interrupt_while_no_worker_is_up_acts_when_one_is(bench: Bench, conversation: str) -> None:
    stage, client = Stage(), bench.client(answer_seconds=1.0)
    agent = stage.agent(name="actor")
    async with bench.worker(agent, providers=stage.providers, graceful_seconds=0.0):
        ticket = await client.submit(conversation, "A")
        await stage.call(1)
    with pytest.raises(WorkersUnavailableError):
        await client.interrupt(conversation, run_id(ticket))
    async with bench.worker(agent, providers=stage.providers):
        ended = await ticket.result(BOUND)

    assert TerminalReason.INTERRUPTED is ended.reason


# --- what it leaves -----------------------------------------------------------------------------


async def test_the_partial_answer_is_kept_and_marked(play: Play) -> None:
    a = await play.submit("A")
    (await play.stage.call(1)).say("Once upon")
    await play.until_draft("Once upon")
    await play.client.interrupt(play.conversation, run_id(a))
    ended = await a.result(BOUND)

    assert (RunState.INTERRUPTED, TerminalReason.INTERRUPTED, "Once upon") == (ended.state, ended.reason, ended.text)
    assert ended.message is not None
    assert MessageStatus.INTERRUPTED is ended.message.status
    assert ControlPart(reason=ControlReason.RUN_INTERRUPTED) in ended.message.parts


async def test_the_next_prompt_shows_what_was_interrupted(play: Play) -> None:
    a = await play.submit("A")
    call = await play.stage.call(1)
    call.say("Once upon")
    await play.until_draft("Once upon")
    b = await play.submit("B", "interrupt")
    await asyncio.wait_for(call.closed.wait(), BOUND)
    play.stage.play()

    assert ["interrupted", "success"] == await play.reasons(a, b)
    assert [("user", "A"), ("assistant", f"Once upon {INTERRUPTED_MARKER}"), ("user", "B")] == play.stage.calls[1].heard


async def test_a_superseded_answer_is_kept_and_never_shown_to_the_model(play: Play) -> None:
    a = await play.submit("A")
    call = await play.stage.call(1)
    call.say("Once upon")
    await play.until_draft("Once upon")
    b = await play.submit("B", "supersede")
    await asyncio.wait_for(call.closed.wait(), BOUND)
    play.stage.play()
    ended = await a.result(BOUND)

    assert ["superseded", "success"] == await play.reasons(a, b)
    assert "Once upon" == ended.text
    assert [("user", "A"), ("user", "B")] == play.stage.calls[1].heard


async def test_an_interrupt_outranks_a_supersede_that_comes_after_it(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step")
    assert play.held is not None
    a = await play.submit("A")
    await play.stage.call(1)
    await play.client.interrupt(conversation, run_id(a))
    b = await play.submit("B", "supersede")
    play.held.barrier.release()
    play.stage.play()

    assert ["interrupted", "success"] == await play.reasons(a, b)


async def test_an_answer_that_is_complete_when_its_interrupt_comes_is_stored_whole(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="finish_step")
    assert play.held is not None
    a = await play.submit("A")
    play.stage.play()
    await play.held.barrier.until_reached()
    await play.client.interrupt(conversation, run_id(a))
    play.held.barrier.release()
    ended = await a.result(BOUND)

    assert (TerminalReason.INTERRUPTED, "answer to A") == (ended.reason, ended.text)
    assert ended.run is not None
    assert ended.run.last_operation is not None
    assert OperationPhase.COMPLETED is ended.run.last_operation.phase


# --- when it comes ------------------------------------------------------------------------------


async def test_a_model_call_is_cut_at_once_and_the_next_input_follows(play: Play) -> None:
    a = await play.submit("A")
    call = await play.stage.call(1)
    b = await play.submit("B", "interrupt")
    await asyncio.wait_for(call.closed.wait(), BOUND)
    play.stage.play()

    assert ["interrupted", "success"] == await play.reasons(a, b)
    assert [("user", "A"), ("assistant", ""), ("user", "B"), ("assistant", "answer to B")] == await play.said()


async def test_a_slow_tool_is_told_to_stop_and_its_finished_sibling_keeps_its_result(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    begun, told, idle = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def dig(context: ToolContext) -> str:
        """Dig for a long time."""
        begun.set()
        try:
            await idle.wait()
        finally:
            told.set()
        return "never"

    play = await open_play(bench, serve, conversation, tools=[look, dig])
    a = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "look", "{}"), ("c2", "dig", "{}"))
    await asyncio.wait_for(begun.wait(), BOUND)
    await until(lambda: _results(play))
    b = await play.submit("B", "interrupt")
    await asyncio.wait_for(told.wait(), BOUND)
    play.stage.play()
    ended = await a.result(BOUND)

    assert ["interrupted", "success"] == await play.reasons(a, b)
    assert ended.message is not None
    outcomes = {part.call_id: part.outcome for part in ended.message.parts if isinstance(part, ToolResultPart)}
    assert {"c1": ToolOutcome.SUCCESS, "c2": ToolOutcome.INTERRUPTED} == outcomes
    assert [
        ("user", "A"),
        ("assistant", "c1 c2"),
        ("tool", "c1 c2"),
        ("assistant", INTERRUPTED_MARKER),
        ("user", "B"),
    ] == play.stage.calls[1].heard


async def test_a_retry_pause_ends_at_once(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, retry=RetryFacts(initial_seconds=600, max_seconds=600))
    a = await play.submit("A")
    (await play.stage.call(1)).fail(Failure(failure_class=FailureClass.OVERLOADED, retryable=True))
    await until(lambda: _has_scheduled_a_retry(play))
    b = await play.submit("B", "interrupt")
    play.stage.play()

    assert ["interrupted", "success"] == await play.reasons(a, b)
    assert ["A", "B"] == play.asked


async def _results(play: Play) -> list[ToolResultPart]:
    return [part for message in await play.messages() for part in message.parts if isinstance(part, ToolResultPart)]


async def _has_scheduled_a_retry(play: Play) -> bool:
    return any(event.kind == LedgerKind.RETRY_SCHEDULED for event in await play.ledger())


# --- at any moment ------------------------------------------------------------------------------


@tool
async def tick(milliseconds: int) -> str:
    """Take a while."""
    await asyncio.sleep(milliseconds / 1000)
    return "tock"


def tireless(request: ScriptedRequest) -> list[Action]:
    """Work in steps of 50 to 150 ms each, the same for each run and step."""
    dice = random.Random(f"{request.conversation_id}/{request.step}")
    return [Say("More.", chunk=2), Pause(dice.uniform(0.0, 0.1)), Call("tick", {"milliseconds": dice.randint(10, 60)})]


async def test_an_interrupt_at_any_moment_is_the_last_thing_a_run_does(bench: Bench, serve: Serve) -> None:
    agent = Agent(name="tireless", model=ScriptedModel(script=tireless), tools=[tick])
    await serve(agent, max_cached_workflows=MANY_LANES)
    client, dice = bench.client(), random.Random(50)
    moments = [dice.uniform(0.0, 1.0) for _ in range(30)]
    late: list[list[str]] = []
    for start in range(0, len(moments), 6):
        batch = moments[start : start + 6]
        late += await asyncio.gather(
            *(_interrupted_after(client, f"{bench.task_queue}-{start + place}", at) for place, at in enumerate(batch))
        )

    assert [[]] * len(moments) == late


async def _interrupted_after(client: Turnlane, conversation: str, seconds: float) -> list[str]:
    """Interrupt a run at a moment, and return the activities that its lane scheduled afterwards."""
    ticket = await client.submit(conversation, "work")
    admission = await ticket.admitted(BOUND)
    await asyncio.sleep(seconds)
    await client.interrupt(conversation, admission.run_id)
    ended = await ticket.result(BOUND)
    assert TerminalReason.INTERRUPTED is ended.reason
    return await _scheduled_after_interrupt(client.temporal.get_workflow_handle(f"lane/{conversation}"))


async def _scheduled_after_interrupt(lane: WorkflowHandle[object, object]) -> list[str]:
    accepted: int | None = None
    scheduled: list[str] = []
    async for event in lane.fetch_history_events():
        update = event.workflow_execution_update_accepted_event_attributes
        activity = event.activity_task_scheduled_event_attributes
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            if update.accepted_request.input.name == "interrupt":
                accepted = event.event_id
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED and accepted is not None:
            if activity.workflow_task_completed_event_id > accepted:
                scheduled.append(activity.activity_type.name)
    assert accepted is not None
    return scheduled
