"""Every fault, at every place of a stream, for every wire protocol, as `docs/faults.md` tells it.

Through the real SDKs and our adapters, one call each. What a run makes of the call follows from it by pure rules.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from turnlane.activities.draft import Draft
from turnlane.activities.finishing import settle_draft
from turnlane.activities.providers.base import (
    Finish,
    ProviderFailure,
    ProviderRequest,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StreamPart,
    TextDelta,
    ToolCall,
)
from turnlane.activities.providers.registry import Providers
from turnlane.agent import Agent, tool
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel
from turnlane.records.messages import RefusalPart, TextPart, ToolResultPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker
from turnlane.records.steps import StepEnd, StepOutcome
from turnlane.testing.fault_plan import (
    BadJson,
    ContentStep,
    CutAfter,
    DataOnly,
    HangUp,
    HttpError,
    Length,
    Pass,
    Reasoning,
    Refusal,
    Step,
    StreamError,
    ToolCalls,
    ToolUse,
    UsageMissing,
)
from turnlane.testing.fault_server import FaultServer
from turnlane.testing.wire import Asked, Wire
from turnlane.testing.wire_anthropic import MessagesWire
from turnlane.testing.wire_chat import ChatWire
from turnlane.testing.wire_responses import ResponsesWire
from turnlane.workflows.ending import step_end

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
KEY_NAME = "MATRIX_TEST_KEY"
WIRES: dict[str, tuple[type[Model], Wire]] = {
    "responses": (OpenAIModel, ResponsesWire()),
    "chat": (OpenAIChatModel, ChatWire()),
    "anthropic": (AnthropicModel, MessagesWire()),
}


class Row(NamedTuple):
    """A row of the table."""

    fault: str
    where: str
    told_as: str
    tried_again: str
    ends: str


def rows() -> Iterator[Row]:
    """The rows of the table in the documentation."""
    for line in re.findall(r"^\| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[1:]:
        fault, where, *told = (cell.strip() for cell in line.split(" | "))
        yield Row(fault, where, *(cell.strip("`") for cell in told))


ROWS = list(rows())

# --- what is played -----------------------------------------------------------------------------

SPOKEN = Pass("aaaabbbbcccc", chunks=3, reasoning=Reasoning("rrrrssss"))
CALLING = ToolCalls([ToolUse("look", {"at": "xxxxyyyyzzzz"})], text="Let me see.")
PLACES: dict[str, tuple[ContentStep, tuple[str, ...]]] = {
    "before a word": (SPOKEN, ("rrrr",)),
    "in the reasoning": (SPOKEN, ("ssss",)),
    "in the text": (SPOKEN, ("cccc",)),
    "in a call": (CALLING, ("zzzz",)),
    "before the end marker": (SPOKEN, ('"message_delta"', '"response.completed"', '"finish_reason":"stop"')),
}
"""For each place a complete answer, and what the event holds before which it goes wrong."""


def place(where: str, wire: Wire) -> tuple[ContentStep, int]:
    """An answer, and the number of its event at this place."""
    content, marks = PLACES[where]
    asked = Asked(1, {}, {"model": "m", "include": ["reasoning.encrypted_content"], "stream": True})
    events = [event.data for event in wire.events(content.content(), asked)]
    return content, next(at for at, data in enumerate(events) if any(mark in data for mark in marks))


def drops(where: str, wire: Wire) -> Step:
    content, at = place(where, wire)
    return CutAfter(events=at, of=content)


def ends_early(where: str, wire: Wire) -> Step:
    content, at = place(where, wire)
    return CutAfter(events=at, of=content, clean=True)


def garbled(where: str, wire: Wire) -> Step:
    content, at = place(where, wire)
    return BadJson(of=content, at=at)


def fails(code: str) -> Callable[[str, Wire], Step]:
    def failing(where: str, wire: Wire) -> Step:
        content, at = place(where, wire)
        return StreamError(code, after=at, of=content)

    return failing


def limited(where: str, wire: Wire) -> Step:
    match where:
        case "in the reasoning":
            return Length(reasoning="rrrrssss")
        case "in the text":
            return Length("as far as")
        case _:
            return Length(calls=[ToolUse("look", {"at": "one"}), ToolUse("look", {"at": "two"})])


FAULTS: dict[str, Step | Callable[[str, Wire], Step]] = {
    "status 429, account exhausted": HttpError(429, code="insufficient_quota"),
    "status 400, prompt too long": HttpError(400, body={"error": {"message": "prompt is too long: 9 tokens"}}),
    "hangs up": HangUp(),
    "connection drops": drops,
    "ends too early": ends_early,
    "error event: overloaded": fails("overloaded_error"),
    "error event: rate limit": fails("rate_limit_error"),
    "error event: bad request": fails("invalid_request_error"),
    "garbled event": garbled,
    "output limit": limited,
    "refusal in words": Refusal("I would rather not."),
    "content filter": Refusal(),
    "says nothing": Pass(""),
    "no usage figures": UsageMissing(Pass("hello")),
    "no `event:` lines": DataOnly(Pass("hello")),
}


def played(row: Row, wire: Wire) -> Step:
    """What the server does for a row."""
    status = re.fullmatch(r"status (\d+)", row.fault)
    if status is not None:
        return HttpError(int(status[1]))
    fault = FAULTS[row.fault]
    return fault(row.where, wire) if callable(fault) else fault


# --- what becomes of it -------------------------------------------------------------------------


@tool(read_only=True)
def look(at: str) -> str:
    """Look."""
    return at


@pytest.fixture
async def providers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Providers]:
    monkeypatch.setenv(KEY_NAME, "sk-matrix-test")
    opened = Providers()
    yield opened
    await opened.aclose()


def gathered(draft: Draft, part: StreamPart) -> None:
    """What a step does with a part of a stream."""
    match part:
        case TextDelta(text):
            draft.text(text)
        case ReasoningStart():
            draft.reasoning_start()
        case ReasoningDelta(text):
            draft.reasoning(text)
        case ReasoningEnd(provider):
            draft.reasoning_end(provider)
        case ToolCall():
            draft.call(part)


async def outcome(providers: Providers, model: Model, draft: Draft) -> StepOutcome:
    """Make one call and say how its step ends."""
    said = PromptMessage(speaker=Speaker.USER, parts=(TextPart(text="hi"),))
    prompt = Prompt(messages=(said,), tools=(look.spec,))
    request = ProviderRequest(model, prompt, conversation_id="c", run_id="r", step=0, attempt=1)
    try:
        async for part in providers.of(model).stream(request):
            gathered(draft, part)
            if isinstance(part, Finish):
                failure = settle_draft(draft, part, model.provider)
                return StepOutcome(end=StepEnd.FINISHED, attempt=1, finish=part.reason, failure=failure)
    except ProviderFailure as error:
        return StepOutcome(end=StepEnd.FAILED, attempt=1, failure=error.failure)
    raise AssertionError("a stream ends with a finish or a failure")


@pytest.mark.parametrize("wire_name", list(WIRES))
@pytest.mark.parametrize("row", ROWS, ids=[f"{row.fault} {row.where}" for row in ROWS])
async def test_a_fault_ends_as_the_documentation_tells(providers: Providers, row: Row, wire_name: str) -> None:
    kind, wire = WIRES[wire_name]
    async with FaultServer([played(row, wire)]) as server:
        base_url = server.anthropic_url if kind is AnthropicModel else server.openai_url
        extra = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if kind is AnthropicModel else {}
        model = kind(name="test-model", base_url=base_url, api_key_env=KEY_NAME, extra=extra)
        draft = Draft(Agent(name="a", model=model, tools=[look]))
        found = await outcome(providers, model, draft)

        assert ([], 1) == (server.refusals, len(server.requests))

    told_as = found.failure.failure_class.value if found.failure else "none"
    again = "yes" if found.failure is not None and found.failure.retryable else "no"
    assert row == Row(row.fault, row.where, told_as, again, step_end(found).reason.value)
    _check_parts(found, draft)


def _check_parts(found: StepOutcome, draft: Draft) -> None:
    """An answer that is not whole runs none of its calls, and one that was refused has said nothing."""
    if found.end is not StepEnd.FINISHED or found.failure is None:
        return
    assert all(isinstance(call.result, ToolResultPart) for call in draft.calls)
    if found.failure.failure_class.value == "refused":
        assert [RefusalPart] == [type(part) for part in draft.parts()]
    else:
        assert not any(isinstance(part, RefusalPart) for part in draft.parts())
