"""Races made to happen: barriers that hold code at a point, and a trace of what happened in which order.

    async with RaceDriver() as race:
        turn = asyncio.create_task(code_that_calls(race.barrier("before-commit").wait))
        await race.barrier("before-commit").until_reached()
        ...                                   # the other side of the race, for as long as it takes
        race.barrier("before-commit").release()
        await turn
        race.trace.assert_before("commit", "answer")

No test sleeps, and none hangs: every wait ends after the driver's `bound` with an error that says who waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

DEFAULT_BOUND = 10.0


class BarrierTimeoutError(TimeoutError):
    """A barrier was not reached, or not released, in time."""


class Barrier:
    """A point in the code under test that waits there until the test lets it go. Belongs to one event loop."""

    def __init__(self, name: str, bound: float = DEFAULT_BOUND) -> None:
        self.name = name
        self._bound = bound
        self._reached = asyncio.Event()
        self._released = asyncio.Event()
        self.arrivals = 0

    @property
    def reached(self) -> bool:
        """Whether anybody has come to the barrier."""
        return self._reached.is_set()

    async def wait(self) -> None:
        """Arrive, and return once the barrier is released; at once when it already is.

        Raises BarrierTimeoutError when nobody releases it within the bound.
        """
        self.arrivals += 1
        self._reached.set()
        await self._within(self._released, "released")

    async def until_reached(self) -> None:
        """Return once somebody has arrived. Raises BarrierTimeoutError when nobody does within the bound."""
        await self._within(self._reached, "reached")

    def release(self) -> None:
        """Let everybody go who waits or will ever wait here."""
        self._released.set()

    async def _within(self, event: asyncio.Event, what: str) -> None:
        try:
            async with asyncio.timeout(self._bound):
                await event.wait()
        except TimeoutError:
            raise BarrierTimeoutError(f"barrier {self.name!r} was not {what} within {self._bound} s") from None


@dataclass(frozen=True)
class Mark:
    """Something that happened: its place in the trace, from 1, and its name."""

    sequence: int
    name: str


class Trace:
    """What happened, in order. May be recorded to from any coroutine or callback of the loop."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def record(self, name: str) -> Mark:
        """Note that `name` happened now."""
        mark = Mark(len(self._marks) + 1, name)
        self._marks.append(mark)
        return mark

    @property
    def names(self) -> list[str]:
        """All that happened, in order."""
        return [mark.name for mark in self._marks]

    def count(self, name: str) -> int:
        """How often `name` happened."""
        return self.names.count(name)

    def assert_before(self, earlier: str, later: str) -> None:
        """Raise AssertionError unless both happened, and `earlier` for the first time before `later` did."""
        for name in (earlier, later):
            if name not in self.names:
                raise AssertionError(f"{name!r} did not happen; what did: {self.names}")
        if self.names.index(earlier) >= self.names.index(later):
            raise AssertionError(f"{earlier!r} did not happen before {later!r}: {self.names}")

    def assert_sequence(self, expected: Sequence[str]) -> None:
        """Raise AssertionError unless exactly this happened, in this order."""
        if self.names != list(expected):
            raise AssertionError(f"expected {list(expected)}, but what happened is {self.names}")


class RaceDriver:
    """Named barriers and one trace. Leaving its context releases every barrier, so that nothing stays held."""

    def __init__(self, bound: float = DEFAULT_BOUND) -> None:
        self.trace = Trace()
        self._bound = bound
        self._barriers: dict[str, Barrier] = {}
        self._all_released = False

    def barrier(self, name: str) -> Barrier:
        """The barrier of this name, the same for everybody who asks."""
        if name not in self._barriers:
            self._barriers[name] = Barrier(name, self._bound)
            if self._all_released:
                self._barriers[name].release()
        return self._barriers[name]

    def release_all(self) -> None:
        """Release every barrier, those included that nobody has asked for yet."""
        self._all_released = True
        for barrier in self._barriers.values():
            barrier.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release_all()
