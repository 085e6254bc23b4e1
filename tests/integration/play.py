"""A play: one conversation on a real lane, whose model (`stage`) is played by the test.

play = await open_play(bench, serve, conversation, tools=[look])
a = await play.submit("A")                  # the text is the key, so inputs are told apart by name
(await play.stage.call(1)).answer("Yes.")
assert ["success"] == await play.reasons(a)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle

from tests.conftest import Bench, Serve, texts
from tests.integration.stage import BOUND, HeldStore, Stage, until
from turnlane.activities.durable import SHORT_SECONDS
from turnlane.activities.operator_sink import OperatorSink
from turnlane.agent import tool
from turnlane.client import Result, Ticket, Turnlane
from turnlane.records.base import Json
from turnlane.records.events import AssistantCheckpointEvent, TerminalEvent
from turnlane.records.lane import LaneSettings
from turnlane.records.ledger import LedgerEvent
from turnlane.records.messages import Message, ToolResultPart
from turnlane.records.runs import Run, RunState
from turnlane.store.sql import SqlStore
from turnlane.testing.races import Barrier


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"


NAP_SECONDS = SHORT_SECONDS + 0.5
"""A sleep of a durable body that is just not slept by the worker: the lane waits, with a timer.

What is left once the sleep is recorded decides, and on a slow machine that takes some of the half second.
"""


@dataclass
class Play:
    """A conversation, its client, and the model."""

    bench: Bench
    client: Turnlane
    conversation: str
    store: SqlStore
    stage: Stage = field(default_factory=Stage)
    held: HeldStore | None = None

    async def submit(self, name: str, policy: str | None = None, **options: Any) -> Ticket:
        """Submit the name as text, under itself as key."""
        options.setdefault("key", name)
        return await self.client.submit(self.conversation, name, policy=policy, **options)

    async def reasons(self, *tickets: Ticket) -> list[str]:
        """How the runs of these inputs ended."""
        return [(await ticket.result(BOUND)).reason.value for ticket in tickets]

    @property
    def asked(self) -> list[str]:
        """What each model call was asked, in the order of the calls."""
        return [call.asked for call in self.stage.calls]

    async def messages(self) -> tuple[Message, ...]:
        """Everything that was said, in causal order."""
        return (await self.client.messages(self.conversation, limit=1000)).items

    async def said(self) -> list[tuple[str, str]]:
        """Everything that was said, as (role, text)."""
        return texts(await self.messages())

    async def answered(self) -> list[str]:
        """What users said, in the order in which it was answered."""
        return [text for role, text in await self.said() if role == "user"]

    async def inputs(self, result: Result) -> list[str]:
        """What a run answered, as the names of its inputs."""
        names = {message.id: message.text for message in await self.messages()}
        assert result.run is not None
        return [names[name] for name in result.run.input_message_ids]

    async def run(self, ticket: Ticket) -> Run:
        """The run that an input was assigned to, as the store has it."""
        view = await self.client.run(self.conversation, run_id(ticket))
        assert view is not None
        return view.run

    async def until_state(self, ticket: Ticket, state: RunState) -> Run:
        """Wait until the run of an input is in this state in the store."""

        async def reached() -> bool:
            return (await self.run(ticket)).state is state

        await until(reached)
        return await self.run(ticket)

    async def until_draft(self, text: str) -> None:
        """Wait until a draft with this text is in the store."""

        async def stored() -> bool:
            return ("assistant", text) in await self.said()

        await until(stored)

    async def ledger(self) -> Sequence[LedgerEvent]:
        """Every ledger event of the conversation."""
        return (await self.store.read_events(self.conversation)).items

    @property
    def barrier(self) -> Barrier:
        """Where the held method of the workers' store waits."""
        assert self.held is not None
        return self.held.barrier

    @property
    def lane(self) -> WorkflowHandle[Any, Any]:
        """The Temporal handle of the lane."""
        return self.bench.temporal.get_workflow_handle(f"lane/{self.conversation}")


def run_id(ticket: Ticket) -> str:
    """The run that an input was assigned to."""
    assert ticket.admission is not None
    return ticket.admission.run_id


def anything(_: object) -> bool:
    """Accept any answer. Where there is a rule, a step leaves the end of its run to the lane."""
    return True


async def open_play(
    bench: Bench,
    serve: Serve,
    conversation: str,
    *,
    hold: str | None = None,
    hold_answer: bool = False,
    settings: LaneSettings | None = None,
    sink: OperatorSink | None = None,
    **agent: Any,
) -> Play:
    """Start a worker with a stage for its model. `hold` names a method of the workers' store that waits first,
    or with `hold_answer` last. `sink` is told of runs."""
    play = Play(bench, bench.client(), conversation, bench.store)
    if hold is not None:
        play.held = HeldStore(bench.store, hold, after=hold_answer)
        bench.store = play.held  # type: ignore[assignment]
    agent.setdefault("tools", [look])
    actor = play.stage.agent(**agent)
    await serve(actor, providers=play.stage.providers, settings=settings, operator_events=sink)
    bench.store = play.store
    return play


async def current(play: Play) -> str | None:
    """The history that the lane has now."""
    return (await play.lane.describe()).run_id


_OPENED = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED: 1,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: -1,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: -1,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: -1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: 1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: -1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: -1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: -1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: -1,
}
"""How many more tasks and activities are open behind an event."""


async def at_rest(lane: WorkflowHandle[Any, Any]) -> list[HistoryEvent]:
    """The history of a lane once nothing is open in it: a result is told before the lane has heard of it."""

    async def closed() -> list[HistoryEvent]:
        events = [event async for event in lane.fetch_history_events()]
        has_moved_on = events[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
        open_tasks = sum(_OPENED.get(event.event_type, 0) for event in events)
        return events if open_tasks == 0 and not has_moved_on else []

    found: list[HistoryEvent] = await until(closed)
    return found


async def until_moved(lane: WorkflowHandle[Any, Any], first: str | None) -> None:
    """Wait until the lane has another history than this first one."""

    async def moved() -> bool:
        return (await lane.describe()).run_id != first

    await until(moved)


async def until_answered(client: Turnlane, conversation: str, output: Json) -> None:
    """Wait until a result of a call with this output is stored: watchers are told of it then."""
    async with asyncio.timeout(BOUND):
        async for event in client.events(conversation, from_seq=0):
            if isinstance(event, AssistantCheckpointEvent | TerminalEvent) and output in _outputs(event.message):
                return


def _outputs(message: Message) -> list[Json]:
    return [part.output for part in message.parts if isinstance(part, ToolResultPart)]


async def are_duplicates(tickets: list[Ticket]) -> bool:
    """Whether each of the inputs had been admitted before."""
    return all(ticket.admission is not None and ticket.admission.duplicate for ticket in tickets)


async def shown_details(bench: Bench, conversation: str) -> str:
    """What the Temporal UI shows of the conversation's lane."""
    lane = bench.temporal.get_workflow_handle(f"lane/{conversation}")
    metadata: Any = await lane.query("__temporal_workflow_metadata")
    details: str = metadata["currentDetails"] if isinstance(metadata, dict) else metadata.current_details
    return details
