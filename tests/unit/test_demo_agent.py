"""The demo agent: small tools that cannot be turned against a worker, and a model the environment can serve."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from turnlane.activities.prompt_writer import AWAITED_NOTE
from turnlane.agent import AnthropicModel, OpenAIChatModel, OpenAIModel, ScriptedModel, SummaryContext, ToolError
from turnlane.agent.models import Call, Say, ScriptedRequest
from turnlane.agent.tools import ToolReply
from turnlane.client.demo_agent import choose_model, demo_agent, offline_script, offline_summary
from turnlane.client.demo_tools import calculate, current_time, remind, save_note, wait_seconds, word_count
from turnlane.records.durable import Suspension
from turnlane.records.messages import Message, MessageStatus, Role, TextPart, ToolOutcome, ToolResultPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker
from turnlane.testing.durable import Notebook

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("6*7", 42), ("2**10", 1024), (" (1+2)*3.5 ", 10.5), ("-7//2", -4), ("7%4", 3), ("2**-1", 0.5)],
)
def test_arithmetic_is_calculated(expression: str, value: float) -> None:
    assert value == calculate.function(expression=expression)


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("1/0", "DIVISION_BY_ZERO"),
        ("9**9**9", "BAD_EXPRESSION"),
        ("(10**900)*(10**900)", "BAD_EXPRESSION"),
        ("1e308*10", "BAD_EXPRESSION"),
        ("(-8)**0.5", "BAD_EXPRESSION"),
        ("__import__('os').getpid()", "BAD_EXPRESSION"),
        ("'a'*1000000000", "BAD_EXPRESSION"),
        ("(" * 500 + "1" + ")" * 500, "BAD_EXPRESSION"),
        ("1 if 1 else 2", "BAD_EXPRESSION"),
        ("", "BAD_EXPRESSION"),
    ],
)
def test_anything_but_bearable_arithmetic_is_refused(expression: str, code: str) -> None:
    with pytest.raises(ToolError) as refused:
        calculate.function(expression=expression)

    assert code == refused.value.code


def test_the_time_is_told_in_utc_and_an_unknown_zone_refused() -> None:
    told = current_time.function(time_zone="UTC")
    with pytest.raises(ToolError) as refused:
        current_time.function(time_zone="Nowhere/Land")

    assert told["time"].endswith("+00:00")
    assert "UNKNOWN_TIME_ZONE" == refused.value.code


def test_words_are_counted() -> None:
    assert {"words": 3, "characters": 5, "lines": 2} == word_count.function(text="a b\nc")


async def test_waiting_stops_when_it_is_cancelled() -> None:
    waiting = asyncio.create_task(wait_seconds.function(seconds=100))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_wait_without_end_is_refused() -> None:
    with pytest.raises(ToolError) as refused:
        await wait_seconds.function(seconds=float("inf"))

    assert "BAD_DURATION" == refused.value.code


def said(text: str) -> ScriptedRequest:
    message = PromptMessage(speaker=Speaker.USER, parts=(TextPart(text=text),))
    return ScriptedRequest(Prompt(messages=(message,)), "c", "r", 0, 1)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("what is 6*7?", Call("calculate", {"expression": "6*7"})),
        ("the time in Europe/Berlin, please", Call("current_time", {"time_zone": "Europe/Berlin"})),
        ("what day is it", Call("current_time", {})),
        ("wait 10 seconds", Call("wait_seconds", {"seconds": 10.0})),
        ("count the words in: a b c", Call("word_count", {"text": "a b c"})),
        ("note: buy milk", Call("save_note", {"text": "buy milk"})),
        ("Please note down 3 eggs", Call("save_note", {"text": "3 eggs"})),
        ("remind me in 2 minutes to stretch", Call("remind", {"seconds": 120.0, "about": "stretch"})),
        ("remind me after 1.5 seconds", Call("remind", {"seconds": 1.5, "about": "what you wanted"})),
    ],
)
def test_the_script_uses_the_tool_that_was_asked_for(text: str, call: Call) -> None:
    assert call == offline_script(said(text))[-1]


def test_the_script_echoes_and_says_that_it_is_a_script() -> None:
    [answer] = offline_script(said("good morning"))

    assert isinstance(answer, Say)
    assert answer.text.startswith("You said: good morning\nI am an offline script")


def test_the_script_tells_what_a_tool_gave() -> None:
    result = ToolResultPart(call_id="1", tool_name="calculate", outcome=ToolOutcome.SUCCESS, output=42)
    message = PromptMessage(speaker=Speaker.TOOL, parts=(result,))
    [answer] = offline_script(ScriptedRequest(Prompt(messages=(message,)), "c", "r", 1, 1))

    assert isinstance(answer, Say)
    assert "calculate: 42" == answer.text


def test_the_script_tells_what_an_approved_call_gave_behind_other_talk() -> None:
    result = ToolResultPart(call_id="1", tool_name="save_note", outcome=ToolOutcome.SUCCESS, output="saved")
    messages = (
        PromptMessage(speaker=Speaker.TOOL, parts=(result,)),
        PromptMessage(speaker=Speaker.USER, parts=(TextPart(text="hello"),)),
        PromptMessage(speaker=Speaker.ASSISTANT, parts=(TextPart(text="You said: hello"),)),
        PromptMessage(speaker=Speaker.USER, parts=(TextPart(text=AWAITED_NOTE),)),
    )
    [answer] = offline_script(ScriptedRequest(Prompt(messages=messages), "c", "r", 0, 1))

    assert isinstance(answer, Say)
    assert "save_note: saved" == answer.text


async def test_a_reminder_waits_without_a_worker_and_then_tells_what_about() -> None:
    notebook = Notebook()
    waiting = await notebook.call(remind, {"seconds": 60.0, "about": "tea"}, now=AT)
    reply = await notebook.call(remind, {"seconds": 60.0, "about": "tea"}, now=AT + timedelta(seconds=60))

    assert isinstance(waiting, Suspension) and isinstance(reply, ToolReply)
    assert AT + timedelta(seconds=60) == waiting.resume_at
    assert isinstance(reply.output, dict) and "tea" == reply.output["about"]


def test_a_note_is_one_line_and_waits_for_approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_note.function(text="buy\nmilk")
    saved = save_note.function(text="and eggs")

    assert "user-approval" == save_note.approval
    assert "buy milk\nand eggs\n" == (tmp_path / saved["saved"]).read_text()


async def test_without_a_model_a_summary_keeps_what_the_user_said() -> None:
    said_before = Message(
        id="m", conversation_id="c", role=Role.USER, status=MessageStatus.COMMITTED, parts=(TextPart(text="hello"),),
        created_at=AT, updated_at=AT,
    )  # fmt: skip
    first = await offline_summary(SummaryContext(conversation_id="c", run_id=None, messages=(said_before,)))
    second = await offline_summary(SummaryContext(conversation_id="c", run_id=None, messages=(), previous=first))

    assert ["The user said: hello"] == first.facts == second.facts


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({}, ScriptedModel),
        ({"OPENAI_API_KEY": "k"}, OpenAIModel),
        ({"ANTHROPIC_API_KEY": "k"}, AnthropicModel),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, OpenAIChatModel),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "k"}, OpenAIChatModel),
    ],
)
def test_the_model_is_the_one_the_environment_has_a_key_for(env: dict[str, str], kind: type) -> None:
    assert kind is type(choose_model(env))


def test_a_key_never_stands_in_the_agent() -> None:
    agent = demo_agent(choose_model({"OPENAI_API_KEY": "sk-very-secret"}))

    assert "sk-very-secret" not in repr(agent)
