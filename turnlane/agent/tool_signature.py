"""A function's parameters as a JSON schema, and a model's arguments as that function's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from turnlane.agent.tool_context import ToolContext
from turnlane.records.base import JsonObject

MAX_FIELD_ERRORS = 20

_QUOTES_INPUT = frozenset({"value_error", "assertion_error", "union_tag_invalid"})
_PLAIN_ERRORS = frozenset(get_args(ErrorType)) - _QUOTES_INPUT


class _UntitledSchema(GenerateJsonSchema):
    """Leaves out the titles pydantic makes up from field names: noise that costs tokens."""

    def field_title_should_be_set(self, schema: Any) -> Literal[False]:
        return False


@dataclass(frozen=True)
class ToolSignature:
    """A function's parameters: a model that validates the model's arguments, and who gets the context.

    `returns` checks what the function declares to return; None if it declares nothing that can be checked.

    The fields of the model have neutral names, with the parameter as alias, so that a parameter may be
    called anything, `json` or `_private` included.
    """

    arguments: type[BaseModel]
    schema: JsonObject
    parameters: dict[str, str]
    context_parameters: tuple[str, ...]
    returns: TypeAdapter[Any] | None = None

    def bind(self, ctx: ToolContext, arguments_json: str) -> dict[str, Any]:
        """Return the keyword arguments of the call. Raises pydantic's ValidationError."""
        valid = self.arguments.model_validate_json(arguments_json)
        bound = {name: getattr(valid, field_name) for field_name, name in self.parameters.items()}
        return bound | dict.fromkeys(self.context_parameters, ctx)


def signature_of(function: Callable[..., Any]) -> ToolSignature:
    """Read a function's parameters. Raises TypeError for one a model could not call by name."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise TypeError("a tool is made of a function or a bound method")
    hints = _hints_of(function)
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    contexts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = _hint_for(function, parameter, hints)
        if hint is ToolContext:
            contexts.append(parameter.name)
            continue
        field_name = f"argument_{len(fields)}"
        names[field_name] = parameter.name
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[field_name] = (Annotated[hint, Field(alias=parameter.name)], default)
    return ToolSignature(*_model_of(function, fields), names, tuple(contexts), _declared_return(hints))


def _model_of(function: Callable[..., Any], fields: dict[str, Any]) -> tuple[type[BaseModel], JsonObject]:
    """Return the model of the arguments, and its JSON schema: an object, closed against unknown names."""
    try:
        model = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema(schema_generator=_UntitledSchema)
    except PydanticUserError as error:
        raise TypeError(f"{function.__qualname__}: a parameter has a type that JSON cannot carry") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return model, schema


def _declared_return(hints: dict[str, Any]) -> TypeAdapter[Any] | None:
    """What checks a return type; None for no type, Any and object, for None, and for what pydantic cannot check."""
    hint = hints.get("return")
    if hint in (None, Any, object, type(None)):
        return None
    try:
        return TypeAdapter(hint)
    except (PydanticUserError, PydanticSchemaGenerationError):
        return None


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{function.__qualname__}: {error}; the types of a tool stand at the level of a module"
        ) from None


def _hint_for(function: Callable[..., Any], parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    where = f"{function.__qualname__}: parameter {parameter.name!r}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"{where} is variadic; a model cannot be told what to pass, so name each parameter")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise TypeError(f"{where} is positional-only; a model passes arguments by name, so remove the '/'")
    if parameter.name not in hints:
        raise TypeError(f"{where} has no type; annotate it")
    return hints[parameter.name]


def field_errors(error: ValidationError) -> list[dict[str, str]]:
    """Return path and type of each misfit, never a value: what a model needs to correct itself."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [_field(detail) for detail in found[:MAX_FIELD_ERRORS]]


def _field(detail: ErrorDetails) -> dict[str, str]:
    """Where and what, and pydantic's own words for it unless those may quote the value."""
    told = {"path": ".".join(str(step) for step in detail["loc"])[:256], "type": detail["type"]}
    if detail["type"] in _PLAIN_ERRORS:
        told["message"] = detail["msg"][:256]
    return told
