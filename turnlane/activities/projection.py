"""The projection: what of a conversation's history reaches the model, and in which order.

Pure: the same history gives the same prompt, so a retried step asks the same question again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from turnlane.activities.providers.wording import attachment_note
from turnlane.agent.history import FileUrl, resolve_reference
from turnlane.records.base import Json
from turnlane.records.lane import Taken
from turnlane.records.messages import (
    SPEAKABLE,
    FilePart,
    MessageStatus,
    Part,
    ProviderPart,
    ReasoningPart,
    Role,
    TextPart,
    ToolApprovalRequestPart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.prompt import Prompt, PromptFile, PromptMessage, PromptPart, Speaker, ToolSpec
from turnlane.store.protocol import HistoryMessage, HistoryStep

INTERRUPTED_MARKER: Final = "[interrupted: this answer was stopped here and is not complete]"


class Verdict(StrEnum):
    """What became of a record, and why. Only `PROJECTED` records are heard."""

    PROJECTED = "projected"
    SUPERSEDED = "superseded"
    UNFINISHED = "draft-or-failed"
    LEADING_ASSISTANT = "leading-assistant"
    EMPTY = "empty"
    APPROVAL_ANSWER = "approval-answer"


class Decision(NamedTuple):
    """What the projection did with one record: `projected`, or omitted for `reason`."""

    message_id: str
    projected: bool
    reason: Verdict


def project(
    history: Sequence[HistoryMessage],
    *,
    taken: Sequence[Taken],
    instructions: str,
    tools: Sequence[ToolSpec],
    step: int,
) -> Prompt:
    """Return the prompt for step `step` of the run whose assistant message is still streaming."""
    prompt, _ = project_with_decisions(history, taken=taken, instructions=instructions, tools=tools, step=step)
    return prompt


def project_with_decisions(
    history: Sequence[HistoryMessage],
    *,
    taken: Sequence[Taken],
    instructions: str,
    tools: Sequence[ToolSpec],
    step: int,
) -> tuple[Prompt, tuple[Decision, ...]]:
    """Return the prompt and one decision per record of `history`, in its order."""
    draft_id = _live_draft(history)
    steps_taken = {item.input_id: item.step for item in taken} if draft_id is not None else {}
    injected = _injected_by_step(history, steps_taken, step)
    writer = _Writer()
    verdicts: dict[str, Verdict] = {}
    for item in history:
        message = item.message
        if message.id == draft_id:
            verdicts[message.id] = _write_draft(writer, item, injected, step, verdicts)
        elif message.id not in steps_taken:
            verdicts[message.id] = _write_record(writer, item)
    system = (instructions, *writer.system) if instructions.strip() else tuple(writer.system)
    prompt = Prompt(system=system, messages=writer.messages(), tools=tuple(tools))
    return prompt, tuple(_decision(item.message.id, verdicts) for item in history)


def _decision(message_id: str, verdicts: dict[str, Verdict]) -> Decision:
    reason = verdicts[message_id]
    return Decision(message_id, reason is Verdict.PROJECTED, reason)


def _live_draft(history: Sequence[HistoryMessage]) -> str | None:
    """The id of the run's own assistant message: a conversation has one live run, so one live draft."""
    for item in reversed(history):
        if item.message.role is Role.ASSISTANT and item.message.status is MessageStatus.STREAMING:
            return item.message.id
    return None


def _injected_by_step(
    history: Sequence[HistoryMessage], steps_taken: dict[str, int], step: int
) -> dict[int, list[HistoryMessage]]:
    """The injected inputs by the step that took them; one taken later than `step` joins `step`."""
    injected: dict[int, list[HistoryMessage]] = defaultdict(list)
    by_id = {item.message.id: item for item in history} if steps_taken else {}
    for input_id, joined in steps_taken.items():
        if input_id in by_id:
            injected[min(joined, step)].append(by_id[input_id])
    return injected


def _write_draft(
    writer: _Writer,
    item: HistoryMessage,
    injected: dict[int, list[HistoryMessage]],
    step: int,
    verdicts: dict[str, Verdict],
) -> Verdict:
    """Write the run's own finished steps, each after the inputs that it took, then what `step` itself takes."""
    finished = {past.step: past for past in _steps(item) if past.step < step}
    verdict = Verdict.EMPTY
    for number in sorted(finished.keys() | injected.keys()):
        for record in injected.get(number, ()):
            verdicts[record.message.id] = _write_record(writer, record)
        if number in finished and not writer.begun:
            verdict = Verdict.LEADING_ASSISTANT
        elif number in finished and writer.step(finished[number], _LIVE_CALL):
            verdict = Verdict.PROJECTED
    return verdict


def _write_record(writer: _Writer, item: HistoryMessage) -> Verdict:
    """Write one settled record, and say what became of it."""
    message = item.message
    if message.status not in SPEAKABLE:
        return Verdict.SUPERSEDED if message.status is MessageStatus.SUPERSEDED else Verdict.UNFINISHED
    if message.role is Role.USER:
        return writer.user(message.parts)
    if message.role in (Role.SYSTEM, Role.SUMMARY):
        return writer.carry(message.parts)
    if message.role is Role.TOOL:
        # An answer releases a call; what the model hears is the result, which stands behind the call.
        return Verdict.APPROVAL_ANSWER
    return _write_assistant(writer, item)


def _write_assistant(writer: _Writer, item: HistoryMessage) -> Verdict:
    if not writer.begun:
        return Verdict.LEADING_ASSISTANT
    is_interrupted = item.message.status is MessageStatus.INTERRUPTED
    open_call = _CUT_CALL if is_interrupted else _UNUSED_CALL
    written = [writer.step(past, open_call) for past in _steps(item)]
    if not any(written):
        return Verdict.EMPTY
    if is_interrupted:
        writer.say(Speaker.ASSISTANT, [TextPart(text=INTERRUPTED_MARKER)])
    return Verdict.PROJECTED


def _steps(item: HistoryMessage) -> Sequence[HistoryStep]:
    """The message's steps; a message that came without any (an import) is divided after its results."""
    return item.steps or _divided(item.message.parts)


def _divided(parts: Sequence[Part]) -> list[HistoryStep]:
    rounds: list[tuple[list[Part], list[ToolResultPart]]] = []
    for part in parts:
        if isinstance(part, ToolResultPart):
            if rounds:
                rounds[-1][1].append(part)
        elif not rounds or rounds[-1][1]:
            rounds.append(([part], []))
        else:
            rounds[-1][0].append(part)
    return [
        HistoryStep(step=number, parts=tuple(said), results=tuple(results), open_calls=())
        for number, (said, results) in enumerate(rounds)
    ]


class _Placeholder(NamedTuple):
    """What the model is told about a call that has no result."""

    outcome: ToolOutcome
    output: Json


_CUT_CALL: Final = _Placeholder(
    ToolOutcome.ERROR,
    {"code": "INTERRUPTED", "message": "interrupted; effects possible: the call may have done part of its work"},
)
_LIVE_CALL: Final = _Placeholder(
    ToolOutcome.ERROR, {"code": "NO_RESULT", "message": "no result was recorded; effects possible"}
)
_UNUSED_CALL: Final = _Placeholder(
    ToolOutcome.ERROR, {"code": "NOT_RUN", "message": "not run: the answer ended before its tool calls were run"}
)
_WAITING_CALL: Final = _Placeholder(ToolOutcome.SUCCESS, {"status": "waiting for approval"})


@dataclass
class _Writer:
    """Collects the prompt: speakers alternate, and results stand directly behind their calls."""

    system: list[str] = field(default_factory=list)
    begun: bool = False
    _turns: list[tuple[Speaker, list[PromptPart]]] = field(default_factory=list)
    _ids: dict[str, int] = field(default_factory=dict)

    def messages(self) -> tuple[PromptMessage, ...]:
        """What was collected, as prompt messages."""
        # Made of parts that are valid already: checking them again would be most of a long projection.
        return tuple(
            PromptMessage.model_construct(speaker=speaker, parts=tuple(parts)) for speaker, parts in self._turns
        )

    def say(self, speaker: Speaker, parts: list[PromptPart]) -> None:
        """Append a message; what the assistant says twice in a row is one message."""
        if speaker is Speaker.ASSISTANT and self._turns and self._turns[-1][0] is speaker:
            self._turns[-1][1].extend(parts)
        else:
            self._turns.append((speaker, parts))

    def user(self, parts: Iterable[Part]) -> Verdict:
        """Append a user message: its text as one part, then its files."""
        files: list[PromptPart] = [_attached(part) for part in parts if isinstance(part, FilePart)]
        text = _joined(parts)
        said = [TextPart(text=text), *files] if text.strip() else files
        if not said:
            return Verdict.EMPTY
        self.begun = True
        self.say(Speaker.USER, said)
        return Verdict.PROJECTED

    def carry(self, parts: Iterable[Part]) -> Verdict:
        """Append system or summary text to the instructions' channel."""
        text = _joined(parts)
        if not text.strip():
            return Verdict.EMPTY
        self.system.append(text)
        return Verdict.PROJECTED

    def step(self, past: HistoryStep, open_call: _Placeholder) -> bool:
        """Append one step: what the model said, then one result per call in call order. False if it was empty."""
        said = _spoken(past.parts)
        if not said:
            return False
        calls = any(isinstance(part, ToolCallPart) for part in said)
        results = self._answered(said, _Answers(past, open_call)) if calls else []
        self.say(Speaker.ASSISTANT, said)
        if results:
            self.say(Speaker.TOOL, results)
        return True

    def _answered(self, said: list[PromptPart], answers: _Answers) -> list[PromptPart]:
        """The results of the calls in `said`, whose ids are made unique in place."""
        results: list[PromptPart] = []
        for place, part in enumerate(said):
            if isinstance(part, ToolCallPart):
                call_id = self._unique(part.call_id)
                results.append(answers.take(part, call_id))
                if call_id != part.call_id:
                    said[place] = part.model_copy(update={"call_id": call_id})
        return results

    def _unique(self, call_id: str) -> str:
        """Return the id, or a variant if an earlier call of the prompt has it: providers want ids unique."""
        candidate = call_id
        while candidate in self._ids:
            self._ids[call_id] += 1
            candidate = f"{call_id}_{self._ids[call_id]}"
        self._ids[candidate] = 1
        return candidate


class _Answers:
    """The results of one step, to be taken call by call."""

    def __init__(self, past: HistoryStep, open_call: _Placeholder) -> None:
        self._results: dict[str, deque[ToolResultPart]] = defaultdict(deque)
        for result in past.results:
            self._results[result.call_id].append(result)
        self._waiting = {part.call_id for part in past.parts if isinstance(part, ToolApprovalRequestPart)}
        self._open_call = open_call

    def take(self, call: ToolCallPart, call_id: str) -> ToolResultPart:
        """Return the call's result under `call_id`, or the placeholder for a call that has none."""
        results = self._results.get(call.call_id)
        if not results:
            outcome, output = _WAITING_CALL if call.call_id in self._waiting else self._open_call
            return ToolResultPart(call_id=call_id, tool_name=call.tool_name, outcome=outcome, output=output)
        result = results.popleft()
        return result if call_id == result.call_id else result.model_copy(update={"call_id": call_id})


def _attached(part: FilePart) -> PromptPart:
    url = resolve_reference(part)
    if isinstance(url, FileUrl):
        return PromptFile(media_type=part.media_type, filename=part.filename, url=url.url)
    return TextPart(text=attachment_note(part.media_type, part.filename))


def _joined(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _spoken(parts: Sequence[Part]) -> list[PromptPart]:
    """The parts of a step that a provider may be sent again.

    Text behind a call moves before the first one, because results must follow calls directly; reasoning
    stays before the call it led to. Reasoning that nothing follows was cut short: providers refuse it.
    """
    said: list[PromptPart] = []
    first_call: int | None = None
    for part in parts:
        spoken = _sendable(part)
        if spoken is None:
            continue
        if first_call is not None and isinstance(spoken, TextPart):
            said.insert(first_call, spoken)
            first_call += 1
            continue
        if first_call is None and isinstance(spoken, ToolCallPart):
            first_call = len(said)
        said.append(spoken)
    while said and isinstance(said[-1], ReasoningPart):
        said.pop()
    return said


def _sendable(part: Part) -> PromptPart | None:
    """The part as a provider may see it: no blank text, and no reasoning without its provider's envelope.

    Opaque provider output travels as reasoning without text: an adapter sends its own back as it stands.
    """
    if isinstance(part, TextPart):
        return part if part.text.strip() else None
    if isinstance(part, ReasoningPart):
        return part if part.provider is not None else None
    if isinstance(part, ProviderPart):
        return ReasoningPart(text="", provider=part.envelope)
    return part if isinstance(part, ToolCallPart) else None
