"""Judging a boundary: whether the agent's policies stop a run behind a round of tool calls.

The policies are the application's code, so a worker judges; the lane hears a name.
"""

from __future__ import annotations

from turnlane.records.errors import TurnlaneError
from turnlane.records.lane import LaneRun
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import Fence, JudgeBoundary, Judgement
from turnlane.workflows.calls import JUDGE_BOUNDARY
from turnlane.workflows.core import LaneCore
from turnlane.workflows.heeding import ask_unless_stopped


async def judge(core: LaneCore, run: LaneRun, fence: Fence, stop: str | None) -> Judgement | None:
    """Have the step of `fence` judged, whose calls all have results. `stop` is what ends the run already.

    None once the run was asked to stop. What the store cannot read fails the run.
    """
    request = JudgeBoundary(
        agent=core.head.agent or "",
        fence=fence,
        assistant_message_id=run.assistant_message_id,
        stop=stop,
    )
    try:
        return await ask_unless_stopped(core, run, JUDGE_BOUNDARY, request, Judgement)
    except TurnlaneError as error:
        return Judgement(failure=Failure(failure_class=FailureClass.APPLICATION, code=error.code))
