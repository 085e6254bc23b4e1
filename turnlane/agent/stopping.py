"""Stopping: policies that end a run behind a round of tool calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from turnlane.records.base import JsonObject
from turnlane.records.messages import Part, TextPart, ToolCallPart, ToolResultPart
from turnlane.records.usage import Usage

MAX_STEPS = "max-steps"
"""The name under which `Agent.max_steps` stops a run. No other policy may have it."""

_LONGEST_NAME = 128


@dataclass(frozen=True)
class StepResult:
    """A finished step: what the model said in it, and what came of the calls that it asked for, in call order."""

    number: int
    parts: tuple[Part, ...]
    results: tuple[ToolResultPart, ...]

    @property
    def text(self) -> str:
        """What was said, without reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls that were asked for."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))


@dataclass(frozen=True, kw_only=True)
class StopContext:
    """What a stop condition sees: the steps of the run so far, each with its calls answered.

    `usage` is what the run has spent by now; a provider that reported nothing leaves its figures unavailable.
    """

    conversation_id: str
    run_id: str
    steps: tuple[StepResult, ...]
    usage: Usage
    context: JsonObject | None
    metadata: JsonObject | None
    tenant: str | None

    @property
    def step_number(self) -> int:
        """The number of the step just finished, from 0."""
        return self.steps[-1].number if self.steps else 0

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """Every call of the run, in order."""
        return tuple(call for step in self.steps for call in step.calls)

    @property
    def results(self) -> tuple[ToolResultPart, ...]:
        """Every result of the run, step by step in call order."""
        return tuple(result for step in self.steps for result in step.results)


StopCondition = Callable[[StopContext], bool | Awaitable[bool]]


@dataclass(frozen=True)
class StopPolicy:
    """A condition under a name: the run that it stops ends `policy_stop` with that name."""

    name: str
    condition: StopCondition


def stop_policies(given: Mapping[str, StopCondition] | Sequence[StopPolicy]) -> tuple[StopPolicy, ...]:
    """Return the policies in the order given. Raises ValueError for a name that is empty, reserved or used twice."""
    if isinstance(given, Mapping):
        given = [StopPolicy(name, condition) for name, condition in given.items()]
    names = [policy.name for policy in given]
    for name in names:
        if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"a stop policy's name has 1 to {_LONGEST_NAME} printable characters")
        if name == MAX_STEPS:
            raise ValueError(f"{MAX_STEPS!r} is the name under which max_steps stops a run")
    if len(set(names)) != len(names):
        raise ValueError("two stop policies have one name")
    return tuple(given)


def called(tool_name: str) -> StopCondition:
    """A condition that is true once the run has called this tool, whatever came of it."""
    return lambda context: any(call.tool_name == tool_name for call in context.calls)
