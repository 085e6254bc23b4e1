"""The order of one tool call: the application's hooks, the arguments, the tool, and what it declares to return."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from turnlane.agent.call_hooks import CallHooks
from turnlane.agent.tools import Tool, ToolContext, ToolError, ToolReply, tool
from turnlane.records.base import Json
from turnlane.records.messages import ToolOutcome

CONTEXT = ToolContext(conversation_id="c", run_id="r", step_number=0, call_id="call-1", agent="a")


class Place(BaseModel):
    city: str
    streets: list[str] = []


@tool
def visit(place: Place, days: int = 1, tags: list[str] | None = None) -> str:
    """Visit a place."""
    return f"{place.city} {','.join(place.streets)} {days} {tags}"


async def reply(called: Tool, arguments: Json, **hooks: Any) -> ToolReply:
    return await called.invoke(CONTEXT, arguments, hooks=CallHooks(**hooks))


def code(found: ToolReply) -> str | None:
    return found.code


# --- hooks --------------------------------------------------------------------------------------


async def test_hooks_are_asked_and_told_in_order() -> None:
    seen: list[Any] = []

    @tool
    def double(number: int) -> int:
        seen.append("tool")
        return number * 2

    async def before(ctx: ToolContext, name: str, arguments: Any) -> Any:
        seen.append(("before", ctx.call_id, name, arguments))
        return {"number": arguments["number"] + 1}

    found = await reply(
        double,
        {"number": 1},
        before=before,
        started=lambda ctx, name: seen.append(("started", name)),
        returned=lambda ctx, name, result: seen.append(("returned", name, result)),
    )

    assert 4 == found.output
    assert [
        ("before", "call-1", "double", {"number": 1}),
        ("started", "double"),
        "tool",
        ("returned", "double", 4),
    ] == seen


async def test_a_hook_that_says_nothing_leaves_the_arguments_alone() -> None:
    assert "Bonn  1 None" == (await reply(visit, {"place": {"city": "Bonn"}}, before=lambda *_: None)).output


async def test_a_hook_refuses_a_call_with_a_code_of_its_own_and_the_tool_is_not_run() -> None:
    def refuse(*_: Any) -> None:
        raise ToolError("QUOTA", "nothing left", retryable=True, details={"left": 0}, hint="Wait.")

    @tool
    def never() -> None:
        raise AssertionError

    found = await reply(never, {}, before=refuse)

    assert {
        "error": "QUOTA",
        "retryable": True,
        "details": {"message": "nothing left", "left": 0},
        "_hint": "Wait.",
    } == found.output


async def test_replaced_arguments_are_validated_like_any_other() -> None:
    found = await reply(visit, {"place": {"city": "Bonn"}}, before=lambda *_: {"place": 3})

    assert "VALIDATION_ERROR" == code(found)


def broken(*_: Any) -> Any:
    raise RuntimeError("secret")


@pytest.mark.parametrize(
    "hooks", [{"before": broken}, {"before": lambda *_: [1]}, {"started": broken}, {"returned": broken}]
)
async def test_a_hook_that_fails_fails_the_call_and_its_words_stay_inside(hooks: dict[str, Any]) -> None:
    found = await reply(visit, {"place": {"city": "Bonn"}}, **hooks)

    assert ("INTERNAL_ERROR", ToolOutcome.ERROR) == (code(found), found.outcome)
    assert "secret" not in str(found.output)


async def test_a_hook_is_not_asked_about_arguments_that_are_no_object() -> None:
    assert "VALIDATION_ERROR" == code(await reply(visit, "text", before=broken))


# --- JSON in a string ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({"place": '{"city": "Bonn"}'}, "Bonn  1 None"),
        ({"place": {"city": "Bonn", "streets": '["A", "B"]'}}, "Bonn A,B 1 None"),
        ({"place": {"city": "Bonn"}, "tags": '["x"]'}, "Bonn  1 ['x']"),
        ({"place": {"city": "Bonn"}, "days": "2"}, "Bonn  2 None"),
        ({"place": {"city": '["not", "decoded"]'}}, '["not", "decoded"]  1 None'),
    ],
)
async def test_json_in_a_string_is_what_a_parameter_asks_for(arguments: Json, output: str) -> None:
    assert output == (await reply(visit, arguments)).output


@pytest.mark.parametrize("place", ['{"city": 3}', "no json", '"text"', "[1", "3"])
async def test_a_string_that_holds_nothing_that_fits_is_told_as_it_was_given(place: str) -> None:
    output: Any = (await reply(visit, {"place": place})).output

    assert "VALIDATION_ERROR" == output["error"]
    assert ["place"] == [field["path"] for field in output["details"]["fields"]]


async def test_a_tool_may_want_strings_taken_as_strings() -> None:
    @tool(coerce=False)
    def strict(place: Place) -> str:
        return place.city

    assert "VALIDATION_ERROR" == code(await reply(strict, {"place": '{"city": "Bonn"}'}))


# --- what is returned ---------------------------------------------------------------------------


@tool
def says_number() -> int:
    """Say something else."""
    return "many"  # type: ignore[return-value]


@tool
def says_place() -> Place:
    """Return a place as a dictionary."""
    return {"city": "Bonn", "streets": []}  # type: ignore[return-value]


@tool
def says_nowhere() -> Place:
    """Return half a place."""
    return {"streets": []}  # type: ignore[return-value]


@tool
def says_perhaps() -> str | None:
    """Return nothing, which is declared."""
    return None


@tool
def says_nothing() -> None:
    """Return nothing."""


@tool
def says_anything():  # type: ignore[no-untyped-def]
    """Declare nothing."""
    return {"error": "x"}


@tool
def says_error() -> dict[str, str]:
    """Return something that looks like an error."""
    return {"error": "x"}


class Opaque:
    """A type that pydantic cannot check."""


@tool
def says_opaque() -> Opaque:
    """Declare what nobody can check."""
    return "text"  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("called", "outcome", "output"),
    [
        (says_place, ToolOutcome.SUCCESS, {"city": "Bonn", "streets": []}),
        (says_perhaps, ToolOutcome.SUCCESS, None),
        (says_nothing, ToolOutcome.SUCCESS, {"status": "ok"}),
        (says_anything, ToolOutcome.SUCCESS, {"error": "x"}),
        (says_error, ToolOutcome.SUCCESS, {"error": "x"}),
        (says_opaque, ToolOutcome.SUCCESS, "text"),
    ],
    ids=lambda value: value.name if isinstance(value, Tool) else "",
)
async def test_a_result_that_fits_what_is_declared_is_shown(called: Tool, outcome: ToolOutcome, output: Any) -> None:
    assert ToolReply(outcome, output) == await reply(called, {})


@pytest.mark.parametrize("called", [says_number, says_nowhere], ids=lambda called: called.name)
async def test_a_result_that_is_not_what_is_declared_is_the_tools_mistake(called: Tool) -> None:
    found = await reply(called, {})

    assert {"error": "INTERNAL_ERROR", "retryable": False, "details": {"message": "Tool execution failed"}} == (
        found.output
    )


# --- durable tools ------------------------------------------------------------------------------


def test_a_durable_tool_is_an_async_function() -> None:
    with pytest.raises(TypeError, match="async function"):

        @tool(durable=True)
        def slow() -> None:
            """Block."""


async def test_a_tool_that_is_not_durable_cannot_record() -> None:
    @tool
    async def forgets(ctx: ToolContext) -> None:
        await ctx.step("one", lambda: 1)

    assert "NOT_DURABLE" == code(await reply(forgets, {}))
