"""How a conversation's events look to a person: text as it streams, tool calls, retries and endings, in order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from pydantic import JsonValue

from turnlane.client.cli.output import Output
from turnlane.records.events import (
    AdmissionEvent,
    AssistantCheckpointEvent,
    AssistantDeltaEvent,
    AttemptResetEvent,
    Event,
    ReasoningDeltaEvent,
    RunStateEvent,
    TerminalEvent,
    ToolStatus,
    ToolStatusEvent,
)
from turnlane.records.runs import RunState, TerminalReason

_MARKS = {
    ToolStatus.STARTED: "...",
    ToolStatus.COMPLETED: "done",
    ToolStatus.FAILED: "failed",
    ToolStatus.INTERRUPTED: "interrupted",
}
_LONGEST_VALUE = 200


def _short(value: JsonValue) -> str:
    """A value as one line that fits a page: a text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


@dataclass
class _Answer:
    """What was shown of one run's answer: `settled` is known from a checkpoint, `loose` came by deltas since."""

    settled: str = ""
    loose: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return self.settled + "".join(self.loose.values())


class Transcript:
    """Prints events as they come. Deltas that were missed are made up for at the next checkpoint or ending."""

    def __init__(self, out: Output, *, show_inputs: bool = True, show_reasoning: bool = False) -> None:
        self._out = out
        self._show_inputs = show_inputs
        self._show_reasoning = show_reasoning
        self._answers: dict[str, _Answer] = {}
        self._is_mid_line = False

    def show(self, event: Event) -> None:
        """Print one event, for people; as a JSON line, for programs."""
        self._out.record(event)
        match event:
            case AdmissionEvent() if self._show_inputs:
                self._line(f"> {event.input.text}", "cyan")
            case AssistantDeltaEvent():
                self._delta(event)
            case ReasoningDeltaEvent() if self._show_reasoning:
                self._stream(event.text_delta, "dim italic")
            case ToolStatusEvent():
                self._tool(event)
            case AttemptResetEvent():
                self._answer(event.run_id).loose.pop(event.withdrawn, None)
                self._line(f"[step {event.step + 1} is tried again]", "yellow")
            case AssistantCheckpointEvent():
                self._catch_up(event.run_id, event.message.text)
            case RunStateEvent(state=RunState.INTERRUPT_REQUESTED):
                self._line("[asked to stop]", "yellow")
            case TerminalEvent():
                self._end(event)

    def _answer(self, run_id: str) -> _Answer:
        return self._answers.setdefault(run_id, _Answer())

    def _delta(self, event: AssistantDeltaEvent) -> None:
        loose = self._answer(event.run_id).loose
        loose[event.epoch] = loose.get(event.epoch, "") + event.text_delta
        self._stream(event.text_delta)

    def _tool(self, event: ToolStatusEvent) -> None:
        value = event.input if event.status is ToolStatus.STARTED else event.output
        shown = "" if value is None else f" {_short(value)}"
        self._line(f"[{event.tool_name} {_MARKS[event.status]}{shown}]", "magenta")

    def _catch_up(self, run_id: str, text: str) -> None:
        """Print what is missing of `text`; all of it when what was shown is not its beginning."""
        answer = self._answer(run_id)
        shown = answer.shown
        if shown.startswith(text):
            return
        if text.startswith(shown):
            self._stream(text[len(shown) :])
        else:
            self._line(text)
        answer.settled, answer.loose = text, {}

    def _end(self, event: TerminalEvent) -> None:
        self._catch_up(event.run_id, event.message.text)
        self._answers.pop(event.run_id, None)
        self._break()
        if event.reason is not TerminalReason.SUCCESS:
            failure = event.failure.failure_class.value if event.failure else event.policy_name
            self._line(f"[{event.reason.value}{f': {failure}' if failure else ''}]", "yellow")

    def _stream(self, text: str, style: str = "") -> None:
        if text:
            self._out.stream(text, style)
            self._is_mid_line = not text.endswith("\n")

    def _line(self, text: str, style: str = "") -> None:
        self._break()
        self._out.say(text, style)

    def _break(self) -> None:
        """End a line that streaming left open."""
        if self._is_mid_line:
            self._out.end_line()
            self._is_mid_line = False
