"""The journal of a durable body: what is run once, what is refused, and how a body is left and entered again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.journals import NOW, Counter, code_of, journal, put
from turnlane.activities.durable import is_left
from turnlane.agent.durable import LeavesBody
from turnlane.agent.tools import ToolCancelled, ToolContext, ToolError, ToolReply, tool
from turnlane.records.durable import ANY_EVENT, WAITS_AT_ONCE, EntryKind, Suspension, event_key
from turnlane.records.errors import StaleFenceError
from turnlane.records.ledger import LedgerKind
from turnlane.testing.durable import Notebook


@pytest.fixture
def book() -> Notebook:
    return Notebook()


# --- steps --------------------------------------------------------------------------------------


async def test_a_step_is_run_once_and_answered_from_its_record_afterwards(book: Notebook) -> None:
    body = Counter({"order": 7})

    told = [await journal(book).step("order", body) for _ in range(3)]

    assert [{"order": 7}] * 3 == told
    assert 1 == body.count


async def test_each_caller_of_a_step_gets_a_copy_of_its_own(book: Notebook) -> None:
    record: list[int] = [1]
    mine = journal(book)

    first = await mine.step("list", lambda: record)
    first.append(2)
    second = await mine.step("list", lambda: record)

    assert ([1], [1]) == (record, second)


async def test_a_name_that_two_use_at_once_is_run_once(book: Notebook) -> None:
    body = Counter([1])
    mine = journal(book)

    first, second = await asyncio.gather(mine.step("one", body), mine.step("one", body))

    assert 1 == body.count
    assert first == second and first is not second


async def test_what_a_step_raises_is_not_recorded(book: Notebook) -> None:
    mine = journal(book)
    with pytest.raises(RuntimeError):
        await mine.step("one", Counter(RuntimeError()))

    assert 2 == await mine.step("one", Counter(2))


async def test_a_value_that_is_not_lossless_is_refused_after_the_effect_and_not_recorded(book: Notebook) -> None:
    body = Counter(NOW)

    with pytest.raises(ToolError) as raised:
        await journal(book).step("one", body)

    assert ("STEP_NOT_JSON", 1, {}) == (code_of(raised), body.count, book.entries)


async def test_a_recorded_step_is_told_even_when_the_run_was_asked_to_stop(book: Notebook) -> None:
    await journal(book).step("one", Counter(1))
    stopped = journal(book, is_cancelled=True)

    assert 1 == await stopped.step("one", Counter(2))
    with pytest.raises(ToolCancelled):
        await stopped.step("two", Counter(2))


@pytest.mark.parametrize("text", ["", "not json", "NaN"])
async def test_a_record_that_cannot_be_read_stops_the_body(book: Notebook, text: str) -> None:
    put(book, EntryKind.STEP, "one", text)
    body = Counter(1)

    with pytest.raises(ToolError) as raised:
        await journal(book).step("one", body)

    assert ("RECORD_UNREADABLE", 0) == (code_of(raised), body.count)


async def test_a_step_that_nobody_waits_for_any_more_is_stopped(book: Notebook) -> None:
    mine = journal(book)
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await mine.step("one", forever)

    assert ended.is_set()
    assert 2 == await mine.step("one", Counter(2))


async def test_a_body_that_lost_its_fence_is_left_and_the_journal_knows_why(book: Notebook) -> None:
    book.failure = StaleFenceError("the fence is stale")
    mine = journal(book)

    with pytest.raises(LeavesBody):
        await mine.step("one", Counter(1))

    assert isinstance(mine.ended, StaleFenceError)


@pytest.mark.parametrize("name", ["", "a" * 257, "line\nbreak"])
async def test_a_name_is_printable_and_bounded(book: Notebook, name: str) -> None:
    with pytest.raises(ValueError, match="a name is"):
        await journal(book).step(name, Counter(1))


async def test_the_ledger_is_told_names_and_sizes_and_no_content(book: Notebook) -> None:
    mine = journal(book)
    await mine.step("order", Counter("secret"))
    await mine.effect("charge", Counter("secret"), Counter(), 1.0)

    named = {"run_id": "r", "call_id": "call-1"}
    assert [
        (LedgerKind.DURABLE_STEP, {**named, "name": "order", "bytes": 8}),
        (LedgerKind.DURABLE_EFFECT, {**named, "name": "charge", "state": "intent"}),
        (LedgerKind.DURABLE_EFFECT, {**named, "name": "charge", "state": "accepted", "bytes": 8}),
    ] == [(event.kind, event.payload) for event in book.events]


# --- waits --------------------------------------------------------------------------------------


async def test_a_long_sleep_leaves_the_body_until_its_deadline(book: Notebook) -> None:
    mine = journal(book)

    with pytest.raises(LeavesBody):
        await mine.sleep(60, None)

    assert Suspension(resume_at=NOW + timedelta(seconds=60), tried=3) == mine.suspension
    assert [(EntryKind.SLEEP, "sleep:60")] == list(book.entries)


async def test_a_sleep_entered_again_waits_for_the_rest_only(book: Notebook) -> None:
    with pytest.raises(LeavesBody):
        await journal(book).sleep(60, "nap")
    later = journal(book, NOW + timedelta(seconds=61))

    await later.sleep(60, "nap")

    assert later.suspension is None


async def test_a_short_sleep_is_slept_in_place(book: Notebook) -> None:
    mine = journal(book)

    await mine.sleep(0.01, None)

    assert mine.suspension is None


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True])
async def test_a_sleep_takes_a_finite_time(book: Notebook, seconds: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        await journal(book).sleep(seconds, None)


async def test_a_wait_leaves_the_body_until_its_event_and_is_noted_once(book: Notebook) -> None:
    for _ in range(2):
        mine = journal(book)
        with pytest.raises(LeavesBody):
            await mine.wait_for("paid", "7")
    book.deliver("paid", "7", {"by": "ann"})

    told = await journal(book).wait_for("paid", "7")

    assert Suspension(waits_for=(event_key("paid", "7"),), tried=3) == mine.suspension
    assert [LedgerKind.DURABLE_PARK] == [event.kind for event in book.events]
    assert {"by": "ann"} == told


async def test_a_body_left_at_several_waits_is_woken_by_the_first_of_them(book: Notebook) -> None:
    mine = journal(book)

    left = await asyncio.gather(
        mine.wait_for("paid", "1"), mine.sleep(60, None), mine.wait_for("paid", "2"), return_exceptions=True
    )

    assert [True] * 3 == [isinstance(each, LeavesBody) for each in left]
    assert mine.suspension is not None
    assert NOW + timedelta(seconds=60) == mine.suspension.resume_at
    assert {event_key("paid", "1"), event_key("paid", "2")} == set(mine.suspension.waits_for)


async def test_a_body_that_waits_for_very_many_events_is_woken_by_any(book: Notebook) -> None:
    mine = journal(book)

    await asyncio.gather(
        *(mine.wait_for("paid", str(number)) for number in range(WAITS_AT_ONCE + 1)), return_exceptions=True
    )

    assert mine.suspension is not None
    assert (ANY_EVENT,) == mine.suspension.waits_for


async def test_a_body_is_not_left_in_the_middle_of_a_step_beside_the_wait(book: Notebook) -> None:
    mine = journal(book)
    body = Counter(1)

    told: Sequence[Any] = await asyncio.gather(mine.sleep(60, None), mine.step("one", body), return_exceptions=True)

    assert isinstance(told[0], LeavesBody)
    assert 1 == told[1]
    assert (EntryKind.STEP, "one") in book.entries


async def test_a_step_cannot_wait(book: Notebook) -> None:
    mine = journal(book)

    with pytest.raises(ToolError) as raised:
        await mine.step("one", lambda: mine.sleep(60, None))

    assert "NESTED_WAIT" == code_of(raised)


def test_a_body_left_by_one_of_a_group_is_left() -> None:
    assert is_left(BaseExceptionGroup("tasks", [ValueError(), BaseExceptionGroup("inner", [LeavesBody()])]))
    assert not is_left(ExceptionGroup("tasks", [ValueError()]))


# --- a tool, try by try -------------------------------------------------------------------------


@tool(durable=True)
async def approve(ctx: ToolContext, order: int) -> dict[str, Any]:
    """Reserve, wait for a word, ship."""
    reserved = await ctx.step("reserve", lambda: f"reserved in try {ctx.attempt}")
    word = await ctx.wait_for("approved", str(order))
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.sleep(3600, "cool down"))
        shipped = group.create_task(ctx.step("ship", lambda: f"shipped in try {ctx.attempt}"))
    return {"reserved": reserved, "word": word, "shipped": shipped.result()}


async def test_a_body_goes_on_where_its_records_end_try_by_try(book: Notebook) -> None:
    first = await book.call(approve, {"order": 7}, now=NOW)
    book.deliver("approved", "7", {"by": "ann"})
    second = await book.call(approve, {"order": 7}, now=NOW)
    third = await book.call(approve, {"order": 7}, now=NOW + timedelta(hours=1))

    assert Suspension(waits_for=(event_key("approved", "7"),), tried=1) == first
    assert Suspension(resume_at=NOW + timedelta(hours=1), tried=2) == second
    assert isinstance(third, ToolReply)
    assert {"reserved": "reserved in try 1", "word": {"by": "ann"}, "shipped": "shipped in try 2"} == third.output


async def test_a_body_that_lost_its_call_makes_no_reply(book: Notebook) -> None:
    book.failure = StaleFenceError("the fence is stale")

    with pytest.raises(StaleFenceError):
        await book.call(approve, {"order": 7})
