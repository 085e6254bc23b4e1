"""Finished invocations: the receipt that a run's invocation ended, committed with the end of the run."""

from __future__ import annotations

from turnlane.records.base import JsonObject
from turnlane.records.invocations import InvocationFinished, InvocationStatus, run_invocation_id
from turnlane.records.lane import LaneRun, RunProgress
from turnlane.records.runs import ENDINGS, RunState, TerminalReason

_STATUSES = {
    RunState.COMPLETED: InvocationStatus.SUCCEEDED,
    RunState.INTERRUPTED: InvocationStatus.CANCELLED,
    RunState.CANCELLED: InvocationStatus.CANCELLED,
}


def finished_receipt(
    conversation_id: str, run: LaneRun, progress: RunProgress | None, reason: TerminalReason
) -> JsonObject | None:
    """Return the receipt of a run that ends at its `progress`, None for one that never became an invocation.

    A run that another lane worked on before may have become one: it gets the receipt as well.
    """
    operation_id = progress.operation_id if progress is not None else None
    if operation_id is None and run.token <= (1 if progress is not None else 0):
        return None
    receipt = InvocationFinished(
        conversation_id=conversation_id,
        invocation_id=run_invocation_id(conversation_id, run.id),
        operation_id=operation_id,
        run_id=run.id,
        status=_STATUSES.get(ENDINGS[reason].state, InvocationStatus.FAILED),
    )
    return {"invocation": receipt.model_dump(mode="json", exclude_none=True)}
