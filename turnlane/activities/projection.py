"""The projection: what of a conversation's history reaches the model, and in which order.

Pure: the same history gives the same prompt, so a retried step asks the same question again. What the model
is to hear is the agent's to say (`HistoryOptions`); that a provider will accept it is the writer's to see to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from turnlane.activities.attachments import Resolved, attached
from turnlane.activities.beginnings import NOTHING, Beginning
from turnlane.activities.chronology import START
from turnlane.activities.failing import ApplicationFailedError
from turnlane.activities.placeholders import CUT_CALL, LIVE_CALL, UNUSED_CALL
from turnlane.activities.plain import TEXT, plain_message
from turnlane.activities.prompt_writer import PromptWriter, joined
from turnlane.activities.record_order import in_order
from turnlane.activities.rounds import calls_in, joined_steps, rounds_of
from turnlane.agent.history import HistoryOptions
from turnlane.records.lane import Taken
from turnlane.records.messages import (
    FilePart,
    MessageStatus,
    Part,
    Role,
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    is_speakable,
)
from turnlane.records.prompt import Prompt, PromptMessage, PromptPart, Speaker, ToolSpec
from turnlane.store.payloads import HistoryMessage, HistoryStep

INTERRUPTED_MARKER: Final = "[interrupted: this turn was cut off before it finished]"
FAILED_MARKER: Final = "[failed: this turn did not complete successfully]"
INTERRUPTED_NOTE: Final = "[interrupted] partial response: "

LEADING_ASSISTANT: Final = "LEADING_ASSISTANT"
INCOMPLETE_TOOL_TURN: Final = "INCOMPLETE_TOOL_TURN"

_MARKERS: Final[Mapping[MessageStatus, str]] = {
    MessageStatus.INTERRUPTED: INTERRUPTED_MARKER,
    MessageStatus.FAILED: FAILED_MARKER,
}
_ALL_WELL: Final = HistoryOptions()
_NOTHING: Final[frozenset[str]] = frozenset()


class Verdict(StrEnum):
    """What became of a record, and why. Only `PROJECTED` records are heard."""

    PROJECTED = "projected"
    SUPERSEDED = "superseded"
    UNFINISHED = "draft-or-failed"
    LEADING_ASSISTANT = "leading-assistant"
    INTERRUPTED = "interrupted"
    INCOMPLETE = "incomplete-tool-turn"
    EMPTY = "empty"
    APPROVAL_ANSWER = "approval-answer"


class Decision(NamedTuple):
    """What the projection did with one record: `projected`, or omitted for `reason`.

    `omitted_parts` are the types of a projected record's parts that nothing in the prompt stands for.
    """

    message_id: str
    projected: bool
    reason: Verdict
    omitted_parts: tuple[str, ...] = ()


def project(
    history: Sequence[HistoryMessage],
    *,
    taken: Sequence[Taken],
    instructions: str,
    tools: Sequence[ToolSpec],
    step: int,
    options: HistoryOptions = _ALL_WELL,
    resolved: Resolved | None = None,
    now: datetime | None = None,
    told: Beginning = NOTHING,
) -> Prompt:
    """Return the prompt for step `step` of the run whose assistant message is still streaming.

    `resolved` is what the application said of files, `now` the time that approvals expire by. `told` is what the
    history begins with, where that is known; nothing was taken in it. Raises ApplicationFailedError, with the
    record's id, for a history that the options refuse.
    """
    walk = _walked(history, taken, step, options, resolved, now, told)
    return walk.prompt(instructions, tools)


def project_with_decisions(
    history: Sequence[HistoryMessage],
    *,
    taken: Sequence[Taken],
    instructions: str,
    tools: Sequence[ToolSpec],
    step: int,
    options: HistoryOptions = _ALL_WELL,
    resolved: Resolved | None = None,
    now: datetime | None = None,
) -> tuple[Prompt, tuple[Decision, ...]]:
    """Return the prompt as `project` does, and one decision per record of `history`, in its order."""
    walk = _walked(history, taken, step, options, resolved, now)
    return walk.prompt(instructions, tools), tuple(walk.decision(item) for item in history)


def _walked(
    history: Sequence[HistoryMessage],
    taken: Sequence[Taken],
    step: int,
    options: HistoryOptions,
    resolved: Resolved | None,
    now: datetime | None,
    told: Beginning = NOTHING,
) -> _Walk:
    rest = history[len(told.records) :]
    walk = _Walk(options, resolved or {}, _own_approvals(rest), PromptWriter(now))
    if told.records:
        walk.begin(told)
    for item, own in in_order(rest, taken, step):
        walk.take(item, own)
    return walk


def _own_approvals(history: Sequence[HistoryMessage]) -> frozenset[tuple[str, str]]:
    """The approvals that our own answers asked for. Looked up only where an answer to one is in the history."""
    if all(item.message.role is not Role.TOOL for item in history):
        return frozenset()
    return frozenset(
        (item.message.conversation_id, part.approval_id)
        for item in history
        for past in item.steps
        for part in past.parts
        if isinstance(part, ToolApprovalRequestPart)
    )


class _Walk:
    """One pass over the records of a history."""

    def __init__(
        self,
        options: HistoryOptions,
        resolved: Resolved,
        own_approvals: frozenset[tuple[str, str]],
        writer: PromptWriter,
    ) -> None:
        self.writer = writer
        self._options = options
        self._resolved = resolved
        self._own_approvals = own_approvals
        self._verdicts: dict[str, Verdict] = {}
        self._told: dict[str, frozenset[str]] = {}
        self._conversation: str | None = None
        self._user_spoke = False
        self._is_compacted = False
        self._chronology = START

    def begin(self, told: Beginning) -> None:
        """Take the plain records that the history begins with, without decisions on each."""
        self._conversation = told.records[0].message.conversation_id
        self._hear_user()
        self.writer.begin(told.messages)

    def take(self, item: HistoryMessage, own: Sequence[HistoryStep] | None) -> None:
        """Take the next record; `own` are the steps to show of the run's own answer."""
        message = item.message
        if message.conversation_id != self._conversation:
            self._conversation, self._user_spoke, self._is_compacted = message.conversation_id, False, False
            self._chronology = START
        plain = plain_message(item) if own is None else None
        if plain is not None:
            verdict = self._plain(item, plain)
        else:
            verdict = self._settled(item) if own is None else self._own(item, own)
        if self._verdicts.get(message.id) is not Verdict.PROJECTED:
            self._verdicts[message.id] = verdict

    def prompt(self, instructions: str, tools: Sequence[ToolSpec]) -> Prompt:
        """The prompt of all records, once they were taken."""
        carried = tuple(self.writer.system)
        system = (instructions, *carried) if instructions.strip() else carried
        return Prompt(system=system, messages=self.writer.messages(), tools=tuple(tools))

    def decision(self, item: HistoryMessage) -> Decision:
        """What became of a record, once all were taken."""
        message_id = item.message.id
        reason = self._verdicts[message_id]
        if reason is not Verdict.PROJECTED:
            return Decision(message_id, False, reason)
        told = self._told[message_id]
        kinds = dict.fromkeys(part.type for part in _parts(item))
        return Decision(message_id, True, reason, tuple(kind for kind in kinds if kind not in told))

    def _heard(self, item: HistoryMessage, told: frozenset[str]) -> Verdict:
        """Note what stands for a record; nothing does for an empty one."""
        if not told:
            return Verdict.EMPTY
        before = self._told.get(item.message.id)
        self._told[item.message.id] = told if before is None else before | told
        return Verdict.PROJECTED

    def _own(self, item: HistoryMessage, steps: Sequence[HistoryStep]) -> Verdict:
        """Write finished steps of the run's own answer."""
        if not steps:
            return Verdict.EMPTY
        if (refused := self._leads(item)) is not None:
            return refused
        self.writer.yield_floor()
        return self._heard(item, self._steps(item, steps, is_live=True))

    def _plain(self, item: HistoryMessage, plain: PromptMessage) -> Verdict:
        """Write a plain record: of the questions that a settled one is asked, only one can matter to it."""
        if plain.speaker is Speaker.USER:
            self._hear_user()
        elif (refused := self._leads(item)) is not None:
            return refused
        self.writer.say(plain)
        return self._heard(item, TEXT)

    def _settled(self, item: HistoryMessage) -> Verdict:
        """Write one settled record. The order of the questions is that of the rules: the first that matters decides."""
        message = item.message
        if not is_speakable(message.status, self._options.failed_assistant):
            return Verdict.SUPERSEDED if message.status is MessageStatus.SUPERSEDED else Verdict.UNFINISHED
        if message.role is Role.USER:
            return self._user(item)
        if message.role in (Role.SYSTEM, Role.SUMMARY):
            return self._carried(item)
        if (refused := self._leads(item)) is not None:
            return refused
        if message.role is Role.TOOL:
            return self._answers(item)
        return self._assistant(item)

    def _hear_user(self) -> None:
        self._chronology = self._chronology.after_user()
        self._user_spoke = True

    def _user(self, item: HistoryMessage) -> Verdict:
        self._hear_user()
        message = item.message
        said: list[PromptPart] = []
        told: set[str] = set()
        if (text := joined(message.parts)).strip():
            said.append(TextPart(text=text))
            told.add("text")
        for place, part in enumerate(message.parts):
            if isinstance(part, FilePart):
                file = attached(message, place, self._resolved, self._options)
                if file is not None:
                    said.append(file)
                    told.add("file")
        if said:
            self.writer.user(message.id, said)
        return self._heard(item, frozenset(told))

    def _carried(self, item: HistoryMessage) -> Verdict:
        """System and summary text goes to the instructions' channel: a provider wants it nowhere else."""
        self._is_compacted = self._is_compacted or item.message.role is Role.SUMMARY
        text = joined(item.message.parts)
        if not text.strip():
            return Verdict.EMPTY
        self.writer.system.append(text)
        return self._heard(item, frozenset({"text"}))

    def _leads(self, item: HistoryMessage) -> Verdict | None:
        """What becomes of a record that no user's came before; None if it may be told."""
        if self._user_spoke or self._options.leading_assistant == "allow":
            return None
        if self._options.leading_assistant == "error":
            raise ApplicationFailedError(LEADING_ASSISTANT, record_id=item.message.id)
        return Verdict.LEADING_ASSISTANT

    def _assistant(self, item: HistoryMessage) -> Verdict:
        form = self._options.interrupted_assistant
        if item.message.status is MessageStatus.INTERRUPTED and form != "marker":
            return Verdict.INTERRUPTED if form == "omit" else self._noted(item)
        if not item.steps:
            return self._imported(item)
        return self._heard(item, self._marked(item, self._steps(item, item.steps)))

    def _noted(self, item: HistoryMessage) -> Verdict:
        """What an interrupted answer had said, as one line among the instructions."""
        text = " ".join(joined(_parts(item)).split())
        if not text:
            return Verdict.EMPTY
        self.writer.system.append(f"{INTERRUPTED_NOTE}{text}")
        return self._heard(item, frozenset({"text", "control"}))

    def _steps(self, item: HistoryMessage, steps: Iterable[HistoryStep], *, is_live: bool = False) -> frozenset[str]:
        is_whole = item.message.status not in _MARKERS
        open_call = LIVE_CALL if is_live else UNUSED_CALL if is_whole else CUT_CALL
        told = _NOTHING
        for past in joined_steps(steps):
            if is_live and not calls_in(past):
                told |= self.writer.pause(item.message.id, past)
            else:
                told |= self.writer.step(item.message.id, past, open_call)
        return told

    def _marked(self, item: HistoryMessage, told: frozenset[str]) -> frozenset[str]:
        """Mark what was told of an answer that did not end well: by its status, whatever its parts say."""
        marker = _MARKERS.get(item.message.status)
        if marker is None or not told:
            return told
        self.writer.mark(item.message.id, marker)
        return told | {"control"}

    def _answers(self, item: HistoryMessage) -> Verdict:
        """Take a record of the tool role. Our own answer approvals; what the model hears is the result at the call."""
        parts, conversation = item.message.parts, item.message.conversation_id
        answers = [part for part in parts if isinstance(part, ToolApprovalResponsePart)]
        if not answers or len(answers) < len(parts):
            return self._imported(item)
        # The calls of answers before a summary are summed up with their results.
        if not self._is_compacted and any(
            (conversation, part.approval_id) not in self._own_approvals for part in answers
        ):
            return self._imported(item)
        for part in answers:
            self.writer.answer(part)
        return Verdict.APPROVAL_ANSWER

    def _imported(self, item: HistoryMessage) -> Verdict:
        """Write a record that came whole, if its calls and results fit to each other and to what was before."""
        after = self._chronology.advanced(item.message.parts)
        if after is None and self._options.incomplete_tool_turn == "error":
            raise ApplicationFailedError(INCOMPLETE_TOOL_TURN, record_id=item.message.id)
        if after is None:
            return Verdict.INCOMPLETE
        self._chronology = after
        told = _NOTHING
        for past in rounds_of(item.message.parts):
            told |= self._round(item, past)
        return self._heard(item, self._marked(item, told))

    def _round(self, item: HistoryMessage, past: HistoryStep) -> frozenset[str]:
        told = self._steps(item, (past,))
        calls = {part.call_id for part in calls_in(past)}
        asked = {part.approval_id for part in past.parts if isinstance(part, ToolApprovalRequestPart)}
        for part in past.parts:
            if isinstance(part, ToolApprovalResponsePart) and part.approval_id not in asked:
                self.writer.answer(part)
                told |= {part.type}
        for result in past.results:
            if result.call_id not in calls:
                self.writer.settle(result)
                told |= {result.type}
        return told


def _parts(item: HistoryMessage) -> Sequence[Part]:
    """All parts of a record."""
    return item.message.parts or [part for past in item.steps for part in (*past.parts, *past.results)]
