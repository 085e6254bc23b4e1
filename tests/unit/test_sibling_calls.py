"""Calls of one round that end at nearly the same time, and what they wait for."""

from __future__ import annotations

import asyncio

import pytest

from turnlane.activities import sibling_calls
from turnlane.activities.sibling_calls import REMEMBERED_ROUNDS, SiblingCalls, together
from turnlane.records.steps import CallRequest, Fence

LONG = 3600.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait for their siblings as long as it takes."""
    monkeypatch.setattr(sibling_calls, "STRANGERS_SECONDS", LONG)
    monkeypatch.setattr(sibling_calls, "SIBLINGS_SECONDS", 2 * LONG)


def request(name: str, siblings: int | None, *, run: str = "run") -> CallRequest:
    fence = Fence(conversation_id="c", epoch=1, run_id=run, token=1, step=0, attempt=1)
    return CallRequest(
        agent="a", fence=fence, assistant_message_id="m", call_id=name, tool_name="look", slot=1, siblings=siblings
    )


class Work:
    """Calls that work until the test lets them, and who is through in which order."""

    def __init__(self) -> None:
        self.calls = SiblingCalls()
        self.gates: dict[str, asyncio.Event] = {}
        self.through: list[str] = []

    def begin(self, given: CallRequest) -> asyncio.Task[None]:
        self.gates[given.call_id] = asyncio.Event()
        return asyncio.create_task(self._work(given))

    async def _work(self, given: CallRequest) -> None:
        with self.calls.joined(given) as siblings:
            await self.gates[given.call_id].wait()
        await together(siblings)
        self.through.append(given.call_id)

    async def let(self, name: str) -> None:
        """Let a call end, and everybody do what can be done by then."""
        self.gates[name].set()
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.mark.usefixtures("patient")
async def test_calls_of_a_round_are_through_together_with_the_last() -> None:
    work = Work()
    tasks = [work.begin(request(name, 3)) for name in "abc"]
    await work.let("b")
    await work.let("c")
    assert [] == work.through
    await work.let("a")

    assert ["a", "b", "c"] == sorted(work.through)
    await asyncio.gather(*tasks)


@pytest.mark.usefixtures("patient")
async def test_the_last_call_is_not_a_step_ahead_of_those_that_waited_for_it() -> None:
    calls, steps = SiblingCalls(), dict.fromkeys("ab", 0)
    gate = asyncio.Event()

    async def work(name: str) -> None:
        with calls.joined(request(name, 2)) as siblings:
            if name == "b":
                await gate.wait()
        await together(siblings)
        while steps[name] < 10:
            steps[name] += 1
            assert abs(steps["a"] - steps["b"]) <= 1
            await asyncio.sleep(0)

    both = [asyncio.create_task(work(name)) for name in "ab"]
    await asyncio.sleep(0)
    gate.set()

    await asyncio.gather(*both)


@pytest.mark.usefixtures("patient")
async def test_a_call_without_siblings_waits_for_nobody() -> None:
    work = Work()
    task = work.begin(request("a", None))
    await work.let("a")

    assert ["a"] == work.through
    await task


@pytest.mark.usefixtures("patient")
async def test_rounds_do_not_wait_for_each_other() -> None:
    work = Work()
    tasks = [work.begin(request(name, 2, run=run)) for name, run in (("a", "r"), ("b", "r"), ("c", "s"), ("d", "s"))]
    await work.let("c")
    await work.let("a")
    await work.let("b")

    assert ["a", "b"] == sorted(work.through)
    await work.let("d")
    await asyncio.gather(*tasks)


@pytest.mark.usefixtures("patient")
async def test_a_call_that_is_tried_again_ends_once() -> None:
    work = Work()
    first = work.begin(request("a", 2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    again = work.begin(request("a", 2))
    await work.let("a")
    assert [] == work.through
    other = work.begin(request("b", 2))
    await work.let("b")

    assert ["a", "b"] == sorted(work.through)
    await asyncio.gather(again, other)


async def test_siblings_that_are_elsewhere_are_not_waited_for_beyond_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sibling_calls, "SIBLINGS_SECONDS", LONG)
    work = Work()
    task = work.begin(request("a", 2))
    work.gates["a"].set()
    async with asyncio.timeout(30):
        await task

    assert ["a"] == work.through


async def test_siblings_at_work_here_are_waited_for_longer_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sibling_calls, "STRANGERS_SECONDS", 0.001)
    monkeypatch.setattr(sibling_calls, "SIBLINGS_SECONDS", 0.002)
    work = Work()
    task, slow = work.begin(request("a", 2)), work.begin(request("b", 2))
    work.gates["a"].set()
    async with asyncio.timeout(30):
        await task

    assert ["a"] == work.through
    await work.let("b")
    await slow


@pytest.mark.usefixtures("patient")
async def test_what_cancels_a_call_that_has_ended_comes_too_late() -> None:
    work = Work()
    task, slow = work.begin(request("a", 2)), work.begin(request("b", 2))
    await work.let("a")
    task.cancel()
    await task

    assert ["a"] == work.through
    await work.let("b")
    await slow


async def test_only_the_latest_rounds_are_remembered() -> None:
    calls = SiblingCalls()
    for number in range(REMEMBERED_ROUNDS + 10):
        with calls.joined(request("a", 2, run=f"run-{number}")):
            pass

    assert REMEMBERED_ROUNDS == len(calls._rounds)
