"""Opening a lane: it takes an epoch, loads its head unless it brought one, and takes up what it finds."""

from __future__ import annotations

from temporalio import workflow

from turnlane.records.commands import Recover
from turnlane.records.errors import LaneSupersededError
from turnlane.records.lane import LaneStart
from turnlane.records.mutations import LaneOpened, OpenLane, QueuePage, QueueRuns
from turnlane.records.runs import RunState
from turnlane.workflows.calls import LOAD_QUEUE, OPEN_LANE, store_call
from turnlane.workflows.control import interrupt_quietly
from turnlane.workflows.core import LaneCore
from turnlane.workflows.paging import load_pages


async def open_lane(core: LaneCore, start: LaneStart) -> None:
    """Open the conversation for this workflow.

    Afterwards it is open, or known to be purged, or lost to another incarnation that has the epoch.
    """
    request = OpenLane(
        conversation_id=core.conversation_id,
        owner=workflow.info().run_id,
        carried_epoch=start.epoch if start.head is not None else None,
        facts_digest=core.facts.digest if core.facts else None,
        agent=core.inbox[0].input.agent if core.inbox else None,
    )
    opened = await store_call(OPEN_LANE, request, LaneOpened, core.settings, core.outage)
    core.settings = opened.settings
    core.facts = opened.facts or core.facts
    if opened.head is not None and opened.head.purged:
        core.head, core.is_open = opened.head, True
        return
    if opened.epoch is None:
        core.outbox.lose(LaneSupersededError("another incarnation of the lane has opened the conversation"))
        return
    core.epoch = opened.epoch
    if start.head is None and opened.head is not None:
        await _load(core, opened)
    await load_pages(core, start)
    core.is_open = True
    _resume(core, start)


async def _load(core: LaneCore, opened: LaneOpened) -> None:
    core.head = opened.head or core.head
    core.progress = opened.progress
    more = opened.more
    while more and core.head.runs:
        page = QueuePage(conversation_id=core.conversation_id, after_run_id=core.head.runs[-1].id)
        found = await store_call(LOAD_QUEUE, page, QueueRuns, core.settings, core.outage)
        core.head = core.head.model_copy(update={"runs": core.head.runs + found.runs})
        more = found.more and bool(found.runs)


def _resume(core: LaneCore, start: LaneStart) -> None:
    """Take up what an earlier incarnation left: a live run goes on after its last finished step, unless it was
    asked to stop. One that names no run means the run of then, so it is heard before another one starts."""
    for request in start.interrupts:
        interrupt_quietly(core, request)
    live = core.head.live
    if live is not None and start.head is None and live.state is RunState.RUNNING:
        core.decide(Recover(run_id=live.id, action="requeue", replay_safe=True))
    core.schedule()
    for request in start.interrupts:
        if request.run_id is not None:
            interrupt_quietly(core, request)
