"""A compaction in the store: its content comes in a blob, and what it spent is counted once."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.contract.conftest import Lane, answer_id
from turnlane.records.admissions import BlobRef
from turnlane.records.base import JsonObject
from turnlane.records.compaction import CompactedRange
from turnlane.records.errors import StaleFenceError, StoreIntegrityError
from turnlane.records.events import RunOperationEvent
from turnlane.records.messages import Role, TextPart
from turnlane.records.mutations import CommitOutcome, CompactRange, Mutation, MutationKind
from turnlane.records.runs import Operation, OperationKind, OperationPhase, Run
from turnlane.records.steps import Fence
from turnlane.records.usage import Provenance, Usage, UsageValue
from turnlane.store.payloads import CompactionFinish, CompactionStart, StepFinish, Written

JSON = "application/json"


def content(*message_ids: str) -> bytes:
    """What a blob holds for a compaction of these messages."""
    parts = (TextPart(text="in short"),)
    made = CompactedRange(message_ids=message_ids, parts=parts, metadata={"summary": {"goal": "x"}})
    return made.model_dump_json().encode()


async def kept(lane: Lane, *message_ids: str) -> BlobRef:
    return await lane.store.put_blob(lane.conversation_id, content(*message_ids), JSON, lane.clock())


def from_blob(lane: Lane, summary_id: str, blob: BlobRef) -> Mutation:
    summary = lane.message(summary_id, role=Role.SUMMARY, parts=())
    return lane.mutation(MutationKind.COMPACT, CompactRange(message_ids=(), summary=summary, blob=blob))


def compacting(phase: OperationPhase, at: datetime, attempt: int = 1) -> Operation:
    ended = at if phase is not OperationPhase.STARTED else None
    name = f"op:compaction:{attempt}"
    return Operation(operation_id=name, kind=OperationKind.COMPACTION, phase=phase, started_at=at, finished_at=ended)


async def begin(lane: Lane, fence: Fence, attempt: int = 1) -> Written:
    operation = compacting(OperationPhase.STARTED, lane.clock(), attempt)
    start = CompactionStart(fence=fence, assistant_message_id=answer_id(fence), operation=operation)
    return await lane.store.begin_compaction(start, lane.clock())


async def finish(lane: Lane, fence: Fence, usage: Usage | None, attempt: int = 1) -> Written:
    operation = compacting(OperationPhase.COMPLETED, lane.clock(), attempt)
    ended = CompactionFinish(
        fence=fence,
        assistant_message_id=answer_id(fence),
        operation=operation,
        usage=usage,
        evidence={"outcome": "ready"},
    )
    return await lane.store.finish_compaction(ended, lane.clock())


async def run_of(lane: Lane, fence: Fence) -> Run:
    view = await lane.store.load_run(lane.conversation_id, fence.run_id)
    assert view is not None
    return view.run


# --- the content --------------------------------------------------------------------------------


async def test_a_summary_takes_its_content_from_a_blob_and_the_blob_is_gone(lane: Lane) -> None:
    await lane.answer("a")
    await lane.answer("b")
    blob = await kept(lane, "in-a", "out-a")
    await lane.apply(from_blob(lane, "sum", blob))
    summary = (await lane.store.load_snapshot(lane.conversation_id)).messages[0]

    assert ["sum", "in-b", "out-b"] == await lane.said()
    assert ("in short", {"summary": {"goal": "x"}}) == (summary.text, summary.metadata)
    assert None is await lane.store.get_blob(lane.conversation_id, blob.id)


async def test_the_ledger_names_what_was_replaced_but_not_the_summary(lane: Lane) -> None:
    await lane.answer("a")
    await lane.apply(from_blob(lane, "sum", await kept(lane, "in-a", "out-a")))
    (event,) = (await lane.store.read_events(lane.conversation_id)).items[-1:]
    effect = event.payload["effect"]

    assert isinstance(effect, dict)
    assert (["in-a", "out-a"], 1) == (effect["message_ids"], effect["summary"]["parts"])  # type: ignore[index,call-overload]
    assert "in short" not in event.model_dump_json()


async def test_a_compaction_that_is_committed_again_is_answered_as_the_first_time(lane: Lane) -> None:
    await lane.answer("a")
    compacted = from_blob(lane, "sum", await kept(lane, "in-a", "out-a"))
    first = await lane.apply(compacted)

    assert first == await lane.apply(compacted)
    assert ["sum"] == await lane.said()


async def test_thousands_of_messages_become_one_summary(lane: Lane) -> None:
    names = [f"old-{number}" for number in range(1200)]
    await lane.answer("a")
    await lane.apply(lane.seed("past", *names))
    await lane.apply(from_blob(lane, "sum", await kept(lane, *names, "in-a", "out-a")))

    assert ["sum"] == await lane.said()


async def test_a_compaction_without_its_blob_is_refused_whole(lane: Lane) -> None:
    await lane.answer("a")
    missing = BlobRef(id="blob-none", digest="0" * 32, size=3)

    with pytest.raises(StoreIntegrityError):
        await lane.commit(from_blob(lane, "sum", missing))
    assert ["in-a", "out-a"] == await lane.said()


async def test_a_blob_of_something_else_is_refused_and_stays(lane: Lane) -> None:
    await lane.answer("a")
    blob = await lane.store.put_blob(lane.conversation_id, b"[]", JSON, lane.clock())

    with pytest.raises(StoreIntegrityError):
        await lane.commit(from_blob(lane, "sum", blob))
    assert b"[]" == await lane.store.get_blob(lane.conversation_id, blob.id)


async def test_nothing_is_compacted_behind_a_purge(lane: Lane) -> None:
    await lane.answer("a")
    blob = await kept(lane, "in-a", "out-a")
    await lane.apply(lane.purge())
    committed = await lane.commit(from_blob(lane, "sum", blob))

    assert CommitOutcome.PURGED is committed.reply.outcome
    assert None is await lane.store.get_blob(lane.conversation_id, blob.id)


# --- the run's operation ------------------------------------------------------------------------


async def test_a_run_tells_of_its_compaction_and_counts_what_it_spent_once(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    begun = await begin(lane, fence)
    ended = await finish(lane, fence, lane.reported(40))
    again = await finish(lane, fence, lane.reported(40))
    run = await run_of(lane, fence)

    assert ["started", "completed"] == [
        event.operation.phase.value
        for written in (begun, ended, again)
        for event in written.events
        if isinstance(event, RunOperationEvent)
    ]
    assert (ended.version, ended.revision) == (again.version, again.revision)
    assert run.usage == lane.reported(40)
    assert OperationPhase.COMPLETED is (run.last_operation and run.last_operation.phase)


async def test_beginning_again_changes_nothing(lane: Lane) -> None:
    fence = await lane.begin_run("a")

    assert (await begin(lane, fence)).version == (await begin(lane, fence)).version


async def test_an_attempt_that_never_ended_makes_the_figures_floors(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence)
    await begin(lane, fence, attempt=2)
    await finish(lane, fence, lane.reported(40, cost=0.5), attempt=2)
    run = await run_of(lane, fence)

    assert run.usage is not None
    assert run.usage.partial
    assert (UsageValue(value=40, provenance=Provenance.COMPUTED), None) == (
        run.usage.input_tokens,
        run.usage.cost and run.usage.cost.value,
    )


async def test_a_compaction_that_asked_nobody_costs_nothing(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence)
    await finish(lane, fence, None)

    assert None is (await run_of(lane, fence)).usage


async def test_no_compaction_begins_behind_the_first_step(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence)
    await lane.begin_step(fence)

    with pytest.raises(StaleFenceError):
        await begin(lane, fence, attempt=2)
    with pytest.raises(StaleFenceError):
        await finish(lane, fence, lane.reported(1))


async def test_an_interrupted_run_begins_none_but_ends_the_one_it_has(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence)
    await lane.apply(lane.interrupt("run-a"))

    with pytest.raises(StaleFenceError, match="stale"):
        await begin(lane, fence, attempt=2)
    await finish(lane, fence, lane.reported(7))
    assert (await run_of(lane, fence)).usage == lane.reported(7)


async def test_only_the_attempt_that_began_last_may_end(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence)
    await begin(lane, fence, attempt=2)

    with pytest.raises(StaleFenceError):
        await finish(lane, fence, lane.reported(7))


# --- what the last call took in -----------------------------------------------------------------


async def answer_counted(lane: Lane, key: str, tokens: int | None) -> None:
    fence = await lane.begin_run(key)
    await lane.begin_step(fence)
    usage = lane.reported(tokens).model_dump(mode="json", exclude_none=True) if tokens is not None else None
    finished = StepFinish(
        fence=fence,
        assistant_message_id=answer_id(fence),
        operation=Operation(
            operation_id="op-0",
            kind=OperationKind.MODEL_REQUEST,
            phase=OperationPhase.COMPLETED,
            step=0,
            started_at=lane.clock(),
            finished_at=lane.clock(),
        ),
        parts=(TextPart(text="yes"),),
        evidence={"run_id": fence.run_id, "usage": usage},
    )
    await lane.store.finish_step(finished, lane.clock())
    await lane.apply(lane.settle(f"run-{key}"))


async def test_the_last_call_says_how_long_the_conversation_is(lane: Lane) -> None:
    unknown = await lane.store.last_input_tokens(lane.conversation_id)
    await answer_counted(lane, "a", 100)
    await answer_counted(lane, "b", 250)

    assert (None, 250) == (unknown, await lane.store.last_input_tokens(lane.conversation_id))


async def test_a_figure_from_before_a_compaction_is_none(lane: Lane) -> None:
    await answer_counted(lane, "a", 100)
    await lane.apply(lane.compact("sum", "in-a", "out-a"))

    assert None is await lane.store.last_input_tokens(lane.conversation_id)


async def test_a_call_that_nobody_counted_says_nothing(lane: Lane) -> None:
    await answer_counted(lane, "a", 100)
    await answer_counted(lane, "b", None)

    assert None is await lane.store.last_input_tokens(lane.conversation_id)


async def test_a_call_beside_the_conversation_says_nothing_of_it(lane: Lane) -> None:
    await answer_counted(lane, "a", 100)
    beside: JsonObject = {"usage": lane.reported(9).model_dump(mode="json", exclude_none=True)}
    await lane.store.append_event(lane.conversation_id, "provider/response", beside, lane.clock())

    assert 100 == await lane.store.last_input_tokens(lane.conversation_id)
