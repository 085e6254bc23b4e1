"""Lanes whose store knows of another decision: they open again by themselves, and what came meanwhile is heard."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError, WorkflowUpdateStage
from temporalio.exceptions import ApplicationError

from tests.conftest import Bench, Serve
from tests.integration.play import Play, anything, are_duplicates, current, open_play, run_id
from tests.integration.stage import BOUND, HeldStore, until
from turnlane.client import Ticket
from turnlane.records.errors import LaneSupersededError
from turnlane.records.ledger import LedgerKind
from turnlane.records.mutations import CommitBatch, CommitOutcome, CommitReply, MutationKind
from turnlane.records.runs import TerminalReason
from turnlane.store.payloads import Committed
from turnlane.workflows.lane import MAX_REOPENS

pytestmark = pytest.mark.server


class DivergingStore:
    """A store that says once, of the first mutation of a kind, that another decision stands in its place."""

    def __init__(self, store: Any, kind: MutationKind = MutationKind.TERMINAL) -> None:
        self.diverged = 0
        self._kind = kind
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        ends = [mutation for mutation in batch.mutations if mutation.kind is self._kind]
        if ends and not self.diverged:
            self.diverged += 1
            return Committed(reply=CommitReply(outcome=CommitOutcome.DIVERGED))
        answer: Committed = await self._store.commit(batch, now)
        return answer


async def diverging_play(
    bench: Bench, serve: Serve, conversation: str, kind: MutationKind, **options: Any
) -> tuple[Play, DivergingStore]:
    """A play whose worker has a diverging store. The client has the real one."""
    kept, diverging = bench.store, DivergingStore(bench.store, kind)
    bench.store = diverging  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation, **options)
    bench.store = play.store = kept
    play.client = bench.client()
    return play, diverging


async def test_a_lane_whose_decisions_ran_twice_opens_again_by_itself(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play, diverging = await diverging_play(bench, serve, conversation, MutationKind.TERMINAL, accept=anything)
    a = await play.submit("A")
    first = await current(play)
    await play.stage.call(1)
    b = await play.submit("B")
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)
    assert (1, True) == (diverging.diverged, first != await current(play))
    assert [("user", "A"), ("assistant", "answer to A"), ("user", "B"), ("assistant", "answer to B")] == (
        await play.said()
    )


@pytest.mark.parametrize("signal", ["interrupt", "the run in flight", "stop"])
async def test_a_signal_to_stop_that_was_not_stored_is_heard_by_the_next_history(
    bench: Bench, serve: Serve, conversation: str, signal: str
) -> None:
    play, diverging = await diverging_play(bench, serve, conversation, MutationKind.INTERRUPT)
    a = await play.submit("A")
    first = await current(play)
    await play.stage.call(1)
    b = await play.submit("B")
    revision = (await play.run(a)).revision
    asked = {"interrupt": {"run_id": run_id(a), "expected_revision": revision}, "the run in flight": {}}
    await (play.lane.signal("interrupt", asked[signal]) if signal in asked else play.lane.signal("stop"))
    ended = await a.result(BOUND)
    play.stage.play()

    assert (TerminalReason.INTERRUPTED, ["success"]) == (ended.reason, await play.reasons(b))
    assert (1, True) == (diverging.diverged, first != await current(play))
    assert ["A", "B"] == play.asked


@dataclass
class Lost:
    """A lane that its store refused, and that cannot move on yet: a delivery is held. `a` runs, `b` waits."""

    play: Play
    held: HeldStore
    a: Ticket
    b: Ticket
    first: str | None

    async def has_moved(self) -> bool:
        return self.first != await current(self.play)


@pytest.fixture
async def lost(bench: Bench, serve: Serve, conversation: str) -> Lost:
    bench.store = held = HeldStore(bench.store, "deliver")  # type: ignore[assignment]
    play, diverging = await diverging_play(bench, serve, conversation, MutationKind.RECOVER)
    play.store = held._store
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    first = await current(play)
    await play.lane.signal("deliver", {"event": "paid", "id": "1", "payload": 7})
    await held.barrier.until_reached()
    await play.lane.start_update(
        "abandon",
        {"run_id": run_id(b), "expected_revision": (await play.run(b)).revision, "stale_owner": True},
        wait_for_stage=WorkflowUpdateStage.ACCEPTED,
    )

    async def is_lost() -> bool:
        return diverging.diverged == 1

    await until(is_lost)
    return Lost(play, held, a, b, first)


async def test_signals_to_a_lane_that_is_lost_already_reach_the_next_history(lost: Lost) -> None:
    play = lost.play
    await play.lane.signal("stop")
    await play.lane.signal("submit", {"key": "C", "text": "C"})
    lost.held.barrier.release()
    ended = await lost.a.result(BOUND)
    play.stage.play()
    again = await play.submit("C")

    assert (TerminalReason.INTERRUPTED, ["success", "success"]) == (ended.reason, await play.reasons(lost.b, again))
    assert (True, True) == (await are_duplicates([again]), await lost.has_moved())
    delivered = [event.payload["id"] for event in await play.ledger() if event.kind == LedgerKind.DURABLE_EVENT]
    assert ["1"] == delivered


async def test_more_signals_than_travel_reach_the_next_history_by_way_of_the_store(
    lost: Lost, conversation: str
) -> None:
    play = lost.play
    keys = [f"key {number:02}" for number in range(45)]
    for key in keys:
        # In all more than a history takes as an argument.
        await play.lane.signal("submit", {"key": key, "text": key + "x" * 50_000})
    lost.held.barrier.release()
    play.stage.play()
    tickets = [await play.client.submit(conversation, key + "x" * 50_000, key=key) for key in keys]

    assert ["success"] * 47 == await play.reasons(lost.a, lost.b, *tickets)
    assert (True, True) == (await are_duplicates(tickets), await lost.has_moved())
    heard = [text[:6] for role, text in await play.said() if role == "user" and text.startswith("key")]
    assert keys == heard


async def test_a_lane_that_can_store_nothing_gives_up_after_so_many_histories(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    class Refusing(DivergingStore):
        async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
            if self.refuses:
                self.diverged += 1
                return Committed(reply=CommitReply(outcome=CommitOutcome.DIVERGED))
            answer: Committed = await self._store.commit(batch, now)
            return answer

        refuses = False

    kept, refusing = bench.store, Refusing(bench.store)
    bench.store = refusing  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation)
    bench.store = play.store = kept
    play.client = bench.client()
    a = await play.submit("A")
    await play.stage.call(1)
    refusing.refuses = True
    await play.lane.signal("submit", {"key": "B", "text": "B"})
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(play.lane.result(), BOUND)
    refusing.refuses = False
    play.stage.play()
    c = await play.submit("C")

    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (LaneSupersededError.code, MAX_REOPENS + 1) == (cause.type, refusing.diverged)
    assert ["success", "success"] == await play.reasons(a, c)


async def test_a_reset_to_the_first_task_admits_nothing_again(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    await (await play.submit("A")).result(BOUND)
    await (await play.submit("B", via="signal")).result(BOUND)
    before = await play.messages()
    first = await current(play)
    await _reset(play)
    c = await play.submit("C")
    await c.result(BOUND)
    after = await play.messages()

    assert first != await current(play)
    assert before == after[: len(before)]
    assert ["A", "B", "C"] == await play.answered()
    assert 3 == len(play.stage.calls)


async def _reset(play: Play) -> None:
    """Reset the lane to its first workflow task, as an operator would; what came in later is applied again."""
    lane = await play.lane.describe()
    tasks = [
        event.event_id
        async for event in play.lane.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    await play.bench.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=play.bench.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=lane.id, run_id=lane.run_id),
            reason="a test",
            workflow_task_finish_event_id=tasks[0],
            request_id=uuid.uuid4().hex,
        )
    )
