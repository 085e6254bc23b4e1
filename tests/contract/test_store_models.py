"""The model that a conversation chose: kept with it, told to its lane and its runs, gone with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnlane.store.sql import SqlStore

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_a_choice_is_kept_and_moves_the_version(store: SqlStore, lane: Lane) -> None:
    await lane.answer("a")
    before = (await store.load_snapshot(lane.conversation_id)).version
    (landed,) = await lane.apply(lane.choose_model("deep"))

    assert ("deep", before + 1) == (await store.load_model(lane.conversation_id), landed.version)


async def test_a_choice_may_be_taken_back(store: SqlStore, lane: Lane) -> None:
    await lane.apply(lane.choose_model("deep"), lane.choose_model(None))

    assert await store.load_model(lane.conversation_id) is None


async def test_a_repeated_choice_is_answered_as_the_first_time(lane: Lane) -> None:
    batch = lane.batch(lane.choose_model("deep"))
    first = await lane.store.commit(batch, lane.clock())

    assert first.reply == (await lane.store.commit(batch, lane.clock())).reply


async def test_a_lane_that_opens_and_a_run_that_starts_know_the_choice(store: SqlStore, lane: Lane) -> None:
    await lane.apply(lane.choose_model("deep"))
    fence = await lane.begin_run("a")
    opened = await store.open_lane(lane.conversation_id, "another", None)
    run = await store.load_run_context(lane.conversation_id, fence.run_id)

    assert run is not None
    assert ("deep", "deep", "helper") == (opened.head.model, run.model, run.agent)


async def test_another_tenants_choice_is_nobodys(store: SqlStore, lane: Lane) -> None:
    await lane.begin_run("a", tenant="acme")
    await lane.apply(lane.choose_model("deep"))
    seen = [await store.load_model(lane.conversation_id, tenant=name) for name in ("acme", "other", None)]

    assert ["deep", None, "deep"] == seen


async def test_a_choice_goes_with_its_conversation(store: SqlStore, lane: Lane) -> None:
    await lane.apply(lane.choose_model("deep"))
    await lane.apply(lane.purge())

    assert await store.load_model(lane.conversation_id) is None
