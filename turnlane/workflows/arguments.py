"""Arguments of a lane's handlers: what does not fit is refused as an invalid input, before it is in the history.

The SDK decodes an argument before any validator runs, and would tell a caller only that this failed. What is no
JSON at all still ends like that, and a signal that does not fit is dropped by the SDK, which logs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from turnlane.records.admissions import Input
from turnlane.records.approvals import RespondRequest
from turnlane.records.compaction import CompactRequest
from turnlane.records.durable import Delivery
from turnlane.records.errors import InvalidInputError
from turnlane.records.lane import AbandonRequest, ModelRequest, PurgeRequest, RunRequest, WaitRequest
from turnlane.records.misfits import misfits
from turnlane.workflows.calls import as_failure


class Argument:
    """What makes of a record an argument: it is decoded as the record, or refused with a failure of ours."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        record: type[BaseModel] = cls.__bases__[-1]
        return core_schema.no_info_plain_validator_function(_decoder(record))


def _decoder(record: type[BaseModel]) -> Callable[[Any], BaseModel]:
    def decode(value: Any) -> BaseModel:
        # As JSON once more: only of JSON does a strict record take a list for a tuple, or a text for a time.
        try:
            return record.model_validate_json(json.dumps(value))
        except ValidationError as error:
            raise as_failure(InvalidInputError("the argument does not fit", fields=misfits(error))) from None

    return decode


class SubmitArgument(Argument, Input):
    """An input."""


class RespondArgument(Argument, RespondRequest):
    """An answer to an approval."""


class WaitArgument(Argument, WaitRequest):
    """A run whose end is waited for."""


class RunArgument(Argument, RunRequest):
    """A run to stop or to cancel."""


class AbandonArgument(Argument, AbandonRequest):
    """A run to give up."""


class PurgeArgument(Argument, PurgeRequest):
    """A conversation to delete."""


class ModelArgument(Argument, ModelRequest):
    """A model to choose."""


class CompactArgument(Argument, CompactRequest):
    """A compaction."""


class DeliveryArgument(Argument, Delivery):
    """An event."""
