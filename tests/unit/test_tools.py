"""Tools: what a function becomes, and that a call always ends in a reply the model may see."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, field_validator

from turnlane.agent.tools import (
    RESERVED_TOOL_NAMES,
    Cancellation,
    ToolContext,
    ToolError,
    bounded_output,
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
    facts: dict[str, Any] = {"conversation_id": "c", "run_id": "r", "step": 0, "call_id": "call-1", "agent": "a"}
    return ToolContext(**(facts | given))


def error_of(output: Any) -> dict[str, Any]:
    assert isinstance(output, dict)
    return output


def test_a_typed_function_becomes_a_closed_schema() -> None:
    @tool
    def weather(city: Annotated[str, Field(description="Which city")], ctx: ToolContext, days: int = 1) -> str:
        """Tell the weather."""
        return city

    assert weather.spec.model_dump() == {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Which city"},
                "days": {"type": "integer", "default": 1},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    }


def test_a_tool_without_parameters_has_an_object_schema() -> None:
    @tool
    def now() -> str:
        return "noon"

    assert now.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


async def test_models_unions_and_lists_reach_the_function_as_their_types() -> None:
    @tool
    def visit(cities: list[City], when: datetime | None, mode: Literal["car", "train"]) -> list[str]:
        assert all(isinstance(city, City) for city in cities) and isinstance(when, datetime)
        return [f"{city.name}/{city.country}/{mode}/{when.year}" for city in cities]

    reply = await visit.invoke(
        context(), {"cities": [{"name": "Lyon"}], "when": "2030-01-01T00:00:00Z", "mode": "train"}
    )

    assert reply.output == ["Lyon/FR/train/2030"]


async def test_parameters_may_be_called_anything() -> None:
    @tool
    def odd(json: str, _private: int, model_config: str, schema: str, self: str) -> list[Any]:
        return [json, _private, model_config, schema, self]

    reply = await odd.invoke(context(), {"json": "a", "_private": 1, "model_config": "b", "schema": "c", "self": "d"})

    assert reply.output == ["a", 1, "b", "c", "d"]


async def test_a_bound_method_is_a_tool_without_self() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, by: int) -> int:
            self.count += by
            return self.count

    adder = tool(Counter().add)

    assert ["by"] == list(adder.parameters["properties"])  # type: ignore[arg-type]
    assert (await adder.invoke(context(), {"by": 2})).output == 2


def variadic(*values: int) -> None: ...


def keyed(**values: int) -> None: ...


def positional(value: int, /) -> None: ...


def untyped(value) -> None: ...  # type: ignore[no-untyped-def]


def unsayable(value: Callable[[], int]) -> None: ...


def unresolved(value: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (variadic, "variadic"),
        (keyed, "variadic"),
        (positional, "positional-only"),
        (untyped, "has no type"),
        (unsayable, "JSON cannot carry"),
        (unresolved, "Nowhere"),
        (City, "function or a bound method"),
    ],
)
def test_a_signature_a_model_cannot_call_is_refused_at_decoration(function: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        tool(function)


@pytest.mark.parametrize("name", ["with space", "é", "x" * 65, "a.b"])
def test_a_name_a_provider_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name is 1 to 64"):
        tool(name=name)(lambda: None)


@pytest.mark.parametrize("given", [{"retries": 0}, {"timeout": 0.0}, {"timeout": float("inf")}])
def test_numbers_that_cannot_work_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"retries|timeout"):
        tool(name="x", **given)(lambda: None)


@pytest.mark.parametrize(
    ("read_only", "retries", "attempts"), [(False, None, 1), (True, None, 3), (True, 1, 1), (False, 5, 5)]
)
def test_only_tools_known_to_be_safe_are_tried_again(read_only: bool, retries: int | None, attempts: int) -> None:
    made = tool(name="x", read_only=read_only, retries=retries)(lambda: None)

    assert attempts == made.max_attempts


def test_the_activities_of_turnlane_are_reserved() -> None:
    assert {"commit", "provider_step", "compact"} <= RESERVED_TOOL_NAMES


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
    others = [context(step=1), context(call_id="call-2"), context(run_id="s"), context(conversation_id="d")]
    assert 5 == len({key, *(other.idempotency_key for other in others)})


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_an_output_within_the_limit_is_left_alone(output: Any) -> None:
    size = len(json.dumps(output, ensure_ascii=False, separators=(",", ":")).encode())

    assert output == bounded_output(output, size)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=120), st.integers(60, 140))
def test_a_cut_output_fits_and_splits_no_character(text: str, limit: int) -> None:
    cut = bounded_output(text, limit)

    if cut == text:
        assert len(json.dumps(text, ensure_ascii=False).encode()) <= limit
        return
    assert isinstance(cut, dict)
    assert len(json.dumps(cut, ensure_ascii=False, separators=(",", ":")).encode()) <= limit
    assert text.startswith(str(cut["head"])) and text.endswith(str(cut["tail"]))
    assert {"truncated": True, "bytes": len(text.encode())} == {key: cut[key] for key in ("truncated", "bytes")}


def test_a_cut_output_keeps_as_much_as_fits() -> None:
    cut = bounded_output("é" * 10_000, 1000)

    assert isinstance(cut, dict)
    assert 980 <= len(json.dumps(cut, ensure_ascii=False, separators=(",", ":")).encode()) <= 1000


def test_a_limit_below_the_frame_leaves_the_frame() -> None:
    assert {"truncated": True, "bytes": 100, "head": "", "tail": ""} == bounded_output("x" * 100, 3)
