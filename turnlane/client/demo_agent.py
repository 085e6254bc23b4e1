"""The agent of `turnlane dev` when none is named: small real tools, and the model the environment has a key for."""

from __future__ import annotations

import ast
import asyncio
import operator
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from turnlane.agent import Agent, AnthropicModel, Model, OpenAIChatModel, OpenAIModel, ScriptedModel, ToolError, tool
from turnlane.agent.models import Action, Call, Say, ScriptedRequest
from turnlane.records.base import canonical_json
from turnlane.records.messages import TextPart, ToolResultPart
from turnlane.records.prompt import PromptMessage, Speaker

INSTRUCTIONS = (
    "You are the demonstration agent of turnlane, durable conversations on Temporal. Answer briefly. "
    "Use your tools for arithmetic, the time, counting words and waiting."
)
MAX_DIGITS = 1000
LONGEST_WAIT = 120.0
LONGEST_QUESTION = 1000


@tool(read_only=True)
def current_time(time_zone: str = "UTC") -> dict[str, str]:
    """The date and time now, in a time zone such as Europe/Berlin."""
    try:
        # UTC needs no time zone database, which a small system may lack.
        now = datetime.now(UTC if time_zone.upper() == "UTC" else ZoneInfo(time_zone))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ToolError("UNKNOWN_TIME_ZONE", "no such time zone", hint="Use a name such as Europe/Berlin.") from error
    return {"time": now.isoformat(timespec="seconds"), "weekday": now.strftime("%A")}


@tool(read_only=True)
def calculate(expression: str) -> int | float:
    """The value of an arithmetic expression: numbers, + - * / // % ** and brackets."""
    try:
        return _bounded(_value(ast.parse(expression.strip(), mode="eval").body))
    except ZeroDivisionError as error:
        raise ToolError("DIVISION_BY_ZERO", "the expression divides by zero") from error
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise ToolError("BAD_EXPRESSION", "not an arithmetic expression of a bearable size") from error


@tool(read_only=True)
def word_count(text: str) -> dict[str, int]:
    """How many words, characters and lines a text has."""
    return {"words": len(text.split()), "characters": len(text), "lines": len(text.splitlines())}


@tool(read_only=True)
async def wait_seconds(seconds: float) -> dict[str, float]:
    """Wait for up to 120 seconds. An interrupted answer stops the waiting at once."""
    if not 0 <= seconds <= LONGEST_WAIT:
        raise ToolError("BAD_DURATION", f"the wait is 0 to {LONGEST_WAIT:.0f} seconds")
    await asyncio.sleep(seconds)
    return {"waited": seconds}


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def _value(node: ast.expr) -> int | float:
    """Evaluate a syntax tree of arithmetic and nothing else: no names, no calls, no attributes."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _bounded(_UNARY[type(sign)](_value(operand)))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _bounded(_BINARY[type(sign)](_value(left), _value(right)))
        case _:
            raise ValueError("not arithmetic")


def _power(base: float, exponent: float) -> Any:
    """Refuse a power whose result would not fit, before a worker spends minutes on it."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_DIGITS * 4:
        raise OverflowError("the result is too large")
    return base**exponent


def _bounded(number: Any) -> int | float:
    if isinstance(number, int) and number.bit_length() <= MAX_DIGITS * 4:
        return number
    if isinstance(number, float) and abs(number) != float("inf") and number == number:
        return number
    raise ValueError("not a number of a bearable size")


_ARITHMETIC = re.compile(r"[-+(]*\d[\d\s.+\-*/%()]*[-+*/%][\d\s.+\-*/%()]*\d\)*")
_TIME = re.compile(r"\btime\b|\bdate\b|\bday is it\b", re.IGNORECASE)
_ZONE = re.compile(r"\b[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+\b")
_WAIT = re.compile(r"\bwait\b\D*(\d+(?:\.\d+)?)", re.IGNORECASE)
_COUNT = re.compile(r"\bcount\b.*?\bwords?\b(?:\s+(?:in|of))?:?\s*(.*)", re.IGNORECASE | re.DOTALL)


def offline_script(request: ScriptedRequest) -> list[Action]:
    """Play a model without one: call the tool that the last message asks for, tell what it gave, else echo."""
    messages = request.prompt.messages
    if not messages:
        return [Say("There is nothing to answer yet.")]
    last = messages[-1]
    if last.speaker is Speaker.TOOL:
        return [Say(_told(last), chunk=6, delay=0.02)]
    text = "\n".join(part.text for part in last.parts if isinstance(part, TextPart)).strip()
    call = _wanted_call(text)
    return [Say("Let me see. ", chunk=6, delay=0.02), call] if call else [Say(_echo(text), chunk=6, delay=0.02)]


def _wanted_call(text: str) -> Call | None:
    text = text[:LONGEST_QUESTION]
    if found := _COUNT.search(text):
        return Call("word_count", {"text": found[1]})
    if found := _WAIT.search(text):
        return Call("wait_seconds", {"seconds": float(found[1])})
    if found := _ARITHMETIC.search(text):
        return Call("calculate", {"expression": found[0].strip()})
    if _TIME.search(text):
        zone = _ZONE.search(text)
        return Call("current_time", {"time_zone": zone[0]} if zone else {})
    return None


def _told(results: PromptMessage) -> str:
    told = [
        f"{part.tool_name}: {part.output if isinstance(part.output, str) else canonical_json(part.output)}"
        for part in results.parts
        if isinstance(part, ToolResultPart)
    ]
    return "; ".join(told) or "The tool gave no result."


def _echo(text: str) -> str:
    return (
        f"You said: {text}\nI am an offline script, not a model. Ask me to calculate 6*7, for the time in "
        "Europe/Berlin, to count the words of something, or to wait 10 seconds; or start with OPENAI_API_KEY or "
        "ANTHROPIC_API_KEY set to talk to a model."
    )


def choose_model(env: Mapping[str, str] = os.environ) -> Model:
    """Pick a model by what the environment has: an OpenAI-compatible server, OpenAI, Anthropic, else the script.

    `TURNLANE_MODEL` names another model of the provider chosen.
    """
    name = env.get("TURNLANE_MODEL")
    if env.get("OPENAI_BASE_URL"):
        key = "OPENAI_API_KEY" if env.get("OPENAI_API_KEY") else None
        return OpenAIChatModel(name=name or "default", base_url=env["OPENAI_BASE_URL"], api_key_env=key)
    if env.get("OPENAI_API_KEY"):
        return OpenAIModel(name=name or "gpt-5-mini")
    if env.get("ANTHROPIC_API_KEY"):
        return AnthropicModel(name=name or "claude-sonnet-4-5")
    return ScriptedModel(name="offline-script", script=offline_script)


def demo_agent(model: Model | None = None) -> Agent:
    """Make the demo agent, with the model the environment has a key for unless one is given."""
    return Agent(
        name="demo",
        model=model or choose_model(),
        instructions=INSTRUCTIONS,
        tools=(current_time, calculate, word_count, wait_seconds),
    )
