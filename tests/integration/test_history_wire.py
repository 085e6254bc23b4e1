"""What the next request says of what came before, through a lane, with the real SDKs over a strict provider.

The server refuses whatever the strictest provider would, so each of these conversations goes on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import until_answered
from tests.integration.stage import BOUND
from tests.integration.talks import KEY_NAME, Talk, Talks
from tests.integration.wire_reading import results, said
from turnlane.activities.projection import FAILED_MARKER, INTERRUPTED_MARKER
from turnlane.agent import FileBytes, HistoryOptions, OwnProjection, ToolContext, tool
from turnlane.agent.models import AnthropicModel, Model, OpenAIModel
from turnlane.records.messages import FilePart, InputPart, Message, TextPart, ToolOutcome, ToolResultPart
from turnlane.records.prompt import PromptMessage, Speaker
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.testing.fault_plan import Gate, Pass, Reasoning, Step, StreamError, ToolCalls, ToolUse

pytestmark = pytest.mark.server

THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


Open = Callable[..., Any]


@pytest.fixture
async def talk(bench: Bench, serve: Serve, conversation: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    """Open a conversation whose model answers by a plan."""
    monkeypatch.setenv(KEY_NAME, "sk-history-test")
    async with AsyncExitStack() as stack:
        talks = Talks(bench, serve, conversation, stack)

        async def opened(
            kind: type[Model], *plan: Step, tools: Sequence[Any] = (), extra: dict[str, Any] | None = None, **agent: Any
        ) -> Talk:
            options = {"checkpoint_every": 1, **agent}
            return await talks.open(kind, *plan, tools=tools, agent=options, extra=extra or {})

        yield opened


@dataclass
class Digging:
    """A tool that does not end by itself, beside one that does at once; both count."""

    begun: asyncio.Event
    done: asyncio.Event
    stamped: int = 0

    @property
    def tools(self) -> list[Any]:
        @tool
        async def dig(context: ToolContext) -> str:
            """Dig for a long time."""
            self.begun.set()
            await asyncio.Event().wait()
            return "never"

        @tool
        def stamp() -> str:
            """Leave a mark."""
            self.stamped += 1
            self.done.set()
            return "stamped"

        return [dig, stamp]


@pytest.fixture
def digging() -> Digging:
    return Digging(asyncio.Event(), asyncio.Event())


# --- interrupted in the middle ---------------------------------------------------------------------


async def test_an_interrupted_call_has_one_result_that_says_so_directly_behind_it(
    talk: Open, kind: type[Model], digging: Digging
) -> None:
    opened = await talk(kind, ToolCalls([ToolUse("dig")]), Pass("ok"), Pass("still ok"), tools=digging.tools)
    first = asyncio.create_task(opened.turn("dig"))
    await asyncio.wait_for(digging.begun.wait(), BOUND)
    second = await opened.turn("hi", policy="interrupt")
    third = await opened.turn("and?")
    ended = await first

    assert TerminalReason.INTERRUPTED == ended.reason
    assert [TerminalReason.SUCCESS] * 2 == [second.reason, third.reason]
    user, call, result, marker, hi = said(opened.bodies[1])
    assert [("user", "dig"), ("assistant", "?"), ("assistant", INTERRUPTED_MARKER), ("user", "hi")] == [
        user,
        call,
        marker,
        hi,
    ]
    assert "INTERRUPTED" in result[1] and "effects are unknown" in result[1]
    assert said(opened.bodies[1]) == said(opened.bodies[2])[:5]


async def test_an_interrupted_call_is_flagged_as_an_error_where_the_protocol_has_that(
    talk: Open, digging: Digging
) -> None:
    opened = await talk(AnthropicModel, ToolCalls([ToolUse("dig")]), Pass("ok"), tools=digging.tools)
    first = asyncio.create_task(opened.turn("dig"))
    await asyncio.wait_for(digging.begun.wait(), BOUND)
    await opened.turn("hi", policy="interrupt")
    await first
    _, assistant, behind, *_ = opened.bodies[1]["messages"]

    assert ["tool_use"] == [block["type"] for block in assistant["content"]]
    assert True is behind["content"][0]["is_error"]


async def test_a_finished_neighbour_of_an_interrupted_call_keeps_its_result_and_is_not_run_again(
    talk: Open, kind: type[Model], digging: Digging, conversation: str
) -> None:
    calls = ToolCalls([ToolUse("stamp"), ToolUse("dig")])
    opened = await talk(kind, calls, Pass("ok"), tools=digging.tools)
    first = asyncio.create_task(opened.turn("both"))
    await asyncio.wait_for(digging.begun.wait(), BOUND)
    await asyncio.wait_for(digging.done.wait(), BOUND)
    await until_answered(opened.client, conversation, "stamped")
    await opened.turn("hi", policy="interrupt")
    await first
    stamped, cut = results(opened.bodies[1])

    assert (1, "!stamped") == (digging.stamped, stamped)
    assert "INTERRUPTED" in cut


async def test_thinking_that_was_cut_is_not_sent_and_the_conversation_goes_on(talk: Open) -> None:
    gate = Gate(of=Pass("so", reasoning=Reasoning("let me think of it", chunks=2)), after=3)
    opened = await talk(AnthropicModel, gate, Pass("ok"), extra=THINKING)
    first = asyncio.create_task(opened.turn("think"))
    await asyncio.wait_for(gate.reached.wait(), BOUND)
    second = await opened.turn("hi", policy="interrupt")
    ended = await first

    assert (TerminalReason.INTERRUPTED, TerminalReason.SUCCESS) == (ended.reason, second.reason)
    assert [("user", "think"), ("user", "hi")] == said(opened.bodies[1])


@pytest.mark.parametrize(
    ("options", "heard"),
    [(HistoryOptions(), ["~", "?", "?"]), (HistoryOptions(interrupted_assistant="omit"), [])],
    ids=["kept", "left out"],
)
async def test_reasoning_and_the_calls_that_it_led_to_are_kept_or_left_out_together(
    talk: Open, digging: Digging, options: HistoryOptions, heard: list[str]
) -> None:
    calls = ToolCalls([ToolUse("stamp"), ToolUse("dig")], reasoning="hm")
    opened = await talk(OpenAIModel, calls, Pass("ok"), tools=digging.tools, history=options)
    first = asyncio.create_task(opened.turn("both"))
    await asyncio.wait_for(digging.begun.wait(), BOUND)
    await opened.turn("hi", policy="interrupt")
    await first

    assert heard == [text for who, text in said(opened.bodies[1]) if who == "assistant"][:3]


async def test_what_was_thought_between_calls_goes_back_between_them(talk: Open) -> None:
    @tool
    async def note() -> str:
        return "noted"

    calls = ToolCalls([ToolUse("note"), ToolUse("note")], reasoning="hm", text="Two notes.", between="and")
    opened = await talk(AnthropicModel, calls, Pass("Done."), Pass("ok"), tools=[note], extra=THINKING)
    await opened.turn("go")
    await opened.turn("hi")

    kinds = ["thinking", "text", "tool_use", "thinking", "tool_use"]
    for body in opened.bodies[1:]:
        answer = body["messages"][1]["content"]
        assert (kinds, ["hm", "and"]) == (
            [block["type"] for block in answer],
            [block["thinking"] for block in answer if block["type"] == "thinking"],
        )


# --- tried again -----------------------------------------------------------------------------------


async def test_what_a_new_try_says_stands_behind_the_results_and_not_in_the_same_message(
    talk: Open, kind: type[Model], digging: Digging
) -> None:
    cut = StreamError(
        "overloaded_error" if kind is AnthropicModel else "server_error", after=2, of=Pass("half", chunks=2)
    )
    plan = (ToolCalls([ToolUse("stamp")], text="First."), cut, Pass("Done."), Pass("ok"))
    opened = await talk(kind, *plan, tools=digging.tools)
    result = await opened.turn("go")
    await opened.turn("hi")

    assert TerminalReason.SUCCESS == result.reason
    assert [
        ("user", "go"),
        ("assistant", "First."),
        ("assistant", "?"),
        ("tool", "!stamped"),
        ("assistant", "Done."),
        ("user", "hi"),
    ] == said(opened.bodies[-1])


# --- text that nobody can store, and none at all ----------------------------------------------------


async def test_what_cannot_be_stored_is_cleaned_once_and_the_conversation_goes_on(
    talk: Open, kind: type[Model]
) -> None:
    @tool
    def odd() -> str:
        """Say something odd."""
        return "a\ud83db\x00"

    opened = await talk(kind, ToolCalls([ToolUse("odd")]), Pass("ok"), Pass("ok"), tools=[odd])
    first = await opened.turn("go")
    second = await opened.turn("hi")

    assert [TerminalReason.SUCCESS] * 2 == [first.reason, second.reason]
    assert ["!a\ufffdb\ufffd"] == results(opened.bodies[2])


async def test_a_tool_that_says_nothing_is_told_as_one_that_did(talk: Open, kind: type[Model]) -> None:
    @tool
    def mute() -> str:
        """Say nothing."""
        return ""

    opened = await talk(kind, ToolCalls([ToolUse("mute")]), Pass("ok"), tools=[mute])
    await opened.turn("go")

    assert ["!(no output)"] == results(opened.bodies[1])


# --- the application's say -------------------------------------------------------------------------

FILE: list[InputPart] = [TextPart(text="see"), FilePart(media_type="image/png", reference="s3://bucket/secret.png")]


async def test_a_file_is_had_from_the_application_and_its_reference_stays_here(talk: Open, kind: type[Model]) -> None:
    async def fetch(part: FilePart, message: Message) -> FileBytes:
        return FileBytes(b"hi")

    opened = await talk(kind, Pass("a picture"), history=HistoryOptions(resolve_file=fetch))
    result = await opened.turn(FILE)
    body = json.dumps(opened.bodies[0])

    assert TerminalReason.SUCCESS == result.reason
    assert ("aGk=" in body, "secret.png" in body) == (True, False)


def broken(part: FilePart, message: Message) -> FileBytes:
    raise RuntimeError("no such bucket")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (HistoryOptions(resolve_file=broken), "RESOLVE_FILE_FAILED"),
        (HistoryOptions(unresolved_file="error"), "FILE_UNRESOLVED"),
    ],
)
async def test_a_file_that_cannot_be_had_is_the_applications_failure_and_names_the_message(
    talk: Open, options: HistoryOptions, code: str
) -> None:
    opened = await talk(AnthropicModel, Pass("never"), history=options)
    result = await opened.turn(FILE)

    assert (TerminalReason.RUNTIME_FAILURE, []) == (result.reason, opened.bodies)
    assert result.run is not None and result.run.failure is not None
    failure = result.run.failure
    assert (FailureClass.APPLICATION, code) == (failure.failure_class, failure.code)
    assert result.run.input_message_ids[0] == failure.record_id


async def test_an_own_projection_that_no_provider_would_take_is_stopped_here(talk: Open) -> None:
    def blank(messages: Sequence[Message]) -> OwnProjection:
        message = PromptMessage(speaker=Speaker.USER, parts=(TextPart(text=" "),), record_id=messages[-1].id)
        return OwnProjection(messages=[message])

    opened = await talk(AnthropicModel, Pass("never"), history=HistoryOptions(project=blank))
    result = await opened.turn("hi")

    assert (TerminalReason.RUNTIME_FAILURE, []) == (result.reason, opened.bodies)
    assert result.run is not None and result.run.failure is not None
    assert "ILLEGAL_PROMPT" == result.run.failure.code
    assert result.run.input_message_ids[0] == result.run.failure.record_id


async def test_a_failed_answer_is_heard_with_its_mark_where_the_agent_says_so(talk: Open) -> None:
    plan = (StreamError("invalid_request_error", after=4, of=Pass("half", chunks=2)), Pass("ok"))
    opened = await talk(AnthropicModel, *plan, history=HistoryOptions(failed_assistant="marked"))
    first = await opened.turn("go")
    await opened.turn("hi")
    (go, half, marker, hi) = said(opened.bodies[1])

    assert TerminalReason.PROVIDER_FAILURE == first.reason
    assert [("user", "go"), ("assistant", FAILED_MARKER), ("user", "hi")] == [go, marker, hi]
    assert ("assistant", "ha") == half


async def test_the_outcome_of_a_call_is_stored_as_the_model_was_told(
    talk: Open, digging: Digging, bench: Bench, conversation: str
) -> None:
    opened = await talk(AnthropicModel, ToolCalls([ToolUse("dig")]), Pass("ok"), tools=digging.tools)
    first = asyncio.create_task(opened.turn("dig"))
    await asyncio.wait_for(digging.begun.wait(), BOUND)
    await opened.turn("hi", policy="interrupt")
    await first
    snapshot = await bench.store.load_snapshot(conversation)
    outcomes = [
        part.outcome for message in snapshot.messages for part in message.parts if isinstance(part, ToolResultPart)
    ]

    assert [ToolOutcome.INTERRUPTED] == outcomes
