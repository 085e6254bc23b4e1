"""Histories: what a turn leaves in Temporal, in events and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from benchmarks.agents import FIVE_TOOLS, ONE_TOOL
from benchmarks.stage import PATIENCE_SECONDS, Stage, TurnTime, floor_turn, fresh_id, lane_turn

_TASK = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED: True,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: True,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: False,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: False,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: False,
}
"""Whether a workflow task is open after an event."""

_ACTIVITY = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: 1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: -1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: -1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: -1,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: -1,
}
"""How many more activities are open after an event."""


@dataclass(frozen=True)
class Size:
    """The size of a history, or of what a turn added to one."""

    run_id: str
    events: int
    size: int


async def history_size(stage: Stage, workflow_id: str) -> Size:
    """The size of a workflow's history once nothing is open in it: a result is told before the workflow hears of it.

    Somebody must work on the workflow until then. Raises TimeoutError if nobody does.
    """
    handle = stage.temporal.get_workflow_handle(workflow_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            history = await handle.fetch_history()
            if not _is_at_work(list(history.events)):
                return Size(history.run_id, len(history.events), sum(event.ByteSize() for event in history.events))
            await asyncio.sleep(0.005)


def _is_at_work(events: list[HistoryEvent]) -> bool:
    if events[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
        return True
    last = next((event for event in reversed(events) if event.event_type in _TASK), None)
    activities = sum(_ACTIVITY.get(event.event_type, 0) for event in events)
    return activities > 0 or (last is not None and _TASK[last.event_type])


async def added_by(stage: Stage, workflow_id: str, turn: Callable[[], Awaitable[Any]], turns: int) -> list[Size]:
    """What each of `turns` turns added; one that moved on to a fresh history is left out."""
    added: list[Size] = []
    before = await history_size(stage, workflow_id)
    for _ in range(turns):
        await turn()
        after = await history_size(stage, workflow_id)
        if after.run_id == before.run_id:
            added.append(Size(after.run_id, after.events - before.events, after.size - before.size))
        before = after
    return added


def typical(added: list[Size]) -> dict[str, float]:
    """The median turn, and the events of the longest."""
    events = [item.events for item in added]
    return {"events": median(events), "most_events": max(events), "bytes": median(item.size for item in added)}


async def per_turn(stage: Stage, turns: int) -> dict[str, Any]:
    """Events and bytes of a warm turn: plain, waited for, with tools, and the floor's."""
    client, alone = stage.client(), stage.client(alone=True)
    kinds: dict[str, tuple[str, Callable[[str], Awaitable[TurnTime]]]] = {
        "plain": ("lane", lambda c: lane_turn(client, c)),
        "wait": ("lane", lambda c: lane_turn(alone, c)),
        "one_tool": ("lane", lambda c: lane_turn(client, c, ONE_TOOL)),
        "five_tools": ("lane", lambda c: lane_turn(client, c, FIVE_TOOLS)),
        "floor": ("floor", lambda c: floor_turn(stage.floor, c)),
        "floor_wait": ("floor", lambda c: floor_turn(stage.floor, c, waits=True)),
    }
    return {name: await _typical_turn(stage, prefix, turn, turns) for name, (prefix, turn) in kinds.items()}


async def _typical_turn(
    stage: Stage, prefix: str, turn: Callable[[str], Awaitable[TurnTime]], turns: int
) -> dict[str, float]:
    conversation = fresh_id()
    await turn(conversation)
    return typical(await added_by(stage, f"{prefix}/{conversation}", lambda: turn(conversation), turns))
