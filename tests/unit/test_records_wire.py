"""Every record, whatever its family: it has a JSON schema, survives its JSON, and cannot be changed."""

import importlib
import pkgutil
import re
import types
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import AwareDatetime, BaseModel, TypeAdapter, ValidationError

import turnlane.records
from turnlane.records.admissions import Input, Policy
from turnlane.records.base import Payload, ProviderEnvelope, Record
from turnlane.records.catalog import SelectionStatus, ToolSelection
from turnlane.records.events import EVENT_ADAPTER, AssistantDeltaEvent
from turnlane.records.invocations import CompletionSettings
from turnlane.records.messages import Message, MessageStatus, Role, TextPart
from turnlane.records.mutations import Effect, Mutation
from turnlane.records.runs import Failure, FailureClass, Operation, OperationKind, OperationPhase, Run, RunState
from turnlane.records.usage import CostValue, Provenance, UsageValue

NOW = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
HEXADECIMAL = re.compile(r"0-9a-f\]\{(\d+)\}")
DIGEST = "0" * 32


def _modules() -> list[types.ModuleType]:
    names = [module.name for module in pkgutil.iter_modules(turnlane.records.__path__)]
    return [importlib.import_module(f"turnlane.records.{name}") for name in names]


def _models() -> list[type[BaseModel]]:
    found = {
        value
        for module in _modules()
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Record | Payload) and not value.__name__.startswith("_")
    }
    return sorted(found - {Record, Payload}, key=lambda model: (model.__module__, model.__name__))


def _message() -> Message:
    return Message(
        id="m",
        conversation_id="c",
        role=Role.USER,
        status=MessageStatus.COMMITTED,
        parts=(TextPart(text="hi"),),
        metadata={"a": [1, None, True, 1.5]},
        created_at=NOW,
        updated_at=NOW,
    )


def _run() -> Run:
    return Run(
        id="r",
        conversation_id="c",
        input_message_ids=("m",),
        assistant_message_id="out",
        state=RunState.RUNNING,
        revision=2,
        admission_order=1,
        execution_sequence=4,
        owner_id="w",
        fencing_token=1,
        created_at=NOW,
        updated_at=NOW,
    )


AGREEING: dict[type[BaseModel], Any] = {
    Input: lambda: Input(key="k", text="hi", policy=Policy.QUEUE, metadata={"a": 1}),
    Message: _message,
    Run: _run,
    Operation: lambda: Operation(
        operation_id="o", kind=OperationKind.MODEL_REQUEST, phase=OperationPhase.STARTED, step=0, started_at=NOW
    ),
    Failure: lambda: Failure(failure_class=FailureClass.OVERLOADED, code="x", status=529, retryable=True),
    UsageValue: lambda: UsageValue(value=1, provenance=Provenance.COMPUTED),
    CostValue: lambda: CostValue(value=0.25, currency="USD", provenance=Provenance.COMPUTED),
    ToolSelection: lambda: ToolSelection(
        status=SelectionStatus.SELECTED, run_id="r", surface_key="default", selected=("look",)
    ),
    CompletionSettings: lambda: CompletionSettings(max_output_tokens=3, temperature=1.5, top_p=0.5, seed=3),
    ProviderEnvelope: lambda: ProviderEnvelope(provider="p", data={"a": {"b": [1]}}),
}
"""Records whose fields must agree with one another."""


def example(model: type[BaseModel], full: bool) -> BaseModel:
    """Return one of this model: with every field set, or with those only that have no default."""
    if model in AGREEING:
        made: BaseModel = AGREEING[model]()
        return made
    hints = get_type_hints(model, include_extras=True)
    values = {
        name: _value(hints[name], full) for name, info in model.model_fields.items() if full or info.is_required()
    }
    return model(**values)


SCALARS: dict[Any, Any] = {int: 3, float: 1.5, bool: True, AwareDatetime: NOW, type(None): None}


def _value(hint: Any, full: bool) -> Any:
    if hint in SCALARS:
        return SCALARS[hint]
    origin = get_origin(hint)
    if origin is Annotated:
        told = str(hint.__metadata__)
        if "0-9a-f" in told:
            length = HEXADECIMAL.search(told)
            return DIGEST if length is None else "0" * int(length[1])
        return _value(get_args(hint)[0], full)
    if origin in (Union, types.UnionType):
        return _value(get_args(hint)[0], full)
    if origin is Literal:
        return get_args(hint)[0]
    if origin is tuple:
        return (_value(get_args(hint)[0], full),)
    if origin is dict:
        return {"k": _value(get_args(hint)[1], full)}
    return _plain(hint, full)


def _plain(hint: Any, full: bool) -> Any:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return example(hint, full)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    if isinstance(hint, type) and issubclass(hint, tuple):
        fields: NamedTuple = hint  # type: ignore[assignment]
        return hint(**{name: _value(kind, full) for name, kind in get_type_hints(fields).items()})
    return "x"


MODELS = _models()


def test_the_records_are_found() -> None:
    assert {Run, Message, Input, Mutation} <= set(MODELS)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_record_has_a_json_schema(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()

    assert "object" == schema["type"]
    assert (not issubclass(model, Record)) is ("additionalProperties" not in schema)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_record_survives_its_json(model: type[BaseModel], full: bool) -> None:
    made = example(model, full)

    assert made == model.model_validate_json(made.model_dump_json())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_record_cannot_be_changed(model: type[BaseModel]) -> None:
    made = example(model, full=True)

    for name in model.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(made, name, None)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_record_refuses_what_it_does_not_know_and_a_payload_ignores_it(model: type[BaseModel]) -> None:
    made = example(model, full=True)
    text = made.model_dump_json()
    grown = '{"from_a_newer_release":1' + (text[1:] if text == "{}" else "," + text[1:])

    if issubclass(model, Payload):
        assert made == model.model_validate_json(grown)
        return
    with pytest.raises(ValidationError, match="from_a_newer_release"):
        model.model_validate_json(grown)


@pytest.mark.parametrize("hint", [*get_args(get_args(Effect)[0])], ids=lambda hint: hint.__name__)
def test_an_effect_is_told_by_its_type(hint: type[BaseModel]) -> None:
    made = example(hint, full=True)
    adapter: TypeAdapter[Any] = TypeAdapter(Effect)

    assert made == adapter.validate_json(made.model_dump_json())


def test_an_event_is_told_by_its_type() -> None:
    made = example(AssistantDeltaEvent, full=True)

    assert made == EVENT_ADAPTER.validate_json(made.model_dump_json())


@pytest.mark.parametrize("version", [0, 2, "1"])
def test_an_unknown_schema_version_is_refused(version: Any) -> None:
    data = _run().model_dump(mode="json") | {"schema_version": version}

    with pytest.raises(ValidationError, match="schema_version"):
        Run.model_validate_json(TypeAdapter(Any).dump_json(data))


def test_strict_records_do_not_guess() -> None:
    for broken in ({"revision": "2"}, {"revision": -1}, {"state": "asleep"}, {"created_at": "2030-01-01T00:00:00"}):
        with pytest.raises(ValidationError):
            Run.model_validate_json(TypeAdapter(Any).dump_json(_run().model_dump(mode="json") | broken))


def test_timestamps_are_utc_whatever_offset_they_came_with() -> None:
    data = _run().model_dump(mode="json") | {"created_at": "2030-01-01T02:30:00+02:30"}

    run = Run.model_validate_json(TypeAdapter(Any).dump_json(data))

    assert datetime(2030, 1, 1, tzinfo=UTC) == run.created_at
    assert UTC is run.created_at.tzinfo


def test_a_mutations_digest_is_blind_to_clocks_and_to_nothing_else() -> None:
    one = example(Mutation, full=True)
    assert isinstance(one, Mutation)
    later = one.model_copy(update={"at": NOW.replace(year=2031)})
    message = one.effect.message.model_copy(update={"created_at": NOW.replace(year=2031)})  # type: ignore[union-attr]
    other_clock = one.model_copy(update={"effect": one.effect.model_copy(update={"message": message})})
    reworded = message.model_copy(update={"parts": (TextPart(text="ho"),)})
    other_words = one.model_copy(update={"effect": one.effect.model_copy(update={"message": reworded})})

    assert one.digest == later.digest == other_clock.digest
    assert one.digest != other_words.digest
    assert one.digest != one.model_copy(update={"seq": one.seq + 1}).digest


@pytest.mark.parametrize("hint", [*get_args(get_args(Effect)[0])], ids=lambda hint: hint.__name__)
def test_every_mutation_has_a_digest_and_a_size(hint: type[BaseModel]) -> None:
    mutation = example(Mutation, full=True).model_copy(update={"effect": example(hint, full=True)})
    assert isinstance(mutation, Mutation)

    assert 32 == len(mutation.digest)
    assert len(hint.__name__) < mutation.size < 5000
