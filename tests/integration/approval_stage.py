"""A stage for approvals: tools that count, an agent whose rules ask, and answers by call id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from temporalio.worker import Worker

from tests.conftest import Bench, Serve
from tests.integration.play import Play, open_play
from tests.integration.stage import BOUND
from turnlane.agent import Tool, ToolContext, tool
from turnlane.client import Result, Ticket
from turnlane.records.approvals import PendingApproval
from turnlane.records.base import Json
from turnlane.records.messages import ToolResultPart
from turnlane.records.runs import TerminalReason
from turnlane.store.database import connect
from turnlane.store.urls import store_url

PAY, SHIP, CLOSE, NOTE = (
    ("p1", "pay", '{"sum": 5}'),
    ("s1", "ship", "{}"),
    ("c1", "close", "{}"),
    ("n1", "note", "{}"),
)


@dataclass
class Till:
    """What was really done: a count for each tool, and the context each call had."""

    made: Counter[str] = field(default_factory=Counter)
    contexts: list[ToolContext] = field(default_factory=list)

    def tools(self, **options: Any) -> list[Tool]:
        """A tool that waits for approval, two of its kind, and one that does not."""

        def pay(sum: int, ctx: ToolContext) -> str:
            """Pay."""
            self.made["pay"] += 1
            self.contexts.append(ctx)
            return f"paid {sum}"

        def ship() -> str:
            """Ship."""
            self.made["ship"] += 1
            return "shipped"

        def close() -> str:
            """Close the account."""
            self.made["close"] += 1
            return "closed"

        def note() -> str:
            """Take a note."""
            self.made["note"] += 1
            return "noted"

        gated = tool(approval="user-approval", **options)
        return [gated(pay), gated(ship), gated(close), tool(note)]


Gated = tuple[Play, Till]
"""A play, and the till of its agent."""


async def open_till(bench: Bench, serve: Serve, conversation: str, **options: Any) -> Gated:
    """A play whose agent has a till."""
    till = Till()
    play = await open_play(bench, serve, conversation, tools=till.tools(), **options)
    return play, till


def working(play: Play, tools: Sequence[Tool], **options: Any) -> Worker:
    """A worker of the play's bench, for as long as it is entered; its agent has these tools."""
    return play.bench.worker(play.stage.agent(tools=tools), providers=play.stage.providers, **options)


async def asked(play: Play, *calls: tuple[str, str, str], name: str = "go", number: int = 1) -> Result:
    """Have the model make these calls in its first step, and return how the run ended."""
    ticket = await play.submit(name)
    (await play.stage.call(number)).use(*(calls or (PAY,)))
    return await ticket.result(BOUND)


async def pending(play: Play) -> dict[str, PendingApproval]:
    """What waits for approval, by call id."""
    return {each.call_id: each for each in await play.client.pending_approvals(play.conversation)}


async def approval_of(play: Play, call_id: str = "p1") -> str:
    """The id of the approval that a call waits for."""
    return (await pending(play))[call_id].approval_id


async def respond(play: Play, call_id: str, approved: bool, **options: Any) -> Ticket:
    """Answer the approval of a call."""
    return await play.client.respond(play.conversation, await approval_of(play, call_id), approved, **options)


async def finished(play: Play, ticket: Ticket, number: int, text: str = "Done.") -> TerminalReason:
    """Answer the model call of this number, and return how the run ended."""
    (await play.stage.call(number)).answer(text)
    return (await ticket.result(BOUND)).reason


async def outputs(play: Play) -> dict[str, Json]:
    """The results of all calls of the conversation, by call id."""
    parts = [part for message in await play.messages() for part in message.parts]
    return {part.call_id: part.output for part in parts if isinstance(part, ToolResultPart)}


async def tamper(bench: Bench, statement: str, **values: Any) -> None:
    """Change the store behind everybody's back."""
    database = connect(store_url(bench.place), 5.0)
    await database.write(lambda connection: connection.execute(text(statement), values))
    await database.close()
