"""Rounds: where one of the model's turns to speak ends within an answer, and the next begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from turnlane.records.messages import Part, ToolCallPart, ToolResultPart
from turnlane.store.payloads import HistoryStep


def calls_in(step: HistoryStep) -> list[ToolCallPart]:
    """The calls that the model made in a step."""
    return [part for part in step.parts if isinstance(part, ToolCallPart)]


def joined_steps(steps: Iterable[HistoryStep]) -> Iterator[HistoryStep]:
    """Yield the steps of an answer as the provider knows them.

    A step without calls that another follows is one in which its provider paused: what it said there and what it
    said when it was asked to go on are one.
    """
    paused: HistoryStep | None = None
    for step in steps:
        whole = step if paused is None else step.model_copy(update={"parts": (*paused.parts, *step.parts)})
        paused = None if calls_in(whole) else whole
        if paused is None:
            yield whole
    if paused is not None:
        yield paused


def rounds_of(parts: Sequence[Part]) -> list[HistoryStep]:
    """Divide the parts of a record that came whole behind its results, as steps would have been."""
    rounds: list[tuple[list[Part], list[ToolResultPart]]] = []
    for part in parts:
        if isinstance(part, ToolResultPart):
            if not rounds:
                rounds.append(([], []))
            rounds[-1][1].append(part)
        elif not rounds or rounds[-1][1]:
            rounds.append(([part], []))
        else:
            rounds[-1][0].append(part)
    return [
        HistoryStep(step=number, parts=tuple(said), results=tuple(results))
        for number, (said, results) in enumerate(rounds)
    ]
