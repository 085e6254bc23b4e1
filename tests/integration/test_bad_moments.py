"""Lanes that are superseded, cancelled or away at a bad moment: what they had taken in is answered all the same."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadCodec

from tests.conftest import Bench, Serve
from tests.integration.play import Play, anything, open_play
from tests.integration.stage import BOUND, HeldStore, until
from turnlane.client import Turnlane
from turnlane.records.admissions import RecordIds
from turnlane.records.errors import StoreIntegrityError, UnknownAgentError
from turnlane.records.lane import LaneSettings
from turnlane.records.mutations import CommitBatch, CommitOutcome, CommitReply, MutationKind
from turnlane.records.runs import RunView
from turnlane.store.payloads import Committed

pytestmark = pytest.mark.server


class DivergingStore:
    """A store that says once, of a kind of mutation, that another decision stands in its place."""

    def __init__(self, store: Any, kind: MutationKind) -> None:
        self._store = store
        self._kind = kind
        self.diverged = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        if not self.diverged and any(mutation.kind is self._kind for mutation in batch.mutations):
            self.diverged += 1
            return Committed(reply=CommitReply(outcome=CommitOutcome.DIVERGED))
        answer: Committed = await self._store.commit(batch, now)
        return answer


async def current(play: Play) -> str | None:
    """The history that the lane has now."""
    return (await play.lane.describe()).run_id


async def test_a_signal_that_was_being_checked_when_its_lane_was_superseded_is_answered(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    kept = bench.store
    held = HeldStore(DivergingStore(kept, MutationKind.TERMINAL), "find_collisions")
    bench.store = held  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation, settings=LaneSettings(local_seconds=1), accept=anything)
    bench.store = play.store = kept
    play.client = bench.client()
    a = await play.submit("A")
    first = await current(play)
    call = await play.stage.call(1)
    b = await play.submit("B", via="signal", record_ids=RecordIds(run_id="run-of-b"))
    await held.barrier.until_reached()
    call.answer("Yes.")
    await until(lambda: _has_left(play, first))
    held.barrier.release()
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)
    assert ["A", "B"] == await play.answered()


async def _has_left(play: Play, history: str | None) -> bool:
    return await current(play) != history


async def test_a_lane_that_is_cancelled_while_it_moves_to_a_fresh_history_ends_and_loses_nothing(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    settings = LaneSettings(local_seconds=1, events_between_steps=10)
    play = await open_play(bench, serve, conversation, hold="find_collisions", settings=settings)
    assert play.held is not None
    a = await play.submit("A")
    call = await play.stage.call(1)
    b = await play.submit("B", via="signal", record_ids=RecordIds(run_id="run-of-b"))
    await play.held.barrier.until_reached()
    call.use(("c1", "look", "{}"))
    await until(lambda: _has_decided_after(play, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, 2))
    await play.lane.cancel()
    await until(lambda: _has_decided_after(play, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED))
    play.held.barrier.release()
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(play.lane.result(), BOUND)
    play.stage.play()
    c = await play.submit("C")

    assert ["shutdown", "success", "success"] == await play.reasons(a, b, c)
    assert ["A", "B", "C"] == await play.answered()


async def _has_decided_after(play: Play, kind: EventType.ValueType, count: int = 1) -> bool:
    """Whether the lane has completed a task since the `count`th event of a kind."""
    kinds = [event.event_type async for event in play.lane.fetch_history_events()]
    places = [place for place, found in enumerate(kinds) if found == kind][count - 1 : count]
    return bool(places) and EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds[places[0] :]


# --- what its callers hear ----------------------------------------------------------------------


async def test_a_signal_to_a_lane_that_is_cancelled_before_it_opened_is_answered(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="open_lane")
    assert play.held is not None
    play.stage.play()
    a = await play.submit("A", via="signal")
    await play.held.barrier.until_reached()
    await play.lane.cancel()
    await until(lambda: _is_asked_to_cancel(play))
    play.held.barrier.release()
    with pytest.raises(WorkflowFailureError):
        await play.lane.result()
    b = await play.submit("B")

    assert ["success", "success"] == await play.reasons(a, b)
    assert ["A", "B"] == await play.answered()


async def _is_asked_to_cancel(play: Play) -> bool:
    wanted = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
    return any([event.event_type == wanted async for event in play.lane.fetch_history_events()])


async def test_an_input_whose_lane_was_superseded_before_it_was_admitted_is_sent_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    kept, diverging = bench.store, DivergingStore(bench.store, MutationKind.ACCEPT)
    bench.store = diverging  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation)
    bench.store = play.store = kept
    play.client = bench.client(store=False, bus=False)
    play.stage.play()
    a = await play.submit("A")

    assert ["success"] == await play.reasons(a)
    assert (1, ["A"]) == (diverging.diverged, play.asked)


async def test_an_input_whose_lane_was_terminated_before_it_was_admitted_is_sent_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, hold="commit")
    assert play.held is not None
    play.client = bench.client(store=False, bus=False)
    play.stage.play()
    sending = asyncio.create_task(play.submit("A"))
    await play.held.barrier.until_reached()
    await play.lane.terminate("a test loses it")
    play.held.barrier.release()
    a = await asyncio.wait_for(sending, BOUND)

    assert ["success"] == await play.reasons(a)
    assert ["A"] == play.asked


async def test_who_waits_for_a_run_that_a_cancelled_lane_left_in_its_queue_has_it_run(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation)
    plain = bench.client(store=False, bus=False)
    a = await play.submit("A")
    await play.stage.call(1)
    b = await plain.submit(conversation, "B")
    waiting = asyncio.create_task(b.result(BOUND))
    await play.lane.cancel()
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(play.lane.result(), BOUND)
    play.stage.play()

    assert "success" == (await waiting).reason.value
    assert ["shutdown"] == await play.reasons(a)
    await plain.close()


async def test_a_refusal_of_an_earlier_call_is_not_taken_for_that_of_a_resend(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    refused = await play.submit("A", agent="another", via="signal")
    with pytest.raises(UnknownAgentError):
        await refused.admitted(BOUND)
    again = await play.submit("A", via="signal")

    assert ["success"] == await play.reasons(again)


async def test_a_store_that_cannot_look_a_run_up_fails_the_call_and_not_the_lane(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    kept = bench.store
    bench.store = BrokenStore(kept)  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation)
    bench.store = play.store = kept
    play.client = bench.client()
    play.stage.play()
    a = await play.submit("A")
    with pytest.raises(StoreIntegrityError):
        await asyncio.wait_for(bench.client(store=False).await_result(conversation, "nobody"), BOUND)

    b = await play.submit("B")

    assert ["success", "success"] == await play.reasons(a, b)


async def test_what_an_input_cannot_be_sent_for_is_raised_at_once(bench: Bench, conversation: str) -> None:
    converter = dataclasses.replace(pydantic_data_converter, payload_codec=BrokenCodec())
    temporal = await Client.connect(bench.temporal.service_client.config.target_host, data_converter=converter)
    client = Turnlane(temporal, task_queue=bench.task_queue, answer_seconds=2 * BOUND)
    async with asyncio.timeout(BOUND) as bound:
        with pytest.raises(RuntimeError, match="no key"):
            await client.submit(conversation, "A")

    assert not bound.expired()


class BrokenStore:
    """A store that finds its runs damaged."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def load_run(self, conversation_id: str, run_id: str) -> RunView | None:
        raise StoreIntegrityError("a run is damaged", run_id=run_id)


class BrokenCodec(PayloadCodec):
    """A codec without its key."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise RuntimeError("no key")

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)
