"""Effects in the journal of a durable body: made once, looked for when nobody knows, open while nobody can say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.journals import NOW, Counter, code_of, journal, put
from turnlane.agent.durable import EffectResult, EffectStatus
from turnlane.agent.tools import ToolError
from turnlane.records.durable import EntryKind
from turnlane.testing.durable import Notebook


@pytest.fixture
def book() -> Notebook:
    return Notebook()


async def test_an_effect_is_made_once_and_its_proof_kept(book: Notebook) -> None:
    run, reconcile = Counter({"charge": "ch_1"}), Counter()

    told = [await journal(book).effect("charge", run, reconcile, 1.0) for _ in range(2)]

    assert [EffectResult(EffectStatus.ACCEPTED, {"charge": "ch_1"})] * 2 == told
    assert (1, 0) == (run.count, reconcile.count)


async def lost_midway(book: Notebook) -> None:
    """An effect whose run began, and whose worker was lost."""
    mine = journal(book)
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(mine.effect("charge", hang, Counter(), 1.0))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_effect_whose_worker_was_lost_is_looked_for_and_not_made_again(book: Notebook) -> None:
    await lost_midway(book)
    run, reconcile = Counter(), Counter("found")

    told = [await journal(book).effect("charge", run, reconcile, 1.0) for _ in range(2)]

    assert [EffectResult(EffectStatus.ACCEPTED, "found")] * 2 == told
    assert (0, 1) == (run.count, reconcile.count)


async def test_an_effect_that_cannot_be_found_is_uncertain_for_good(book: Notebook) -> None:
    await lost_midway(book)
    run = Counter()

    told = [await journal(book).effect("charge", run, reconcile, 1.0) for reconcile in (Counter(None), Counter("late"))]

    assert [EffectResult(EffectStatus.UNCERTAIN)] * 2 == told
    assert 0 == run.count


async def test_an_effect_is_open_while_nobody_can_say_and_decided_later(book: Notebook) -> None:
    await lost_midway(book)
    mine = journal(book)

    async def hang() -> None:
        await asyncio.Event().wait()

    for silent in (Counter(RuntimeError()), hang):
        with pytest.raises(ToolError) as raised:
            await mine.effect("charge", Counter(), silent, 0.01)
        assert "EFFECT_UNRESOLVED" == code_of(raised)

    assert EffectResult(EffectStatus.ACCEPTED, 1) == await mine.effect("charge", Counter(), Counter(1), 1.0)


async def test_an_effect_that_raised_may_have_happened(book: Notebook) -> None:
    run, reconcile = Counter(RuntimeError()), Counter("found")
    mine = journal(book)

    with pytest.raises(ToolError) as raised:
        await mine.effect("charge", run, reconcile, 1.0)
    told = await mine.effect("charge", run, reconcile, 1.0)

    assert "EFFECT_UNRESOLVED" == code_of(raised)
    assert (EffectResult(EffectStatus.ACCEPTED, "found"), 1) == (told, run.count)


async def test_two_workers_that_meet_at_one_effect_make_it_once(book: Notebook) -> None:
    run = Counter("mine")
    first, second = journal(book), journal(book)

    told = await asyncio.gather(
        first.effect("charge", run, Counter(), 1.0),
        second.effect("charge", run, Counter(RuntimeError()), 1.0),
        return_exceptions=True,
    )

    assert 1 == run.count
    assert EffectResult(EffectStatus.ACCEPTED, "mine") in told


@pytest.mark.parametrize("proof", [NOW, "x" * 65_536], ids=["not lossless", "too large"])
async def test_a_proof_that_cannot_be_kept_leaves_the_effect_open(book: Notebook, proof: Any) -> None:
    run = Counter(proof)
    mine = journal(book)

    with pytest.raises(ToolError) as raised:
        await mine.effect("charge", run, Counter(), 1.0)
    told = await mine.effect("charge", run, Counter("found"), 1.0)

    assert ("EFFECT_UNRESOLVED", 1) == (code_of(raised), run.count)
    assert EffectResult(EffectStatus.ACCEPTED, "found") == told


@pytest.mark.parametrize("text", ["[]", '{"state":"done"}', "{"])
async def test_a_record_of_an_effect_that_cannot_be_read_makes_nothing(book: Notebook, text: str) -> None:
    put(book, EntryKind.EFFECT, "charge", text)
    run, reconcile = Counter(), Counter()

    with pytest.raises(ToolError) as raised:
        await journal(book).effect("charge", run, reconcile, 1.0)

    assert ("RECORD_UNREADABLE", 0, 0) == (code_of(raised), run.count, reconcile.count)
