"""The race tools: barriers hold and let go, a trace tells the order, and nothing waits for ever."""

import asyncio

import pytest

from turnlane.testing.races import Barrier, BarrierTimeoutError, Mark, RaceDriver, Trace


async def test_a_barrier_holds_until_it_is_released() -> None:
    async with RaceDriver() as race:
        barrier = race.barrier("before-commit")

        async def commit() -> None:
            race.trace.record("arrived")
            await barrier.wait()
            race.trace.record("committed")

        committing = asyncio.create_task(commit())
        await barrier.until_reached()
        race.trace.record("interrupted")
        barrier.release()
        await committing

        race.trace.assert_sequence(["arrived", "interrupted", "committed"])


async def test_a_released_barrier_holds_nobody() -> None:
    barrier = Barrier("open")
    barrier.release()

    await barrier.wait()
    await barrier.wait()

    assert (True, 2) == (barrier.reached, barrier.arrivals)


async def test_a_barrier_nobody_releases_fails_in_bounded_time() -> None:
    barrier = Barrier("forgotten", bound=0.01)

    with pytest.raises(BarrierTimeoutError, match=r"'forgotten' was not released within 0\.01 s"):
        await barrier.wait()


async def test_a_barrier_nobody_reaches_fails_in_bounded_time() -> None:
    race = RaceDriver(bound=0.01)

    with pytest.raises(BarrierTimeoutError, match="'unreached' was not reached"):
        await race.barrier("unreached").until_reached()
    assert not race.barrier("unreached").reached


async def test_leaving_the_driver_lets_everybody_go_even_from_barriers_yet_to_come() -> None:
    async with RaceDriver() as race:
        held = asyncio.gather(*(race.barrier(name).wait() for name in ("a", "a", "b")))
        await race.barrier("b").until_reached()

    await asyncio.wait_for(held, 5)
    await asyncio.wait_for(race.barrier("late").wait(), 5)
    assert 2 == race.barrier("a").arrivals


async def test_cancelling_a_waiter_is_not_a_timeout() -> None:
    barrier = Barrier("held")
    waiting = asyncio.create_task(barrier.wait())
    await barrier.until_reached()
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_trace_counts_and_numbers() -> None:
    trace = Trace()
    marks = [trace.record(name) for name in ("a", "b", "a")]

    assert [Mark(1, "a"), Mark(2, "b"), Mark(3, "a")] == marks
    assert (2, 1, 0) == (trace.count("a"), trace.count("b"), trace.count("c"))


def test_a_trace_tells_what_came_first() -> None:
    trace = Trace()
    for name in ("a", "b", "a"):
        trace.record(name)

    trace.assert_before("a", "b")
    with pytest.raises(AssertionError, match="'b' did not happen before 'a'"):
        trace.assert_before("b", "a")
    with pytest.raises(AssertionError, match="'c' did not happen"):
        trace.assert_before("a", "c")
    with pytest.raises(AssertionError, match="'a' did not happen before 'a'"):
        trace.assert_before("a", "a")


def test_a_sequence_is_exact() -> None:
    trace = Trace()
    trace.record("a")
    trace.record("b")

    trace.assert_sequence(("a", "b"))
    for wrong in (["a"], ["b", "a"], ["a", "b", "b"]):
        with pytest.raises(AssertionError, match="what happened is"):
            trace.assert_sequence(wrong)
