"""The draft: stream parts of one attempt, gathered into the parts of a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from turnlane.activities.catalog_step import DeferredCalls
from turnlane.activities.coded import coded
from turnlane.activities.providers.base import Opaque, Source, ToolCall
from turnlane.agent.agent import Agent
from turnlane.agent.tools import Tool
from turnlane.records.approvals import CallOrigin
from turnlane.records.base import Json, ProviderEnvelope, clean_json, clean_text
from turnlane.records.calls import CallRef
from turnlane.records.messages import (
    FilePart,
    Part,
    ProviderPart,
    ReasoningPart,
    RefusalPart,
    SourcePart,
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.store.payloads import NewCall

TOOL_SLACK_SECONDS = 30.0
UNKNOWN_TOOL = "unknown"
CALL_ID_BYTES = 200


@dataclass
class _Text:
    pieces: list[str] = field(default_factory=list)

    def part(self) -> Part:
        return TextPart(text="".join(self.pieces))


@dataclass
class _Reasoning:
    pieces: list[str] = field(default_factory=list)
    provider: ProviderEnvelope | None = None

    def part(self) -> Part:
        return ReasoningPart(text="".join(self.pieces), provider=self.provider)


@dataclass(frozen=True)
class _Whole:
    whole: Part

    def part(self) -> Part:
        return self.whole


class Draft:
    """What the model has said so far in this attempt.

    Adjacent text merges into one part; reasoning is a part of its own from its start to its end; a tool
    call that cannot run (an unknown tool, arguments that are no object, one too many) gets its error
    result here, so the model is told and the loop goes on. `active` names the tools on offer, None for all.
    With `deferred`, a call of a tool of the catalog that is not on offer becomes a search for it.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._entries: list[_Text | _Reasoning | _Whole] = []
        self._ids: set[str] = set()
        self.active: frozenset[str] | None = None
        self.calls: list[NewCall] = []
        self.deferred: DeferredCalls | None = None

    def text(self, delta: str) -> str:
        """Append text; returns it cleaned."""
        clean = clean_text(delta)
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, _Text):
            last = _Text()
            self._entries.append(last)
        last.pieces.append(clean)
        return clean

    def reasoning_start(self) -> None:
        """Open a reasoning part."""
        self._entries.append(_Reasoning())

    def reasoning(self, delta: str) -> str:
        """Append to the open reasoning part; returns the text cleaned."""
        clean = clean_text(delta)
        self._open_reasoning().pieces.append(clean)
        return clean

    def reasoning_end(self, provider: ProviderEnvelope | None) -> None:
        """Close the reasoning part with what must go back to its provider."""
        if provider is not None:
            self._open_reasoning().provider = provider

    def _open_reasoning(self) -> _Reasoning:
        last = self._entries[-1] if self._entries else None
        if isinstance(last, _Reasoning):
            return last
        opened = _Reasoning()
        self._entries.append(opened)
        return opened

    def source(self, source: Source) -> None:
        """Record a source."""
        self._entries.append(_Whole(SourcePart(source_id=source.source_id, url=source.url, title=source.title)))

    def file(self, part: FilePart) -> None:
        """Record a file the model made."""
        self._entries.append(_Whole(part))

    def opaque(self, opaque: Opaque) -> None:
        """Record provider output that only its provider understands."""
        self._entries.append(_Whole(ProviderPart(envelope=opaque.envelope)))

    def call(self, call: ToolCall) -> None:
        """Record a tool call."""
        call = call if self.deferred is None else self.deferred.rewritten(call)
        call_id = self._unique(call.call_id)
        arguments, is_object = _parsed(call.arguments)
        name = clean_text(call.name)[:256] or UNKNOWN_TOOL
        part = ToolCallPart(call_id=call_id, tool_name=name, input=arguments, provider=call.provider)
        self._entries.append(_Whole(part))
        problem = self._problem(name, is_object)
        result = None if problem is None else _refused(part, *problem)
        self.calls.append(NewCall(slot=len(self.calls) + 1, call_id=call_id, tool_name=name[:128], result=result))

    def _unique(self, call_id: str) -> str:
        """Some servers use one id twice in a step; results are matched by id, so each call has its own."""
        given = clean_text(call_id).encode()[:CALL_ID_BYTES].decode(errors="ignore") or f"call_{len(self.calls)}"
        unique, n = given, 2
        while unique in self._ids:
            unique, n = f"{given}~{n}", n + 1
        self._ids.add(unique)
        return unique

    def _problem(self, name: str, is_object: bool) -> tuple[str, str] | None:
        if len(self.calls) >= self._agent.limits.tool_calls_per_step:
            return "TOO_MANY_CALLS", f"one step runs at most {self._agent.limits.tool_calls_per_step} calls"
        if self._tool(name) is None:
            return "UNKNOWN_TOOL", "there is no tool of this name"
        if self.active is not None and name not in self.active:
            return "INACTIVE_TOOL", "this tool is not on offer in this step"
        if not is_object:
            return "VALIDATION_ERROR", "the arguments are not a JSON object"
        return None

    def withhold_calls(self, code: str, message: str) -> None:
        """Give every call the error result of one that will not run, whatever else was wrong with it."""
        parts = {part.call_id: part for part in self.parts() if isinstance(part, ToolCallPart)}
        self.calls = [
            call.model_copy(update={"result": _refused(parts[call.call_id], code, message)}) for call in self.calls
        ]

    def refuse(self, category: str | None) -> None:
        """Turn what was said into a refusal: people may read it, no model is shown it again."""
        said = "".join(piece for entry in self._entries if isinstance(entry, _Text) for piece in entry.pieces)
        kept = [entry for entry in self._entries if not isinstance(entry, _Text)]
        self._entries = [*kept, _Whole(RefusalPart(text=said, category=category))]

    def _tool(self, name: str) -> Tool | None:
        """The tool of this name, if the run has it: an agent may have several sets of tools."""
        return self._agent.tool(name) if self.deferred is None or name in self.deferred.known else None

    def ask(self, call: NewCall, request: ToolApprovalRequestPart) -> None:
        """Record that a call waits for somebody's approval."""
        self._entries.append(_Whole(request))
        asked = {"approval_id": request.approval_id, "approval_expires_at": request.expires_at}
        self._replace(call, call.model_copy(update=asked))

    def decide(
        self,
        call: NewCall,
        request: ToolApprovalRequestPart,
        response: ToolApprovalResponsePart,
        result: ToolResultPart | None,
    ) -> None:
        """Record how the agent's rules decided a call; one that they denied has its result."""
        self._entries += [_Whole(request), _Whole(response)]
        self._replace(call, call.model_copy(update={"result": result}))

    def _replace(self, call: NewCall, replacement: NewCall) -> None:
        self.calls[self.calls.index(call)] = replacement

    def parts(self) -> tuple[Part, ...]:
        """Everything so far, as message parts."""
        return tuple(entry.part() for entry in self._entries)

    def call_refs(self) -> tuple[CallRef, ...]:
        """The calls as the lane needs them. Those over the limit have their results: it need not hear of them."""
        return tuple(self._ref(call) for call in self.calls[: self._agent.limits.tool_calls_per_step])

    def _ref(self, call: NewCall) -> CallRef:
        tool = self._agent.tool(call.tool_name)
        if call.result is not None or tool is None:
            # The name of a tool that does not exist is the model's own words, and those stay out of histories.
            name = call.tool_name if tool is not None else UNKNOWN_TOOL
            return CallRef(call_id=call.call_id, tool_name=name, slot=call.slot, refused=True)
        return call_ref(tool, call.call_id, call.slot, is_awaiting=call.approval_id is not None)


def call_ref(
    tool: Tool, call_id: str, slot: int, origin: CallOrigin | None = None, *, is_awaiting: bool = False
) -> CallRef:
    """A call that can run, as its lane needs it."""
    return CallRef(
        call_id=call_id,
        tool_name=tool.name,
        slot=slot,
        max_attempts=tool.max_attempts,
        seconds=tool.timeout + TOOL_SLACK_SECONDS,
        awaiting=is_awaiting,
        origin=origin,
    )


def _no_constants(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_decode: Callable[[str], object] = json.JSONDecoder(parse_constant=_no_constants).decode


def _parsed(arguments: str) -> tuple[Json, bool]:
    """The arguments as an object, or the raw text if they are none."""
    if not arguments.strip():
        return {}, True
    try:
        value = _decode(arguments)
    except (ValueError, RecursionError):
        return clean_text(arguments), False
    if not isinstance(value, dict):
        return clean_text(arguments), False
    cleaned: Json = clean_json(value)
    return cleaned, True


def _refused(call: ToolCallPart, code: str, message: str) -> ToolResultPart:
    return ToolResultPart(
        call_id=call.call_id,
        tool_name=call.tool_name,
        outcome=ToolOutcome.ERROR,
        output=coded(code, message),
    )
