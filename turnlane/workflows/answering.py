"""Answering: what a run does about the approvals that its inputs answer, before its first step.

The calls that were approved run as a round of their own, in front of step 0 and under a fence of its own;
their results go to where the calls were asked for. While other calls of the same step are still without an
answer, the run ends there, and no model is called.
"""

from __future__ import annotations

from turnlane.records.errors import TurnlaneError
from turnlane.records.lane import LaneRun, RunProgress
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import AnswersOpened, Fence, OpenAnswers
from turnlane.workflows.calls import OPEN_ANSWERS
from turnlane.workflows.core import LaneCore
from turnlane.workflows.heeding import ask_unless_stopped

BEFORE_THE_FIRST = -1
"""The step of the fence under which answers are acted on: the one that starting a run leaves in force."""


def is_due(run: LaneRun, progress: RunProgress | None) -> bool:
    """Whether the run has answers to act on. One whose lane was lost meanwhile does so again: what is done stays."""
    return bool(run.answers) and (progress is None or (progress.step <= 0 and not progress.answered))


def begin(core: LaneCore, run: LaneRun) -> Fence:
    """Set the run to the step before its first one; the fence for what is done there."""
    progress = core.progress_of(run) or RunProgress(run_id=run.id)
    core.progress = progress.model_copy(update={"step": BEFORE_THE_FIRST, "attempt": 1})
    return core.fence(run, core.progress, 0)


async def open_answers(core: LaneCore, run: LaneRun, fence: Fence) -> AnswersOpened | None:
    """Have the run's answers checked, and acted on where that takes no call. None once the run was asked to stop."""
    request = OpenAnswers(agent=core.head.agent or "", fence=fence, assistant_message_id=run.assistant_message_id)
    try:
        return await ask_unless_stopped(core, run, OPEN_ANSWERS, request, AnswersOpened)
    except TurnlaneError as error:
        return AnswersOpened(failure=Failure(failure_class=FailureClass.APPLICATION, code=error.code))
