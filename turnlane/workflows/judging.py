"""Judging a boundary: whether the agent's policies stop a run behind a round of tool calls.

The policies are the application's code, so a worker judges; the lane hears a name.
"""

from __future__ import annotations

from turnlane.records.lane import LaneRun
from turnlane.records.steps import Fence, JudgeBoundary, Judgement
from turnlane.workflows.calls import JUDGE_BOUNDARY, store_call
from turnlane.workflows.core import LaneCore


async def judge(core: LaneCore, run: LaneRun, fence: Fence, stop: str | None) -> Judgement:
    """Have the step of `fence` judged, whose calls all have results. `stop` is what ends the run already."""
    request = JudgeBoundary(
        agent=core.head.agent or "",
        fence=fence,
        assistant_message_id=run.assistant_message_id,
        stop=stop,
    )
    return await store_call(JUDGE_BOUNDARY, request, Judgement, core.settings, core.outage)
