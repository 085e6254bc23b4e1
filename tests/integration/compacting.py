"""A conversation with an agent that compacts: what its model was asked, and a summariser that a test may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import WorkflowHandle

from tests.conftest import Bench, Serve, texts
from tests.integration.stage import BOUND
from turnlane.agent import Agent, Compaction, Model, ScriptedModel, Summarized, SummaryContext
from turnlane.agent.models import Action, Fail, Say, ScriptedRequest, Stop, Think
from turnlane.client import Result, Ticket, Turnlane
from turnlane.records.compaction import CompactReply
from turnlane.records.lane import LaneSettings
from turnlane.records.ledger import LedgerEvent
from turnlane.records.messages import Role, TextPart
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.usage import Provenance, Usage, UsageValue
from turnlane.testing.races import Barrier


def said(request: ScriptedRequest) -> str:
    """The last thing that the user said."""
    (part,) = request.prompt.messages[-1].parts
    assert isinstance(part, TextPart)
    return part.text


@dataclass
class Talk:
    """A conversation with an agent that compacts, what its model was asked, and a summariser that a test may hold."""

    bench: Bench
    serve: Serve
    conversation: str
    asked: list[ScriptedRequest] = field(default_factory=list)
    contexts: list[SummaryContext] = field(default_factory=list)
    is_held: bool = False
    gate: Barrier = field(default_factory=lambda: Barrier("the first summary", BOUND))
    error: Exception | None = None
    usage: Usage | None = None

    def __post_init__(self) -> None:
        self.client: Turnlane = self.bench.client()

    def script(self, request: ScriptedRequest) -> Sequence[Action]:
        """Answer what was said last."""
        self.asked.append(request)
        if said(request) == "fail":
            return [Fail(Failure(failure_class=FailureClass.INVALID_REQUEST))]
        if said(request) == "think":
            return [Think("hm"), Stop("length")]
        return [Say(f"answer to {said(request)}")]

    async def summarize(self, context: SummaryContext) -> Summarized:
        """Sum up the user's words. The first summary waits at the gate, if it is to be held."""
        self.contexts.append(context)
        if self.is_held and len(self.contexts) == 1:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        goal = " ".join(message.text for message in context.messages if message.role is Role.USER)
        return Summarized({"goal": goal}, self.usage)

    async def start(self, *, settings: LaneSettings | None = None, model: Model | None = None, **options: Any) -> None:
        """Serve the agent; without a summariser of its own it is asked of this talk."""
        if not {"model", "summarize"} & set(options):
            options["summarize"] = self.summarize
        agent = Agent(name="actor", model=model or ScriptedModel(script=self.script), compaction=Compaction(**options))
        await self.serve(agent, settings=settings)

    async def turn(self, text: str) -> Result:
        """Say something and wait for the answer."""
        ticket = await self.client.submit(self.conversation, text)
        return await ticket.result(BOUND)

    async def turns(self, *said: str) -> None:
        """Say one thing after the other."""
        for text in said:
            await self.turn(text)

    async def held_in_a_run(self, **options: Any) -> Ticket:
        """Serve the agent, have A and B answered, and C held in the compaction before its run."""
        await self._held(**options)
        ticket = await self.client.submit(self.conversation, "C")
        await self.gate.until_reached()
        return ticket

    async def held_in_a_wish(self, **options: Any) -> asyncio.Task[CompactReply]:
        """Serve the agent, have A and B answered, and somebody's wish for a compaction held."""
        await self._held(**options)
        wish = asyncio.create_task(self.client.compact(self.conversation))
        await self.gate.until_reached()
        return wish

    async def _held(self, **options: Any) -> None:
        self.is_held = True
        await self.start(**options)
        await self.turns("A", "B")

    async def messages(self, *, all: bool = False) -> list[tuple[str, str]]:
        """What the conversation holds, as (role, text)."""
        page = await self.client.messages(self.conversation, limit=1000, include_compacted=all)
        return texts(page.items)

    async def ledger(self, kind: str) -> list[LedgerEvent]:
        """The ledger's events of a kind."""
        return [event for event in (await self.bench.store.read_events(self.conversation)).items if event.kind == kind]

    @property
    def lane(self) -> WorkflowHandle[Any, Any]:
        """The Temporal handle of the lane."""
        return self.bench.temporal.get_workflow_handle(f"lane/{self.conversation}")


def summary(text: str) -> tuple[str, str]:
    return ("summary", f"Summary of the earlier conversation:\n\nGoal: {text}")


def tokens(value: int) -> UsageValue:
    return UsageValue(value=value, provenance=Provenance.COMPUTED)
