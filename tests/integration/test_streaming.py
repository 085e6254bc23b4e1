"""What watchers of a conversation are told: in which order, from where on, and what they are told again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import groupby

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import Play, look, open_play, run_id
from tests.integration.stage import BOUND, HeldStore
from tests.integration.watching import Watch
from turnlane.agent import Agent
from turnlane.agent.models import Action, Call, Say, ScriptedModel, ScriptedRequest, Think
from turnlane.client import Ticket, Turnlane
from turnlane.records.events import (
    AssistantDeltaEvent,
    DurableEvent,
    Event,
    ReasoningDeltaEvent,
    RunOperationEvent,
    RunStateEvent,
    TerminalEvent,
    ToolStatus,
    ToolStatusEvent,
    is_durable,
)
from turnlane.records.runs import OperationPhase, RunState, TerminalReason
from turnlane.store.bus import RESYNC
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server


def _turn(request: ScriptedRequest) -> Sequence[Action]:
    """Think, look twice at once, and answer."""
    if request.step == 0:
        return [Think("let me think", chunk=3), Say("I look.", chunk=2), Call("look"), Call("look")]
    return [Say("I saw it twice.", chunk=2)]


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation)
    yield opened
    opened.stage.play()


@pytest.fixture
async def talk(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[tuple[Turnlane, str]]:
    """A client, and a conversation with a model that thinks, looks and answers."""
    await serve(Agent(name="watched", model=ScriptedModel(script=_turn), tools=[look], checkpoint_every=3))
    yield bench.client(), conversation


async def collected(ticket: Ticket) -> list[Event]:
    """All that a ticket's events tell."""
    return await Watch(ticket.events()).finished()


async def told(talk: tuple[Turnlane, str]) -> list[Event]:
    """All that somebody is told of a conversation's first turn who watched from before it began."""
    client, conversation = talk
    watch = Watch(client.events(conversation, from_seq=0))
    await client.submit(conversation, "hi")
    return await watch.finished()


def durable(events: Sequence[Event]) -> list[DurableEvent]:
    return [event for event in events if is_durable(event)]  # type: ignore[misc]


def ids(events: Sequence[Event]) -> list[str]:
    return [event.event_id for event in durable(events)]


async def stored(bench: Bench, conversation: str) -> list[str]:
    """The ids of all durable events that a late reader is told."""
    events, seq = await bench.store.events_since(conversation, 0, limit=1000)
    assert seq == await bench.store.last_seq(conversation)
    return ids(events)


def sequences(events: Sequence[Event]) -> dict[str, list[int]]:
    """The sequence numbers of each epoch, in the order in which they were told."""
    found: dict[str, list[int]] = {}
    for event in events:
        if not is_durable(event):
            found.setdefault(event.epoch, []).append(event.sequence)  # type: ignore[union-attr]
    return found


# --- order --------------------------------------------------------------------------------------


async def test_a_run_is_told_from_its_admission_to_its_terminal(talk: tuple[Turnlane, str]) -> None:
    events = await told(talk)

    assert ["admission", "run-state", "run-state", "run-operation"] == [event.type for event in events[:4]]
    states = [event.state for event in events if isinstance(event, RunStateEvent)]
    assert [RunState.QUEUED, RunState.RUNNING] == states
    assert ["terminal"] == [event.type for event in events if event.type == "terminal"]
    assert "terminal" == events[-1].type
    versions = [event.snapshot_version for event in durable(events)]
    assert sorted(versions) == versions
    assert len(set(ids(events))) == len(ids(events))


async def test_each_step_starts_before_it_speaks_and_ends_after(talk: tuple[Turnlane, str]) -> None:
    events = await told(talk)

    seen: list[tuple[int | None, str]] = []
    for event in events:
        if isinstance(event, RunOperationEvent):
            seen.append((event.operation.step, event.operation.phase.value))
        elif isinstance(event, AssistantDeltaEvent):
            seen.append((int(event.epoch.rsplit(":", 3)[1]), "delta"))
    shown = [item for item, _ in groupby(item for item in seen if item[1] != OperationPhase.FIRST_OUTPUT)]
    assert [(step, what) for step in (0, 1) for what in ("started", "delta", "completed")] == shown


async def test_text_and_reasoning_arrive_whole(talk: tuple[Turnlane, str]) -> None:
    events = await told(talk)

    said = "".join(event.text_delta for event in events if isinstance(event, AssistantDeltaEvent))
    thought = "".join(event.text_delta for event in events if isinstance(event, ReasoningDeltaEvent))
    assert ("I look.I saw it twice.", "let me think") == (said, thought)


async def test_every_publisher_counts_from_one_without_holes(talk: tuple[Turnlane, str]) -> None:
    events = await told(talk)

    counted = sequences(events)
    prefix = f"{events[0].run_id}:1"
    assert {f"{prefix}:0:model:1", f"{prefix}:0:call_0_0:1", f"{prefix}:0:call_0_1:1", f"{prefix}:1:model:1"} == set(
        counted
    )
    assert {epoch: list(range(1, len(found) + 1)) for epoch, found in counted.items()} == counted


async def test_a_tool_call_is_told_when_it_starts_and_when_it_ends(talk: tuple[Turnlane, str]) -> None:
    events = await told(talk)

    seen: dict[str, list[ToolStatus]] = {}
    for event in events:
        if isinstance(event, ToolStatusEvent):
            seen.setdefault(event.call_id, []).append(event.status)
    both = [ToolStatus.STARTED, ToolStatus.COMPLETED]
    assert {"call_0_0": both, "call_0_1": both} == seen


# --- who is told what ---------------------------------------------------------------------------


@pytest.mark.parametrize("store_place", ["file", "postgresql"], indirect=True)
async def test_a_client_without_a_bus_is_told_what_is_durable(bench: Bench, talk: tuple[Turnlane, str]) -> None:
    _, conversation = talk
    ticket = await bench.client(bus=False).submit(conversation, "hi")

    events = await collected(ticket)

    assert all(is_durable(event) for event in events)
    assert set(await stored(bench, conversation)) <= set(ids(events))
    assert ("admission", "terminal") == (events[0].type, events[-1].type)


async def test_a_late_watcher_catches_up_on_what_is_durable(bench: Bench, talk: tuple[Turnlane, str]) -> None:
    client, conversation = talk
    ticket = await client.submit(conversation, "hi")
    await ticket.result(BOUND)

    events = await collected(ticket)

    assert await stored(bench, conversation) == ids(events)
    assert len(events) == len(ids(events))
    last = events[-1]
    assert isinstance(last, TerminalEvent)
    assert (TerminalReason.SUCCESS, "I look.I saw it twice.") == (last.reason, last.message.text)


async def test_a_watcher_that_comes_in_mid_answer_misses_nothing_durable(bench: Bench, play: Play) -> None:
    ticket = await play.submit("A")
    call = await play.stage.call(1)
    call.say("first ")
    await play.until_draft("first ")
    watch = Watch(ticket.events())
    await watch.until("run-operation")
    call.answer("second")

    events = await watch.finished()

    deltas = [event.text_delta for event in events if isinstance(event, AssistantDeltaEvent)]
    assert ["second"] == deltas
    assert set(await stored(bench, play.conversation)) <= set(ids(events))


async def test_events_start_behind_a_position(bench: Bench, talk: tuple[Turnlane, str]) -> None:
    client, conversation = talk
    first = await client.submit(conversation, "one")
    await first.result(BOUND)
    position = await bench.store.last_seq(conversation)
    second = await client.submit(conversation, "two")
    await second.result(BOUND)

    everything = await Watch(client.events(conversation, from_seq=0), terminals=2).finished()
    later = await Watch(client.events(conversation, from_seq=position)).finished()

    assert await stored(bench, conversation) == ids(everything)
    assert {run_id(second)} == {event.run_id for event in later}
    assert [event for event in ids(everything) if event in ids(later)] == ids(later)


@pytest.mark.parametrize("bus", [True, False], ids=["bus", "no bus"])
async def test_events_without_a_position_are_the_new_ones(bench: Bench, play: Play, bus: bool) -> None:
    first = await play.submit("A")
    (await play.stage.call(1)).answer("one")
    await first.result(BOUND)
    # From the moment at which it has read where the ledger ends, the watcher is told what comes.
    held = HeldStore(bench.store, "last_seq", after=True)
    bench.store = held  # type: ignore[assignment]
    watch = Watch(bench.client(bus=bus).events(play.conversation))
    await held.barrier.until_reached()
    second = await play.submit("B")
    held.barrier.release()
    play.stage.play()

    events = await watch.finished()

    assert {run_id(second)} == {event.run_id for event in events}


async def test_the_watcher_of_an_absorbed_input_follows_it(play: Play) -> None:
    a = await play.submit("A")
    call = await play.stage.call(1)
    b = await play.submit("B", "inject")
    watch = Watch(b.events())
    await watch.until("run-state")
    call.use(("call_1", "look", "{}"))
    (await play.stage.call(2)).answer("both")

    events = await watch.finished()

    own = [event for event in events if event.run_id == run_id(b)]
    assert ["admission", "run-state", "run-state"] == [event.type for event in own]
    states = [event.state for event in own if isinstance(event, RunStateEvent)]
    assert [RunState.QUEUED, RunState.SUPERSEDED] == states
    last = events[-1]
    assert isinstance(last, TerminalEvent)
    assert (run_id(a), "both") == (last.run_id, last.message.text)


async def test_two_tickets_of_one_conversation_are_told_their_own_run(play: Play) -> None:
    a, b = await play.submit("A"), await play.submit("B")
    watches = [Watch(ticket.events()) for ticket in (a, b)]
    play.stage.play()

    heard = [await watch.finished() for watch in watches]

    assert [{run_id(a)}, {run_id(b)}] == [{event.run_id for event in events} for events in heard]
    assert [["terminal"]] * 2 == [[event.type for event in events if event.type == "terminal"] for events in heard]


# --- slow watchers ------------------------------------------------------------------------------


async def test_a_watcher_that_does_not_keep_up_is_told_to_resync(bench: Bench, play: Play) -> None:
    async with bench.bus.subscribe(play.conversation, capacity=4) as news:
        ticket = await play.submit("A")
        call = await play.stage.call(1)
        for number in range(20):
            call.say(f"{number} ")
        call.answer()
        await ticket.result(BOUND)

        first = await anext(news)

    assert RESYNC is first


async def test_a_slow_watcher_holds_up_nobody_and_is_told_everything_durable(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, checkpoint_every=100)
    lazy = Barrier("lazy", BOUND)
    seen: list[Event] = []

    async def watch(ticket: Ticket) -> None:
        async for event in ticket.events():
            seen.append(event)
            await lazy.wait()

    ticket = await play.submit("A")
    watching = asyncio.create_task(watch(ticket))
    await lazy.until_reached()
    call = await play.stage.call(1)
    for number in range(3000):
        call.say(f"{number} ")
    call.answer()
    result = await ticket.result(BOUND)
    lazy.release()
    async with asyncio.timeout(BOUND):
        await watching

    deltas = [event for event in seen if isinstance(event, AssistantDeltaEvent)]
    assert TerminalReason.SUCCESS is result.reason
    assert len(deltas) < 3000
    assert set(await stored(bench, conversation)) <= set(ids(seen))
    last = seen[-1]
    assert isinstance(last, TerminalEvent)
    assert result.text == last.message.text
