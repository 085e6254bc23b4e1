"""A dock, where features meet: tools that wait for word and for approval, and a summariser that is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conftest import Bench, Serve
from tests.integration.durable_stage import until_suspended
from tests.integration.play import Play, open_play
from tests.integration.stage import BOUND
from turnlane.agent import Compaction, SummaryContext, Tool, ToolContext, tool
from turnlane.client import Ticket
from turnlane.records.messages import ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.testing.races import Barrier

SHIP = ("s1", "ship", "{}")


@dataclass
class Dock:
    """Tools that meet others: one that waits for word, one that does so once approved, and what they did."""

    made: Counter[str] = field(default_factory=Counter)
    paying: Barrier = field(default_factory=lambda: Barrier("paying", BOUND))

    @property
    def tools(self) -> list[Tool]:
        @tool(durable=True)
        async def ship(ctx: ToolContext) -> Any:
            """Pack, and wait for word."""
            await ctx.step("pack", lambda: self.made.update(["pack"]))
            self.made["ship"] += 1
            return await ctx.wait_for("word", "1")

        @tool(approval="user-approval")
        async def pay() -> str:
            """Pay, which takes a while."""
            self.made["pay"] += 1
            await self.paying.wait()
            return "paid"

        return [ship, pay]


async def open_dock(bench: Bench, serve: Serve, conversation: str, **options: Any) -> tuple[Play, Dock]:
    """A play whose agent has the tools of a dock."""
    dock = Dock()
    return await open_play(bench, serve, conversation, tools=dock.tools, **options), dock


async def shipping(play: Play, *more: tuple[str, str, str]) -> Ticket:
    """A run whose first step waits for word."""
    ticket = await play.submit("go")
    (await play.stage.call(1)).use(SHIP, *more)
    await until_suspended(play.bench, play.conversation)
    return ticket


async def open_calls(play: Play) -> list[str]:
    """The calls that have no result, by id; a call with two is an error."""
    parts = [part for message in await play.messages() for part in message.parts]
    owed = Counter(part.call_id for part in parts if isinstance(part, ToolCallPart))
    owed.subtract(part.call_id for part in parts if isinstance(part, ToolResultPart))
    assert not [call for call, count in owed.items() if count < 0]
    return sorted(owed.elements())


async def outcome_of(play: Play, call_id: str) -> ToolOutcome:
    """How a call came out."""
    everything = (await play.client.messages(play.conversation, include_compacted=True)).items
    parts = [part for message in everything for part in message.parts]
    (found,) = [part.outcome for part in parts if isinstance(part, ToolResultPart) and part.call_id == call_id]
    return found


@dataclass
class Summing:
    """A summariser that a test holds."""

    barrier: Barrier = field(default_factory=lambda: Barrier("summing", BOUND))
    summed: list[Sequence[str]] = field(default_factory=list)

    async def summarize(self, context: SummaryContext) -> dict[str, str]:
        self.summed.append([message.text for message in context.messages])
        await self.barrier.wait()
        return {"goal": "to be had"}

    def compaction(self, **options: Any) -> Compaction:
        return Compaction(summarize=self.summarize, **options)
