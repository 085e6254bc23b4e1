"""Declaring a tool: the schema a function gets, what its arguments become, and what is refused."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from turnlane.agent.tools import (
    RESERVED_TOOL_NAMES,
    ToolContext,
    tool,
)


class City(BaseModel):
    name: str
    country: str = "FR"


def context(**given: Any) -> ToolContext:
    facts: dict[str, Any] = {"conversation_id": "c", "run_id": "r", "step_number": 0, "call_id": "call-1", "agent": "a"}
    return ToolContext(**(facts | given))


def test_a_typed_function_becomes_a_closed_schema() -> None:
    @tool
    def weather(city: Annotated[str, Field(description="Which city")], ctx: ToolContext, days: int = 1) -> str:
        """Tell the weather."""
        return city

    assert weather.spec.model_dump(exclude_none=True) == {
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
