"""Hearing: the history as the model is to hear it, by the agent's own projection or by ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from turnlane.activities.asking import asked
from turnlane.activities.attachments import Attachments
from turnlane.activities.beginnings import NOTHING, begin
from turnlane.activities.failing import failing_as
from turnlane.activities.projection import project
from turnlane.activities.record_order import in_order
from turnlane.agent.history import HistoryOptions, OwnProjection, Projector
from turnlane.records.lane import Taken
from turnlane.records.messages import Message
from turnlane.records.prompt import Prompt, ToolSpec
from turnlane.store.payloads import HistoryMessage, HistoryStep

PROJECTION_FAILED = "PROJECTION_FAILED"


async def hear(
    history: Sequence[HistoryMessage],
    options: HistoryOptions,
    *,
    taken: Sequence[Taken],
    tools: Sequence[ToolSpec],
    step: int,
    now: datetime,
    files: Attachments,
) -> Prompt:
    """Return the prompt that a history makes: its messages, and the system texts that it carries.

    Raises ApplicationFailedError for what the application's functions do wrong, and for a history that the
    options refuse.
    """
    if options.project is not None:
        heard = [_told(item, own) for item, own in in_order(history, taken, step)]
        return await _by_application(options.project, [message for message in heard if message.parts], tools)
    # An input that was taken on the way is told where it was taken.
    told = NOTHING if taken else begin(history)
    resolved = await files.resolve(history[len(told.records) :])
    return project(
        history,
        taken=taken,
        instructions="",
        tools=tools,
        step=step,
        options=options,
        resolved=resolved,
        now=now,
        told=told,
    )


def _told(item: HistoryMessage, own: Sequence[HistoryStep] | None) -> Message:
    """A record as an application's projection is given it: of the run's own answer, what is finished."""
    if own is None:
        return item.message
    parts = tuple(part for past in own for part in (*past.parts, *past.results))
    return item.message.model_copy(update={"parts": parts})


async def _by_application(project: Projector, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Prompt:
    with failing_as(PROJECTION_FAILED, "the agent's own projection"):
        made = await asked(lambda: project(messages))
        if not isinstance(made, OwnProjection):
            raise TypeError("a projection returns an OwnProjection")
        return Prompt(system=tuple(made.system), messages=tuple(made.messages), tools=tuple(tools))
