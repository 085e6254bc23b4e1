"""What a run may see, compaction, seeds, and what goes in coming out the same."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from turnlane.records.admissions import Policy
from turnlane.records.errors import RunNotFoundError, StoreIntegrityError
from turnlane.records.messages import FilePart, TextPart, ToolCallPart
from turnlane.records.runs import TerminalReason
from turnlane.store.payloads import HistoryMessage

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def seen(lane: Lane, run_id: str, *extra: str) -> list[str]:
    """The ids that a run may see."""
    history = await lane.store.load_history(lane.conversation_id, run_id, extra)
    return [entry.message.id for entry in history]


async def test_a_run_sees_what_was_said_before_it_and_nothing_queued(lane: Lane) -> None:
    await lane.answer("a")
    await lane.begin_run("b")
    await lane.apply(lane.admit("c"))

    assert ["in-a", "out-a", "in-b", "out-b"] == await seen(lane, "run-b")


async def test_a_message_admitted_first_and_run_later_is_seen_where_it_ran(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"), lane.admit("u", policy=Policy.INTERRUPT_NEXT))
    await lane.apply(lane.settle("run-a", TerminalReason.INTERRUPTED), lane.start("run-u"))
    urgent = await seen(lane, "run-u")
    await lane.apply(lane.settle("run-u"), lane.start("run-b"))

    assert ["in-a", "out-a", "in-u", "out-u"] == urgent
    assert ["in-a", "out-a", "in-u", "out-u", "in-b", "out-b"] == await seen(lane, "run-b")


async def test_injected_inputs_come_last_in_the_order_given(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"), lane.admit("c"))

    assert ["in-a", "out-a", "in-c", "in-b"] == await seen(lane, "run-a", "in-c", "in-b")


async def test_what_was_asked_of_a_cancelled_run_is_not_seen(lane: Lane) -> None:
    await lane.apply(lane.admit("a"), lane.settle("run-a", TerminalReason.CANCELLED))
    await lane.begin_run("b")

    assert ["out-a", "in-b", "out-b"] == await seen(lane, "run-b")


async def test_a_run_that_has_not_started_has_no_history(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))

    with pytest.raises(RunNotFoundError):
        await lane.store.load_history(lane.conversation_id, "run-a", ())


async def test_an_answer_is_told_step_by_step_with_its_reason(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1", "c2")
    await lane.store.finish_call(fence, "out-a", 2, lane.result("c2"), lane.clock())
    second = lane.fence("run-a", step=1)
    await lane.begin_step(second)
    await lane.finish_step(second, TextPart(text="done"))
    history = await lane.store.load_history(lane.conversation_id, "run-a", ())
    steps = history[-1].steps

    assert [0, 1] == [step.step for step in steps]
    assert (("c1",), (lane.result("c2"),)) == (steps[0].open_calls, steps[0].results)
    assert ["c1", "c2"] == [part.call_id for part in steps[0].parts if isinstance(part, ToolCallPart)]
    assert (TextPart(text="done"),) == steps[1].parts
    assert () == history[0].steps


async def test_an_ended_answer_carries_its_reason(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.settle("run-a", TerminalReason.SUPERSEDED))
    await lane.begin_run("b")
    reasons = {entry.message.id: entry.run_reason for entry in await history_of(lane, "run-b")}

    assert (TerminalReason.SUPERSEDED, None) == (reasons["out-a"], reasons["out-b"])


async def history_of(lane: Lane, run_id: str) -> tuple[HistoryMessage, ...]:
    return await lane.store.load_history(lane.conversation_id, run_id, ())


async def test_a_summary_stands_where_the_last_replaced_message_stood(lane: Lane) -> None:
    for key in ("a", "b", "c"):
        await lane.answer(key)
    await lane.apply(lane.compact("sum", "in-a", "out-a", "in-b", "out-b"))
    everything = await lane.store.list_messages(lane.conversation_id, include_compacted=True)

    assert ["sum", "in-c", "out-c"] == await lane.said()
    assert ["in-a", "out-a", "in-b", "out-b", "sum", "in-c", "out-c"] == [item.id for item in everything.items]


async def test_a_summary_of_a_summary_stands_in_its_place(lane: Lane) -> None:
    await lane.answer("a")
    await lane.answer("b")
    await lane.apply(lane.compact("sum-1", "in-a", "out-a"), lane.compact("sum-2", "sum-1", "in-b", "out-b"))
    await lane.begin_run("c")

    assert ["sum-2", "in-c", "out-c"] == await seen(lane, "run-c")


async def test_compacted_inputs_of_a_queued_run_move_with_it(lane: Lane) -> None:
    await lane.answer("z")
    await lane.apply(lane.admit("a"), lane.admit("b", into="run-a"), lane.compact("sum", "in-a", "in-b"))
    await lane.apply(lane.start("run-a"))

    assert ["in-z", "out-z", "sum", "out-a"] == await lane.said()


async def test_a_terminal_run_outlives_the_compaction_of_its_answer(lane: Lane) -> None:
    await lane.answer("a", text="42")
    await lane.answer("b")
    await lane.apply(lane.compact("sum", "in-a", "out-a"))
    snapshot = await lane.store.load_snapshot(lane.conversation_id)
    view = await lane.store.load_run(lane.conversation_id, "run-a")

    assert ["run-b"] == [run.id for run in snapshot.runs]
    assert view is not None and view.assistant is not None
    assert "42" == view.assistant.text


@pytest.mark.parametrize(
    "ids", [("in-a", "in-b"), ("in-a", "nobody"), ("in-b", "out-b")], ids=["hole", "unknown", "running answer"]
)
async def test_only_an_unbroken_range_that_has_ended_is_compacted(lane: Lane, ids: tuple[str, ...]) -> None:
    await lane.answer("a")
    await lane.begin_run("b")
    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.compact("sum", *ids))

    assert ["in-a", "out-a", "in-b", "out-b"] == await lane.said()


@pytest.mark.parametrize("summary_id", ["out-b", "in-a"])
async def test_a_summary_on_an_id_in_use_is_refused(lane: Lane, summary_id: str) -> None:
    await lane.answer("a")
    await lane.apply(lane.admit("b"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.compact(summary_id, "in-a", "out-a"))


async def test_a_compacted_message_cannot_be_compacted_again(lane: Lane) -> None:
    await lane.answer("a")
    await lane.apply(lane.compact("sum", "in-a", "out-a"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.compact("sum-2", "in-a"))


async def test_seeds_stand_before_everything_in_the_order_given(lane: Lane) -> None:
    await lane.answer("a")
    (planted,) = await lane.apply(lane.seed("s-1", "seed-1", "seed-2"))
    await lane.apply(lane.seed("s-2", "seed-0"))

    assert ["seed-0", "seed-1", "seed-2", "in-a", "out-a"] == await lane.said()
    assert 6 == planted.version


async def test_a_seed_is_planted_once(lane: Lane) -> None:
    (planted,) = await lane.apply(lane.seed("s", "seed-1"))
    again = lane.seed("s", "seed-1")
    (repeated,) = await lane.apply(again)
    (answered,) = await lane.apply(again)

    assert (planted.version, planted.ledger_seq) == (repeated.version, repeated.ledger_seq)
    assert repeated == answered
    assert 1 == len((await lane.store.read_events(lane.conversation_id)).items)


async def test_another_mutation_in_the_place_of_a_seed_without_effect_is_diverged(lane: Lane) -> None:
    await lane.apply(lane.seed("s", "seed-1"), lane.seed("s", "seed-1"))
    lane.seq = 1
    answer = await lane.commit(lane.admit("a"))

    assert "diverged" == answer.reply.outcome


async def test_a_compacted_seed_never_returns(lane: Lane) -> None:
    await lane.apply(lane.seed("s", "seed-1"), lane.compact("sum", "seed-1"), lane.seed("s", "seed-1"))

    assert ["sum"] == await lane.said()


async def test_a_seed_that_is_there_in_part_is_an_integrity_error(lane: Lane) -> None:
    await lane.apply(lane.seed("s", "seed-1"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.seed("t", "seed-1", "seed-2"))


async def test_an_input_comes_out_as_it_went_in(lane: Lane) -> None:
    at = datetime(2026, 3, 4, 5, 6, 7, 123456, tzinfo=timezone(timedelta(hours=2)))
    message = lane.message(
        "in-a",
        parts=(TextPart(text="héllo \U0001f600 " + "x" * 70_000), FilePart(media_type="a/b", reference="r")),
        metadata={"nested": [1, None, {"deep": 1.5}]},
        created_at=at,
        updated_at=at + timedelta(microseconds=1),
    )
    await lane.apply(lane.admit("a", message=message))
    (found,) = (await lane.store.load_snapshot(lane.conversation_id)).messages

    assert message == found
    assert (at.astimezone(UTC), UTC) == (found.created_at, found.created_at.tzinfo)


async def test_text_that_no_database_stores_was_cleaned_before(lane: Lane) -> None:
    await lane.apply(lane.admit("a", message=lane.message("in-a", text="a\x00b\ud800c")))
    (found,) = (await lane.store.load_snapshot(lane.conversation_id)).messages

    assert "a\ufffdb\ufffdc" == found.text


async def test_ids_are_compared_exactly(lane: Lane) -> None:
    keys = ["a", "A", "a ", "ä", "a\u0308", "x" * 200]
    await lane.apply(*(lane.admit(key) for key in keys))

    assert [f"in-{key}" for key in keys] == await lane.said()


async def test_a_run_context_has_the_agent_and_what_the_first_input_came_with(lane: Lane) -> None:
    message = lane.message("in-a", metadata={"m": 1})
    await lane.apply(lane.admit("a", message=message, context={"c": 1}, tenant="t"), lane.start("run-a"))
    found = await lane.store.load_run_context(lane.conversation_id, "run-a")

    assert found is not None
    assert ("helper", "t", {"c": 1}, {"m": 1}) == (found.agent, found.tenant, found.context, found.metadata)
    assert await lane.store.load_run_context(lane.conversation_id, "run-x") is None


async def test_a_reader_sees_one_state_while_a_writer_goes_on(lane: Lane) -> None:
    async def write() -> None:
        for number in range(20):
            await lane.answer(f"k{number}")

    async def read(writing: asyncio.Task[None]) -> list[int]:
        holes = []
        while not writing.done():
            snapshot = await lane.store.load_snapshot(lane.conversation_id)
            holes.append(len(snapshot.messages) - len({message.id for message in snapshot.messages}))
        return holes

    writing = asyncio.create_task(write())
    holes = await read(writing)
    await writing

    assert holes and not any(holes)


async def test_a_clock_that_steps_back_moves_nobody_in_the_queue_or_the_history(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"))
    lane.clock.now -= timedelta(hours=1)
    await lane.apply(lane.admit("c"))
    runs = await lane.store.list_active_runs(lane.conversation_id)
    reopened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert ["run-a", "run-b", "run-c"] == [run.id for run in runs]
    assert reopened.head is not None
    assert ["run-a", "run-b", "run-c"] == [run.id for run in reopened.head.runs]
    assert ["in-a", "out-a", "in-b", "in-c"] == await lane.said()
