"""What is prepared once for a run, and what is planted with its first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnlane.records.errors import StaleFenceError, StoreIntegrityError
from turnlane.records.prompt import SystemText
from turnlane.records.steps import Fence
from turnlane.records.tokens import CountSource, TokenCount
from turnlane.records.turns import ContextDecision, ContextFigures, HistoryCut, PreparedTurn, Seed

if TYPE_CHECKING:
    from tests.contract.conftest import Lane

FIGURES = ContextFigures(
    decision=ContextDecision.FITS,
    context_window=100,
    reserved_output=10,
    instructions=TokenCount(value=3, source=CountSource.MEASURED),
    available_history=-1,
    cut=HistoryCut(last_id="out-a", kept=1, removed=2),
)
TURN = PreparedTurn(
    instructions=(SystemText(text="Be kind.\x00", options={"anthropic": {"cache_control": {"type": "ephemeral"}}}),),
    model="fast",
    context=FIGURES,
)
KEY = "prompt.user-instructions"


async def begin(lane: Lane, fence: Fence, turn: PreparedTurn | None = None, seed: Seed | None = None) -> None:
    """Begin a step with what was prepared for it."""
    await lane.begin_step(fence, prepared=turn, seed=seed)


async def prepared(lane: Lane, run_id: str = "run-a") -> PreparedTurn | None:
    context = await lane.store.load_run_context(lane.conversation_id, run_id)
    assert context is not None
    return context.prepared


def seed_of(lane: Lane, *names: str) -> Seed:
    return Seed(seed_key=KEY, messages=tuple(lane.message(name, text=name) for name in names))


async def heard(lane: Lane, run_id: str) -> list[str]:
    """The ids of what a run may see."""
    return [item.message.id for item in await lane.store.load_history(lane.conversation_id, run_id, ())]


async def test_what_was_prepared_comes_back_as_it_was(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence, TURN)

    assert TURN == await prepared(lane)


async def test_a_run_has_nothing_prepared_until_a_step_brings_it(lane: Lane) -> None:
    await begin(lane, await lane.begin_run("a"))

    assert await prepared(lane) is None


async def test_a_later_step_keeps_what_the_first_one_brought(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence, TURN)
    await lane.finish_step(fence)
    await begin(lane, fence.model_copy(update={"step": 1}))

    assert TURN == await prepared(lane)


async def test_a_step_that_brings_another_turn_replaces_it(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence, TURN)
    await begin(lane, fence.model_copy(update={"attempt": 2}), PreparedTurn(model="deep"))

    assert PreparedTurn(model="deep") == await prepared(lane)


@pytest.mark.parametrize(("resumes", "expected"), [(True, TURN), (False, None)])
async def test_a_run_that_goes_on_keeps_its_turn_and_one_that_begins_anew_does_not(
    lane: Lane, resumes: bool, expected: PreparedTurn | None
) -> None:
    await begin(lane, await lane.begin_run("a"), TURN)
    await lane.apply(lane.requeue("run-a"), lane.start("run-a", resumes=resumes))

    assert expected == await prepared(lane)


async def test_a_run_that_ended_lets_its_turn_go(lane: Lane) -> None:
    await begin(lane, await lane.begin_run("a"), TURN)
    await lane.apply(lane.settle("run-a"))

    assert await prepared(lane) is None


async def test_a_stale_step_neither_prepares_nor_plants(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    with pytest.raises(StaleFenceError):
        await begin(lane, fence.model_copy(update={"token": 9}), TURN, seed_of(lane, "seed-1"))

    assert await prepared(lane) is None
    assert not await lane.store.is_seeded(lane.conversation_id, KEY)


async def test_a_seed_is_planted_in_front_with_the_step_that_brings_it(lane: Lane) -> None:
    await lane.answer("old")
    fence = await lane.begin_run("a")
    await begin(lane, fence, TURN, seed_of(lane, "seed-1", "seed-2"))

    assert ["seed-1", "seed-2", "in-old", "out-old", "in-a", "out-a"] == await heard(lane, "run-a")
    assert await lane.store.is_seeded(lane.conversation_id, KEY)
    assert not await lane.store.is_seeded(lane.conversation_id, "another")


async def test_planting_is_in_the_ledger_without_its_text(lane: Lane) -> None:
    await begin(lane, await lane.begin_run("a"), TURN, seed_of(lane, "secret-words"))
    events = (await lane.store.read_events(lane.conversation_id)).items
    planted = [event for event in events if event.payload.get("type") == "seed"]

    assert 1 == len(planted)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert '"text"' not in planted[0].model_dump_json()


async def test_the_same_step_again_plants_nothing_more(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await begin(lane, fence, TURN, seed_of(lane, "seed-1"))
    before = await lane.store.load_snapshot(lane.conversation_id)
    await begin(lane, fence, TURN, seed_of(lane, "seed-1"))

    assert before == await lane.store.load_snapshot(lane.conversation_id)


async def test_another_seed_under_the_key_changes_nothing_also_once_it_was_compacted(lane: Lane) -> None:
    await begin(lane, await lane.begin_run("a"), TURN, seed_of(lane, "seed-1"))
    await lane.apply(lane.settle("run-a"), lane.compact("sum", "seed-1"))
    await begin(lane, await lane.begin_run("b"), TURN, seed_of(lane, "seed-2"))

    assert ["sum", "in-a", "in-b", "out-b"] == [name for name in await heard(lane, "run-b") if name != "out-a"]


async def test_a_seed_that_is_there_in_part_refuses_the_step(lane: Lane) -> None:
    await lane.apply(lane.seed("imported", "seed-1"))
    fence = await lane.begin_run("a")
    with pytest.raises(StoreIntegrityError):
        await begin(lane, fence, TURN, seed_of(lane, "seed-1", "seed-2"))

    assert await prepared(lane) is None
    assert not await lane.store.is_seeded(lane.conversation_id, KEY)


async def test_a_seed_that_is_there_whole_leaves_its_receipt_only(lane: Lane) -> None:
    await lane.apply(lane.seed("imported", "seed-1", "seed-2"))
    await begin(lane, await lane.begin_run("a"), TURN, seed_of(lane, "seed-1", "seed-2"))

    assert ["seed-1", "seed-2", "in-a", "out-a"] == await heard(lane, "run-a")
    assert await lane.store.is_seeded(lane.conversation_id, KEY)


async def test_a_purge_takes_the_receipt_with_it(lane: Lane) -> None:
    await begin(lane, await lane.begin_run("a"), TURN, seed_of(lane, "seed-1"))
    await lane.apply(lane.settle("run-a"), lane.purge())

    assert not await lane.store.is_seeded(lane.conversation_id, KEY)
