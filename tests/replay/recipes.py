"""What kinds of turns are made of: where they are listed, their tools and scripts, and how they must end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tests.integration.stage import BOUND
from tests.replay.studio import Studio, by_step
from turnlane.agent import ToolError, tool
from turnlane.agent.models import Action, Call, Pause, Say, Script, ScriptedRequest
from turnlane.client import Ticket
from turnlane.records.lane import RetryFacts
from turnlane.records.runs import TerminalReason

Play = Callable[[Studio], Awaitable[None]]
TURNS: dict[str, Play] = {}


QUICK = RetryFacts(max_tries=3, initial_seconds=0.05, max_seconds=0.2)


def turn(play: Play) -> Play:
    """Add a kind of turn, under its function's name."""
    TURNS[play.__name__.replace("_", "-")] = play
    return play


@tool(read_only=True)
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@tool
def ring(times: int) -> str:
    """Ring a bell."""
    return f"rang {times} times"


@tool
def stumble() -> str:
    """Fail, always."""
    raise ToolError("NOT_TODAY", "This tool never works.")


ADD = Call("add", {"left": 1, "right": 2})
HOLD_THEN_ANSWER = by_step([Call("hold")], [Say("Done.")])


async def ended(ticket: Ticket, reason: TerminalReason = TerminalReason.SUCCESS) -> None:
    """Wait for a result, and insist on how it ended: a history of something else is not worth keeping."""
    result = await ticket.result(timeout=BOUND)
    if result.reason is not reason:
        raise AssertionError(f"{ticket.conversation_id} ended {result.reason}, not {reason}")


async def answered_together(one: Ticket, other: Ticket) -> None:
    """Insist that one run answered both."""
    runs = {(await ticket.result(timeout=BOUND)).run_id for ticket in (one, other)}
    if len(runs) != 1:
        raise AssertionError(f"{one.conversation_id} was answered by {len(runs)} runs")


def slow(studio: Studio) -> Script:
    """The first model call begins and then says nothing more; every later one answers."""
    calls = iter([True])

    def script(request: ScriptedRequest) -> Sequence[Action]:
        studio.speaking.set()
        return [Say("Well,"), Pause(120.0)] if next(calls, False) else [Say("Yes.")]

    return script
