"""The prompt writer: speakers take turns, and results stand directly behind their calls.

Every provider's rules come down to that, so a prompt that the writer made is one that all of them accept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from turnlane.activities.placeholders import Placeholder, answered_call, waiting_call
from turnlane.activities.speaking import prompt_part, spoken
from turnlane.records.messages import (
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolResultPart,
)
from turnlane.records.prompt import PromptMessage, PromptPart, Speaker
from turnlane.store.payloads import HistoryStep

AWAITED_NOTE: Final = "[the awaited result now stands with its call, above]"
"""What a user says when an answer is wanted because a call of an earlier answer now has its result."""

SILENT_NOTE: Final = "[nothing was said here]"
"""What a user says when nothing of what they said could be told, and the assistant spoke last."""

_NOTHING: Final[frozenset[str]] = frozenset()
_OF_CALLS: Final = frozenset({"tool-result", "tool-approval-request", "tool-approval-response"})
"""What the one result of a call stands for."""


@dataclass(slots=True)
class _Turn:
    """A message while it is written."""

    speaker: Speaker
    parts: list[PromptPart]
    record_id: str | None

    def message(self) -> PromptMessage:
        # Made of parts that are valid already: checking them again would be most of a long projection.
        return PromptMessage.model_construct(speaker=self.speaker, parts=tuple(self.parts), record_id=self.record_id)


@dataclass(frozen=True)
class _Slot:
    """Where the result of a call will stand that has a placeholder now."""

    results: list[PromptPart]
    place: int
    call_id: str
    tool_name: str


@dataclass
class PromptWriter:
    """Collects the messages of a prompt, and the system texts beside them. `now` tells what has expired."""

    now: datetime | None = None
    system: list[str] = field(default_factory=list)
    _turns: list[_Turn | PromptMessage] = field(default_factory=list)
    _ids: dict[str, int] = field(default_factory=dict)
    _waiting: dict[str, _Slot] = field(default_factory=dict)
    _asked: dict[str, _Slot] = field(default_factory=dict)
    _is_answered: bool = False
    _paused: tuple[str, HistoryStep] | None = None

    def messages(self) -> tuple[PromptMessage, ...]:
        """What was collected. The model is to speak next, so it ends with what somebody else said.

        Where its provider paused, it ends with what the model said: an adapter sees to it that it may go on.
        """
        if self._paused is None or not self._say(*self._paused, is_paused=True):
            self.yield_floor()
        return tuple(turn if isinstance(turn, PromptMessage) else turn.message() for turn in self._turns)

    def begin(self, messages: Sequence[PromptMessage]) -> None:
        """Begin with messages in which users and the assistant take turns."""
        self._turns = list(messages)

    def yield_floor(self) -> None:
        """See to it that the assistant may speak next: that somebody else spoke last."""
        self._resume()
        if not self._turns or self._turns[-1].speaker is Speaker.ASSISTANT:
            self._note()

    def say(self, message: PromptMessage) -> None:
        """Append a message that is one text, of a user or of the model."""
        self._resume()
        if message.speaker is Speaker.ASSISTANT and self._turns and self._turns[-1].speaker is Speaker.ASSISTANT:
            self._note()
        self._turns.append(message)
        self._is_answered = False

    def user(self, record_id: str, parts: list[PromptPart]) -> None:
        """Append what a user said."""
        self._resume()
        self._turns.append(_Turn(Speaker.USER, parts, record_id))
        self._is_answered = False

    def mark(self, record_id: str, text: str) -> None:
        """Append a mark to what the assistant said."""
        self._resume()
        last = self._turns[-1]
        if isinstance(last, _Turn) and last.speaker is Speaker.ASSISTANT:
            last.parts.append(TextPart(text=text))
        else:
            self._turns.append(_Turn(Speaker.ASSISTANT, [TextPart(text=text)], record_id))

    def step(self, record_id: str, past: HistoryStep, open_call: Placeholder) -> frozenset[str]:
        """Append one step: what the model said, then one result per call in call order.

        `open_call` stands for the result of a call that has none and waits for nobody. Returns the types of
        the parts that are told by what was appended: none if that is nothing.
        """
        self._resume()
        kinds = self._say(record_id, past)
        said = self._turns[-1] if "tool-call" in kinds else None
        if not isinstance(said, _Turn):
            return kinds
        results: list[PromptPart] = []
        self._turns.append(_Turn(Speaker.TOOL, results, record_id))
        self._write_results(said.parts, results, _Answers(past, open_call, self.now))
        return kinds | _OF_CALLS

    def pause(self, record_id: str, past: HistoryStep) -> frozenset[str]:
        """Append the step in which the provider paused: as it is, if nobody speaks behind it. Returns what is told."""
        self._paused = (record_id, past)
        return frozenset(part.type for part in spoken(past.parts, is_paused=True))

    def _resume(self) -> None:
        """Somebody speaks behind a step that was paused: what its provider did not end there goes."""
        if self._paused is not None:
            paused, self._paused = self._paused, None
            self._say(*paused)

    def _say(self, record_id: str, past: HistoryStep, *, is_paused: bool = False) -> frozenset[str]:
        """Append what the model said in a step; the types of its parts."""
        sources = spoken(past.parts, is_paused=is_paused)
        if not sources:
            return _NOTHING
        if self._turns and self._turns[-1].speaker is Speaker.ASSISTANT:
            self._note()
        self._turns.append(_Turn(Speaker.ASSISTANT, [prompt_part(part) for part in sources], record_id))
        self._is_answered = False
        return frozenset(part.type for part in sources)

    def answer(self, response: ToolApprovalResponsePart) -> None:
        """Take an answer to an approval. Its call's result, where there is one, stands behind the call already."""
        self._is_answered = True
        slot = self._asked.pop(response.approval_id, None)
        if slot is not None:
            slot.results[slot.place] = answered_call(response).result(slot.call_id, slot.tool_name)

    def settle(self, result: ToolResultPart) -> None:
        """Put a result that comes later than the step of its call behind that call."""
        self._is_answered = True
        slot = self._waiting.pop(result.call_id, None)
        if slot is not None:
            slot.results[slot.place] = result.model_copy(update={"call_id": slot.call_id})

    def _note(self) -> None:
        """Let somebody speak between two times that the assistant does."""
        self._turns.append(_Turn(Speaker.USER, [TextPart(text=self._note_text())], None))
        self._is_answered = False

    def _note_text(self) -> str:
        return AWAITED_NOTE if self._is_answered else SILENT_NOTE

    def _write_results(self, said: list[PromptPart], results: list[PromptPart], answers: _Answers) -> None:
        """Write the results of the calls in `said`, whose ids are made unique in place."""
        for place, part in enumerate(said):
            if isinstance(part, ToolCallPart):
                call_id = self._unique(part.call_id)
                result, request = answers.take(part, call_id)
                if request is not None:
                    slot = _Slot(results, len(results), call_id, part.tool_name)
                    self._waiting[part.call_id] = self._asked[request.approval_id] = slot
                results.append(result)
                if call_id != part.call_id:
                    said[place] = part.model_copy(update={"call_id": call_id})

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

    def __init__(self, past: HistoryStep, open_call: Placeholder, now: datetime | None) -> None:
        self._results: dict[str, deque[ToolResultPart]] = defaultdict(deque)
        for result in past.results:
            self._results[result.call_id].append(result)
        self._requests, self._responses = _approvals(past)
        self._open_call = open_call
        self._now = now

    def take(self, call: ToolCallPart, call_id: str) -> tuple[ToolResultPart, ToolApprovalRequestPart | None]:
        """Return the call's result under `call_id`, or a placeholder; with it the request that it waits for."""
        results = self._results.get(call.call_id)
        if results:
            result = results.popleft()
            return (result if call_id == result.call_id else result.model_copy(update={"call_id": call_id})), None
        request = self._requests.get(call.call_id)
        if request is None:
            return self._open_call.result(call_id, call.tool_name), None
        response = self._responses.get(request.approval_id)
        if response is None:
            return waiting_call(request, self._now).result(call_id, call.tool_name), request
        stands = self._open_call if response.approved else answered_call(response)
        return stands.result(call_id, call.tool_name), request


def _approvals(
    past: HistoryStep,
) -> tuple[dict[str, ToolApprovalRequestPart], dict[str, ToolApprovalResponsePart]]:
    """The requests of a step by call, and the answers to them that stand beside them by approval."""
    requests: dict[str, ToolApprovalRequestPart] = {}
    responses: dict[str, ToolApprovalResponsePart] = {}
    for part in past.parts:
        if isinstance(part, ToolApprovalRequestPart):
            requests[part.call_id] = part
        elif isinstance(part, ToolApprovalResponsePart):
            responses[part.approval_id] = part
    return requests, responses


def joined(parts: Sequence[object]) -> str:
    """The text of a message that stands as one text: its text parts, line by line."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))
