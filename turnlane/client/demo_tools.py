"""The tools of the demo agent: small and real. One waits for approval, one survives its worker."""

from __future__ import annotations

import ast
import asyncio
import operator
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from turnlane.agent import ToolContext, ToolError, tool

MAX_DIGITS = 1000
LONGEST_WAIT = 120.0
LONGEST_REMINDER = 7 * 24 * 3600.0
NOTES = "turnlane-notes.txt"
"""Where notes are kept, in the folder in which the worker was started."""


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


@tool(durable=True)
async def remind(ctx: ToolContext, seconds: float, about: str) -> dict[str, str]:
    """Come back with a reminder after a while, of up to a week. No worker is held meanwhile, and any may go on."""
    if not 0 <= seconds <= LONGEST_REMINDER:
        raise ToolError("BAD_DURATION", f"the time is 0 to {LONGEST_REMINDER:.0f} seconds")
    asked = await ctx.step("asked", _now)
    await ctx.sleep(seconds)
    return {"about": about, "asked": asked, "now": _now()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@tool(approval="user-approval")
def save_note(text: str) -> dict[str, str]:
    """Write a line into the file of notes. The user is asked before."""
    # One line in one write, so that notes of several workers do not run into each other.
    with Path(NOTES).open("a", encoding="utf-8") as notes:
        notes.write(" ".join(text.split()) + "\n")
    return {"saved": NOTES}


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
