"""Compaction as an application sets it up: what it refuses, what a lane is told, what a summariser is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from turnlane.agent import Agent, Compaction, CompactionState, ConversationSummary, ScriptedModel, SummaryContext
from turnlane.agent.compaction import INSTRUCTIONS_VERSION, render_summary
from turnlane.agent.transcript import transcript, transcripts
from turnlane.records.lane import CompactionFacts
from turnlane.records.messages import (
    FilePart,
    Message,
    MessageStatus,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def message(role: Role, *parts: Part) -> Message:
    status = MessageStatus.COMPLETED if role is Role.ASSISTANT else MessageStatus.COMMITTED
    return Message(id="m", conversation_id="c", role=role, status=status, parts=parts, created_at=NOW, updated_at=NOW)


@pytest.mark.parametrize(
    "options",
    [
        {"keep_recent_turns": 0},
        {"max_attempts": 0},
        {"seconds": 0},
        {"characters_per_call": 0},
        {"tokens": 0},
        {"turns": 0},
    ],
    ids=str,
)
def test_figures_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|positive"):
        Compaction(**options)


@pytest.mark.parametrize("keep", [1.5, "2", True, None])
def test_turns_to_keep_are_a_whole_number(keep: Any) -> None:
    with pytest.raises(TypeError):
        Compaction(keep_recent_turns=keep)


@pytest.mark.parametrize(
    ("options", "automatic"),
    [({}, False), ({"tokens": 1}, True), ({"turns": 1}, True), ({"threshold": lambda state: False}, True)],
    ids=["nothing", "tokens", "turns", "threshold"],
)
def test_a_lane_compacts_by_itself_where_something_says_when(options: dict[str, Any], automatic: bool) -> None:
    agent = Agent(name="a", model=ScriptedModel(script=lambda request: ()), compaction=Compaction(**options))

    assert CompactionFacts(automatic=automatic, max_attempts=3, seconds=300.0) == agent.facts.compaction


def test_a_lane_of_an_agent_without_compaction_is_told_of_none() -> None:
    assert None is Agent(name="a", model=ScriptedModel(script=lambda request: ())).facts.compaction


def test_tokens_are_those_reported_or_else_estimated() -> None:
    counted = CompactionState(conversation_id="c", messages=(), turns=0, characters=400, last_input_tokens=7)
    unknown = CompactionState(conversation_id="c", messages=(), turns=0, characters=400)

    assert (7, 100) == (counted.tokens, unknown.tokens)


def test_a_summary_reads_as_paragraphs_without_what_is_empty() -> None:
    summary = ConversationSummary(goal="To know.", facts=["one", "two"])

    expected = "Summary of the earlier conversation:\n\nGoal: To know.\n\nFacts:\n- one\n- two"
    assert expected == render_summary(summary)


@pytest.mark.parametrize(
    ("options", "version"),
    [({}, INSTRUCTIONS_VERSION), ({"instructions": "Be brief."}, None), ({"summarize": object()}, None)],
    ids=["ours", "theirs", "no model"],
)
def test_only_our_own_instructions_have_a_version(options: dict[str, Any], version: int | None) -> None:
    assert version == Compaction(**options).instructions_version


TALK = [
    message(Role.USER, TextPart(text="Look at this."), FilePart(media_type="image/png", reference="s3://secret/key")),
    message(
        Role.ASSISTANT,
        ReasoningPart(text="hidden thought"),
        ToolCallPart(call_id="c1", tool_name="look", input={"at": "it"}),
        ToolResultPart(call_id="c1", tool_name="look", outcome=ToolOutcome.ERROR, output={"error": "DARK"}),
        TextPart(text="Too dark."),
    ),
]


def test_a_transcript_tells_words_calls_and_results_but_no_thoughts_and_no_references() -> None:
    expected = (
        "User:\nLook at this.\n[file: image/png]\n\n"
        'Assistant:\n[called look with {"at":"it"}]\n[look answered (error): {"error":"DARK"}]\nToo dark.'
    )
    assert expected == transcript(TALK)
    assert expected == SummaryContext(conversation_id="c", run_id=None, messages=tuple(TALK)).transcript


def test_a_long_output_shows_its_beginning_and_its_end() -> None:
    output = "a" * 5000 + "z" * 5000
    result = ToolResultPart(call_id="c", tool_name="look", outcome=ToolOutcome.SUCCESS, output=output)
    text = transcript([message(Role.ASSISTANT, result)])

    assert len(text) < 4200
    assert ("6000 characters left out" in text, text.endswith("zzz]")) == (True, True)


def test_pieces_of_a_transcript_hold_whole_messages_and_together_all_of_them() -> None:
    talk = [message(Role.USER, TextPart(text=f"{number} " + "x" * 50)) for number in range(5)]
    pieces = list(transcripts(talk, 130))

    assert [2, 2, 1] == [piece.count("User:") for piece in pieces]
    assert transcript(talk) == "\n\n".join(pieces)


def test_a_message_longer_than_a_piece_is_continued_in_the_next() -> None:
    talk = [message(Role.USER, TextPart(text="x" * 12)), message(Role.USER, TextPart(text="y"))]

    assert ["User:\nxxxx", "User, continued:\nxxxxxxxx", "User:\ny"] == list(transcripts(talk, 10))


def test_what_says_nothing_is_no_transcript() -> None:
    silent = [message(Role.ASSISTANT, ReasoningPart(text="hm")), message(Role.USER, TextPart(text="  "))]

    assert ([], "") == (list(transcripts(silent, 10)), transcript(silent))
