"""Calling a tool: whatever it does, the call ends in a reply the model may see."""

import asyncio
import json
import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import BaseModel, SecretStr, field_validator

from turnlane.agent.tools import (
    Cancellation,
    ToolContext,
    ToolError,
    tool,
)
from turnlane.records.messages import ToolOutcome


class City(BaseModel):
    name: str
    country: str = "FR"


class Login(BaseModel):
    password: str

    @field_validator("password")
    @classmethod
    def _long(cls, value: str) -> str:
        if len(value) < 100:
            raise ValueError(f"password {value} is short")
        return value


@dataclass
class Measure:
    at: datetime
    celsius: float


def context(**given: Any) -> ToolContext:
    facts: dict[str, Any] = {"conversation_id": "c", "run_id": "r", "step_number": 0, "call_id": "call-1", "agent": "a"}
    return ToolContext(**(facts | given))


def error_of(output: Any) -> dict[str, Any]:
    assert isinstance(output, dict)
    return output


@pytest.mark.parametrize("arguments", ["text", ["a"], None, 3, True])
async def test_arguments_that_are_not_an_object_are_a_validation_error(arguments: Any) -> None:
    @tool
    def never() -> None:
        raise AssertionError

    reply = await never.invoke(context(), arguments)

    assert (ToolOutcome.ERROR, "VALIDATION_ERROR") == (reply.outcome, reply.code)


async def test_a_misfit_names_path_and_type_of_each_field() -> None:
    @tool
    def visit(cities: list[City], days: int) -> None:
        raise AssertionError

    reply = await visit.invoke(context(), {"cities": [{"country": "FR"}], "days": "many", "extra": 1})

    fields = error_of(reply.output)["details"]["fields"]
    assert [("cities.0.name", "missing"), ("days", "int_parsing"), ("extra", "extra_forbidden")] == [
        (field["path"], field["type"]) for field in fields
    ]
    assert reply.output == {
        "error": "VALIDATION_ERROR",
        "retryable": False,
        "details": {"message": "the arguments do not fit the tool's parameters", "fields": fields},
    }


async def test_a_misfit_never_quotes_the_value() -> None:
    @tool
    def sign_in(login: Login, kind: Literal["a"], key: SecretStr) -> None:
        raise AssertionError

    reply = await sign_in.invoke(context(), {"login": {"password": "hunter2"}, "kind": "hunter2", "key": ["hunter2"]})

    assert "hunter2" not in json.dumps(reply.output)


async def test_a_flood_of_misfits_is_bounded() -> None:
    @tool
    def many(numbers: list[int]) -> None:
        raise AssertionError

    reply = await many.invoke(context(), {"numbers": ["x"] * 1000})

    assert 20 == len(error_of(reply.output)["details"]["fields"])


async def test_a_not_a_number_argument_is_a_validation_error() -> None:
    @tool
    def take(number: float) -> float:
        return number

    reply = await take.invoke(context(), json.loads('{"number": NaN}'))

    assert "VALIDATION_ERROR" == reply.code


async def test_a_tool_error_is_told_with_code_details_and_hint() -> None:
    @tool
    async def book() -> None:
        raise ToolError("SOLD_OUT", "no seats", retryable=True, details={"left": 0, "hint": "x"}, hint="try tomorrow")

    reply = await book.invoke(context(), {})

    assert (ToolOutcome.ERROR, "SOLD_OUT") == (reply.outcome, reply.code)
    assert reply.output == {
        "error": "SOLD_OUT",
        "retryable": True,
        "details": {"message": "no seats", "left": 0, "hint": "x"},
        "_hint": "try tomorrow",
    }


async def test_details_that_are_not_json_are_left_out() -> None:
    @tool
    def book() -> None:
        raise ToolError("SOLD_OUT", "no seats", details={"raw": b"\xff"})  # type: ignore[dict-item]

    reply = await book.invoke(context(), {})

    assert {"message": "no seats"} == error_of(reply.output)["details"]


def test_an_error_code_is_a_plain_word() -> None:
    with pytest.raises(ValueError, match="error code"):
        ToolError("not a code", "x")


@pytest.mark.parametrize("error", [RuntimeError("secret"), SystemExit("secret"), StopIteration("secret")])
@pytest.mark.parametrize("threaded", [True, False])
async def test_any_other_exception_is_an_internal_error_without_its_text(
    error: BaseException, threaded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    causes: list[BaseException] = []
    failing = tool(name="failing")(fail if threaded else fail_async)
    with caplog.at_level(logging.DEBUG):
        reply = await asyncio.wait_for(failing.invoke(context(), {}, on_error=causes.append), 5)

    assert reply.output == {
        "error": "INTERNAL_ERROR",
        "retryable": False,
        "details": {"message": "Tool execution failed"},
    }
    assert error in (causes[0], causes[0].__cause__)
    assert "secret" not in caplog.text and type(causes[0]).__qualname__ in caplog.text


async def test_cancelling_an_async_tool_is_not_swallowed_and_raises_its_flag() -> None:
    started = asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    ctx = context()
    call = asyncio.create_task(wait.invoke(ctx, {}))
    await started.wait()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert ctx.is_cancelled


async def test_a_cancellation_the_tool_made_itself_is_an_internal_error() -> None:
    @tool
    async def trip() -> None:
        raise asyncio.CancelledError

    assert "INTERNAL_ERROR" == (await trip.invoke(context(), {})).code


async def test_a_sync_tool_runs_off_the_loop() -> None:
    @tool
    def where() -> int:
        return threading.get_ident()

    reply = await where.invoke(context(), {})

    assert threading.get_ident() != reply.output


async def test_cancelling_a_sync_tool_waits_until_its_thread_saw_the_flag() -> None:
    started, ended = threading.Event(), threading.Event()

    @tool
    def work(ctx: ToolContext) -> None:
        started.set()
        try:
            while not ctx.cancelled.wait_in_thread(0.01):
                ctx.check()
            ctx.check()
        finally:
            ended.set()

    call = asyncio.create_task(work.invoke(context(), {}))
    await asyncio.to_thread(started.wait)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


async def test_a_tool_that_unwinds_by_check_answers_interrupted() -> None:
    @tool
    def work(ctx: ToolContext) -> None:
        ctx.check()

    ctx = context()
    ctx.cancelled.set()
    reply = await work.invoke(ctx, {})

    assert (ToolOutcome.INTERRUPTED, "CANCELLED") == (reply.outcome, reply.code)


async def test_everybody_who_waits_for_a_cancellation_is_woken_from_a_thread() -> None:
    ctx = context(cancelled=Cancellation())
    waiting = asyncio.gather(ctx.wait_cancelled(), ctx.wait_cancelled())
    await asyncio.to_thread(ctx.cancelled.set)

    await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(ctx.wait_cancelled(), 5)
    assert ctx.cancelled.wait_in_thread(0)


async def test_a_waiter_that_gave_up_does_not_break_the_flag() -> None:
    flag = Cancellation()
    waiter = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    flag.set()

    with pytest.raises(asyncio.CancelledError):
        await waiter
    await asyncio.wait_for(flag.wait(), 5)


async def test_a_sync_function_that_returns_an_awaitable_is_awaited() -> None:
    async def later() -> str:
        return "done"

    @tool
    def start() -> Any:
        return later()

    assert "done" == (await start.invoke(context(), {})).output


@pytest.mark.parametrize(
    ("result", "output"),
    [
        ({"\ud83d": ["\ud83d"]}, {"\N{REPLACEMENT CHARACTER}": ["\N{REPLACEMENT CHARACTER}"]}),
        (None, {"status": "ok"}),
        ("", ""),
        (False, False),
        ({"error": "X"}, {"error": "X"}),
        ((1, 2), [1, 2]),
        (City(name="Lyon"), {"name": "Lyon", "country": "FR"}),
        (Measure(datetime(2030, 1, 1, tzinfo=UTC), 1.5), {"at": "2030-01-01T00:00:00Z", "celsius": 1.5}),
        ({1: "a\x00b", "k\x00": ["\ud83d"]}, {"1": "a\N{REPLACEMENT CHARACTER}b", "k\ufffd": ["\ufffd"]}),
    ],
)
async def test_a_result_becomes_clean_json(result: Any, output: Any) -> None:
    give = tool(name="give")(lambda: result)

    reply = await give.invoke(context(), {})

    assert (ToolOutcome.SUCCESS, output, None) == (reply.outcome, reply.output, reply.code)


def circle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("result", "hinted"),
    [
        (b"raw", True),
        ({"a": [bytearray(b"\xff")]}, False),
        ({"a": (b"x",)}, True),
        (object(), False),
        (float("nan"), False),
        (circle(), False),
    ],
)
async def test_a_result_that_is_not_json_is_an_error_and_says_so(result: Any, hinted: bool) -> None:
    causes: list[BaseException] = []
    give = tool(name="give")(lambda: result)

    reply = await give.invoke(context(), {}, on_error=causes.append)

    assert (ToolOutcome.ERROR, "INVALID_OUTPUT", 1) == (reply.outcome, reply.code, len(causes))
    assert hinted is ("_hint" in error_of(reply.output))


def test_the_idempotency_key_is_of_the_call_and_not_of_the_attempt() -> None:
    key = context(attempt=1).idempotency_key

    assert key == context(attempt=2).idempotency_key
    others = [context(step_number=1), context(call_id="call-2"), context(run_id="s"), context(conversation_id="d")]
    assert 5 == len({key, *(other.idempotency_key for other in others)})
