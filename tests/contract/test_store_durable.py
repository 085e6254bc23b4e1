"""Durable tool bodies in the store: entries under a fence, deliveries, calls that wait, and what a lost lane finds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.conftest import answer_id
from turnlane.records.durable import Delivery, DurableEntry, EntryKind, SuspendedCall, Suspension, event_key
from turnlane.records.errors import ConversationPurgedError, StaleFenceError
from turnlane.records.files import blob_id_of
from turnlane.records.lane import RunProgress
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolResultPart
from turnlane.records.steps import Fence
from turnlane.store.payloads import NewEvent, Spill

if TYPE_CHECKING:
    from tests.contract.conftest import Lane

EVENT = NewEvent(kind=LedgerKind.DURABLE_STEP, payload={"name": "one", "bytes": 1})
AT = datetime(2026, 1, 1, tzinfo=UTC)


def entry(text: str = "1", *, name: str = "one") -> DurableEntry:
    return DurableEntry(kind=EntryKind.STEP, name=name, entry=text)


def call(call_id: str = "c1", slot: int = 1, **facts: Any) -> SuspendedCall:
    return SuspendedCall(call_id=call_id, tool_name="look", slot=slot, max_attempts=10, seconds=60.0, **facts)


async def called(lane: Lane, *call_ids: str) -> Fence:
    """A run whose step asked for these calls."""
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, *call_ids)
    return fence


async def record(lane: Lane, fence: Fence, new: DurableEntry, instead_of: str | None = None) -> DurableEntry:
    return await lane.store.record_entry(
        fence, answer_id(fence), "scope", new, EVENT, lane.clock(), instead_of=instead_of
    )


async def kinds(lane: Lane) -> list[str]:
    """The kinds of the ledger that tell of durable bodies."""
    events = (await lane.store.read_events(lane.conversation_id)).items
    return [event.kind for event in events if event.kind.startswith("durability/")]


# --- entries ------------------------------------------------------------------------------------


async def test_the_first_entry_under_a_name_stands_and_is_told_once(lane: Lane) -> None:
    fence = await called(lane, "c1")

    told = [await record(lane, fence, entry(text)) for text in ("1", "2")]

    assert [entry("1"), entry("1")] == told
    assert (entry("1"),) == await lane.store.load_entries(lane.conversation_id, "scope")
    assert [LedgerKind.DURABLE_STEP] == await kinds(lane)


async def test_an_entry_is_replaced_by_who_knows_what_stands_there(lane: Lane) -> None:
    fence = await called(lane, "c1")
    await record(lane, fence, entry("intent"))

    wrong = await record(lane, fence, entry("mine"), "another intent")
    right = await record(lane, fence, entry("accepted"), "intent")

    assert [entry("intent"), entry("accepted")] == [wrong, right]


async def test_an_entry_moves_no_version_and_repeats_change_nothing(lane: Lane) -> None:
    fence = await called(lane, "c1")
    before = (await lane.store.load_snapshot(lane.conversation_id)).version
    await record(lane, fence, entry())
    seq = await lane.store.last_seq(lane.conversation_id)
    await record(lane, fence, entry())

    assert seq == await lane.store.last_seq(lane.conversation_id)
    assert before == (await lane.store.load_snapshot(lane.conversation_id)).version


async def test_entries_of_two_scopes_are_apart(lane: Lane) -> None:
    fence = await called(lane, "c1")
    await record(lane, fence, entry())

    assert () == await lane.store.load_entries(lane.conversation_id, "another")
    assert () == await lane.store.load_entries("c-another", "scope")


async def test_nothing_is_recorded_under_a_stale_fence(lane: Lane) -> None:
    fence = await called(lane, "c1")
    stale = [
        fence.model_copy(update=change)
        for change in ({"epoch": fence.epoch + 1}, {"token": 9}, {"step": 1}, {"attempt": 2})
    ]
    for old in stale:
        with pytest.raises(StaleFenceError):
            await record(lane, old, entry())
    await lane.apply(lane.interrupt("run-a"))
    with pytest.raises(StaleFenceError) as raised:
        await record(lane, fence, entry())

    assert "run-interrupted" == raised.value.details["reason"]
    assert () == await lane.store.load_entries(lane.conversation_id, "scope")


# --- deliveries ---------------------------------------------------------------------------------


async def test_the_first_delivery_stands_and_its_repeat_is_answered_alike(lane: Lane) -> None:
    first = Delivery(event="paid", id="7", payload={"by": "ann"})
    other = first.model_copy(update={"payload": {"by": "bob"}})

    told = [await lane.store.deliver(lane.conversation_id, each, lane.clock()) for each in (first, other, first)]
    found = await lane.store.find_delivery(lane.conversation_id, event_key("paid", "7"))

    assert [True, False, True] == told
    assert found is not None and '{"by":"ann"}' == found.entry
    assert [LedgerKind.DURABLE_EVENT] == await kinds(lane)


async def test_a_delivery_without_a_payload_brings_null(lane: Lane) -> None:
    await lane.store.deliver(lane.conversation_id, Delivery(event="paid", id="7"), lane.clock())
    found = await lane.store.find_delivery(lane.conversation_id, event_key("paid", "7"))

    assert found is not None and "null" == found.entry


async def test_the_ledger_names_a_delivery_and_does_not_quote_it(lane: Lane) -> None:
    await lane.store.deliver(lane.conversation_id, Delivery(event="paid", id="7", payload="secret"), lane.clock())
    (told,) = (await lane.store.read_events(lane.conversation_id)).items

    assert {"event": "paid", "id": "7", "bytes": 8} == told.payload


def test_no_two_events_have_one_key() -> None:
    assert event_key("a", "bc") != event_key("ab", "c")


async def test_a_purge_takes_entries_and_deliveries_along_and_refuses_new_ones(lane: Lane) -> None:
    fence = await called(lane, "c1")
    await record(lane, fence, entry())
    delivery = Delivery(event="paid", id="7")
    await lane.store.deliver(lane.conversation_id, delivery, lane.clock())
    await lane.apply(lane.settle("run-a"), lane.purge())

    assert () == await lane.store.load_entries(lane.conversation_id, "scope")
    assert await lane.store.find_delivery(lane.conversation_id, delivery.key) is None
    with pytest.raises(ConversationPurgedError):
        await lane.store.deliver(lane.conversation_id, delivery, lane.clock())
    with pytest.raises(ConversationPurgedError):
        await record(lane, fence, entry())


# --- calls that wait ----------------------------------------------------------------------------

WAITS = Suspension(resume_at=AT, waits_for=("event-1",), tried=1)


async def begun_before(lane: Lane, fence: Fence) -> bool:
    start = await lane.store.begin_call(fence, "out-a", 1, lane.clock(), durable=call())
    return start.started_before


async def test_a_call_that_was_suspended_was_not_begun_before_but_one_that_died_was(lane: Lane) -> None:
    fence = await called(lane, "c1")

    first = await begun_before(lane, fence)
    await lane.store.suspend_call(fence, "out-a", call(suspension=WAITS), lane.clock())
    after_a_wait = await begun_before(lane, fence)
    after_a_death = await begun_before(lane, fence)

    assert [False, False, True] == [first, after_a_wait, after_a_death]


async def test_a_call_is_not_suspended_under_a_stale_fence(lane: Lane) -> None:
    fence = await called(lane, "c1")
    await lane.apply(lane.interrupt("run-a"))

    with pytest.raises(StaleFenceError):
        await lane.store.suspend_call(fence, "out-a", call(suspension=WAITS), lane.clock())


async def taken_up(lane: Lane) -> RunProgress:
    """What a lane finds that opens after the one before was lost; the run is taken up."""
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)
    assert opened.progress is not None and opened.epoch is not None
    lane.epoch = opened.epoch
    await lane.apply(lane.requeue("run-a"), lane.start("run-a", resumes=True))
    return opened.progress


async def answered(lane: Lane) -> list[tuple[str, Any]]:
    """The calls that have a result, and the code in it."""
    parts = (await lane.store.load_snapshot(lane.conversation_id)).messages[-1].parts
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    return [(part.call_id, part.output["error"] if isinstance(part.output, dict) else "") for part in results]


@pytest.mark.parametrize("is_suspended", [True, False], ids=["waiting", "in mid-body"])
async def test_a_lost_lane_leaves_durable_calls_open_for_the_next_one(lane: Lane, is_suspended: bool) -> None:
    fence = await called(lane, "c1", "c2", "c3")
    await begun_before(lane, fence)
    if is_suspended:
        await lane.store.suspend_call(fence, "out-a", call(suspension=WAITS), lane.clock())
    await lane.store.begin_call(fence, "out-a", 2, lane.clock())
    await lane.store.finish_call(fence, "out-a", 3, lane.result("c3"), lane.clock())

    progress = await taken_up(lane)

    assert (0, 2, (call(),)) == (progress.step, progress.attempt, progress.suspended)
    assert [("c2", "OUTCOME_UNKNOWN"), ("c3", "")] == await answered(lane)


async def test_a_call_that_is_taken_up_is_finished_under_the_new_fence_and_the_run_goes_on(lane: Lane) -> None:
    fence = await called(lane, "c1")
    await begun_before(lane, fence)
    progress = await taken_up(lane)
    fresh = lane.fence("run-a", step=progress.step, attempt=progress.attempt - 1)

    await lane.store.begin_call(fresh, "out-a", 1, lane.clock(), durable=call())
    await lane.store.finish_call(fresh, "out-a", 1, lane.result("c1"), lane.clock())
    await lane.begin_step(lane.fence("run-a", step=1))

    assert [("c1", "")] == await answered(lane)
    with pytest.raises(StaleFenceError):
        await lane.store.finish_call(fence, "out-a", 1, lane.result("c1"), lane.clock())


async def test_a_waiting_call_of_a_run_that_ends_is_interrupted(lane: Lane) -> None:
    fence = await called(lane, "c1")
    await begun_before(lane, fence)
    await lane.store.suspend_call(fence, "out-a", call(suspension=WAITS), lane.clock())
    await lane.apply(lane.interrupt("run-a"))
    await lane.apply(lane.settle("run-a"))

    assert [("c1", "INTERRUPTED")] == await answered(lane)


# --- spills -------------------------------------------------------------------------------------


async def test_a_spill_is_kept_with_the_result_that_refers_to_it_and_with_no_other(lane: Lane) -> None:
    fence = await called(lane, "c1")
    for data in (b"first", b"second"):
        spill = Spill(data=data, media_type="text/plain")
        await lane.store.finish_call(fence, "out-a", 1, lane.result("c1"), lane.clock(), spill=spill)

    kept = [await lane.store.get_blob(lane.conversation_id, blob_id_of(data)) for data in (b"first", b"second")]

    assert [b"first", None] == kept


async def test_a_spill_under_a_stale_fence_is_not_kept(lane: Lane) -> None:
    fence = await called(lane, "c1")
    await lane.apply(lane.interrupt("run-a"))
    with pytest.raises(StaleFenceError):
        await lane.store.finish_call(
            fence, "out-a", 1, lane.result("c1"), lane.clock(), spill=Spill(data=b"x", media_type="text/plain")
        )

    assert await lane.store.get_blob(lane.conversation_id, blob_id_of(b"x")) is None


# --- telling ------------------------------------------------------------------------------------


async def test_the_draft_is_told_as_results_double_and_with_the_last_one(lane: Lane) -> None:
    names = [f"c{number}" for number in range(1, 12)]
    fence = await called(lane, *names)

    told = [
        bool((await lane.store.finish_call(fence, "out-a", slot, lane.result(name), lane.clock())).events)
        for slot, name in enumerate(names, 1)
    ]

    assert [1, 2, 4, 8, 11] == [slot for slot, is_told in enumerate(told, 1) if is_told]


async def test_a_late_reader_is_told_the_draft_with_every_result_that_is_in(lane: Lane) -> None:
    fence = await called(lane, "c1", "c2", "c3", "c4", "c5")
    for slot in (1, 2, 3):
        await lane.store.finish_call(fence, "out-a", slot, lane.result(f"c{slot}"), lane.clock())
    events, _ = await lane.store.events_since(lane.conversation_id, 0)

    message: Any = events[-1]
    assert "assistant-checkpoint" == message.type
    assert ["c1", "c2", "c3"] == [part.call_id for part in message.message.parts if isinstance(part, ToolResultPart)]
