"""How a conversation's events look to a person: text as it streams, tool calls, questions and endings, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from turnlane.client.cli.output import Output
from turnlane.client.cli.wording import (
    answer_words,
    brief,
    ending_words,
    moment,
    open_questions,
    question_words,
    retry_words,
    said_words,
    short_id,
)
from turnlane.records.approvals import PendingApproval
from turnlane.records.events import (
    AdmissionEvent,
    AssistantCheckpointEvent,
    AssistantDeltaEvent,
    AttemptResetEvent,
    Event,
    ReasoningDeltaEvent,
    RunOperationEvent,
    RunStateEvent,
    TerminalEvent,
    ToolStatus,
    ToolStatusEvent,
)
from turnlane.records.messages import Message, ToolApprovalResponsePart
from turnlane.records.runs import OperationKind, OperationPhase, RunState

_MARKS = {
    ToolStatus.STARTED: "...",
    ToolStatus.COMPLETED: "done",
    ToolStatus.FAILED: "failed",
    ToolStatus.INTERRUPTED: "interrupted",
}
_COMPACTION = {
    OperationPhase.STARTED: "the older part of the conversation is summed up",
    OperationPhase.COMPLETED: "summed up",
    OperationPhase.FAILED: "it could not be summed up; the answer goes on without",
}


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
        self._questions: dict[str, PendingApproval] = {}
        self._waiting: set[str] = set()
        self._failed: set[str] = set()
        self._is_mid_line = False

    def show(self, event: Event) -> None:
        """Print one event, for people; as a JSON line, for programs."""
        self._out.record(event)
        match event:
            case AdmissionEvent():
                self._admitted(event.input)
            case AssistantDeltaEvent():
                self._delta(event)
            case ReasoningDeltaEvent() if self._show_reasoning:
                self._stream(event.text_delta, "dim italic")
            case ToolStatusEvent():
                self._tool(event)
            case AttemptResetEvent():
                self._reset(event)
            case AssistantCheckpointEvent() if event.message.run_id in (None, event.run_id):
                self._catch_up(event.run_id, event.message.text)
            case RunOperationEvent():
                self._operation(event)
            case RunStateEvent(state=RunState.INTERRUPT_REQUESTED):
                self._line("[asked to stop]", "yellow")
            case TerminalEvent():
                self._end(event)

    def retry(self, entry: Mapping[str, JsonValue]) -> None:
        """Tell what follows a model call that failed, as the ledger has it."""
        self._line(f"[{retry_words(entry)}]", "yellow")

    def _answer(self, run_id: str) -> _Answer:
        return self._answers.setdefault(run_id, _Answer())

    def _admitted(self, said: Message) -> None:
        """An answer to an approval is told to everybody, wherever it was given; what people say, to those who ask."""
        answers = [part for part in said.parts if isinstance(part, ToolApprovalResponsePart)]
        for part in answers:
            self._line(f"[{answer_words(part, self._questions.pop(part.approval_id, None))}]", "cyan")
        if self._show_inputs and not answers:
            self._line(f"> {said_words(said)}", "cyan")

    def _delta(self, event: AssistantDeltaEvent) -> None:
        loose = self._answer(event.run_id).loose
        loose[event.epoch] = loose.get(event.epoch, "") + event.text_delta
        self._stream(event.text_delta)

    def _reset(self, event: AttemptResetEvent) -> None:
        withdrawn = self._answer(event.run_id).loose.pop(event.withdrawn, "")
        if event.run_id not in self._failed:
            self._line(f"[step {event.step + 1} is tried again: its worker was lost]", "yellow")
        elif withdrawn:
            self._line("[what it had begun to say is withdrawn]", "yellow")
        self._failed.discard(event.run_id)

    def _tool(self, event: ToolStatusEvent) -> None:
        self._line(f"[{event.tool_name} {self._tool_words(event)}]", "magenta")

    def _tool_words(self, event: ToolStatusEvent) -> str:
        if event.status is ToolStatus.WAITING:
            self._waiting.add(event.call_id)
            return "waits" if event.until is None else f"waits until {moment(event.until)}"
        if event.status is ToolStatus.STARTED and event.call_id in self._waiting:
            self._waiting.discard(event.call_id)
            return "goes on"
        value = event.input if event.status is ToolStatus.STARTED else event.output
        return f"{_MARKS[event.status]}{'' if value is None else f' {brief(value)}'}"

    def _operation(self, event: RunOperationEvent) -> None:
        kind, phase = event.operation.kind, event.operation.phase
        if kind is OperationKind.MODEL_REQUEST and phase is OperationPhase.FAILED:
            # What follows a failure is told by the ledger, or by the run's end; of a lost worker nobody tells.
            self._failed.add(event.run_id)
        if kind is OperationKind.COMPACTION and phase in _COMPACTION:
            self._line(f"[{_COMPACTION[phase]}]", "dim")

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
        self._failed.discard(event.run_id)
        self._break()
        for question in open_questions(event.message):
            self._questions[question.approval_id] = question
            self._line(f"[{question_words(question)}; approval {short_id(question.approval_id)}]", "bold yellow")
        ending = ending_words(event.reason, event.policy_name, event.failure, event.message)
        if ending is not None:
            self._line(f"[{ending}]", "yellow")

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
