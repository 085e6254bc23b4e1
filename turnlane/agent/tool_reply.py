"""What comes of a tool call: what the model is shown, in one envelope for all that can go wrong."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any, cast

from turnlane.agent.tool_output import json_output
from turnlane.records.base import Json, JsonObject, clean_json
from turnlane.records.messages import ToolOutcome

logger = logging.getLogger(__name__)

_ERROR_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")


class ToolError(Exception):
    """Raised by a tool to tell the model what went wrong. All of it is shown to the model and stored.

    `retryable` tells the model whether the same call may help, `hint` what to do instead; `details` are
    JSON facts beside the message. Raises ValueError for a code that is not a plain word.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        details: JsonObject | None = None,
        hint: str | None = None,
    ) -> None:
        if not _ERROR_CODE.fullmatch(code):
            raise ValueError("an error code is 1 to 128 letters, digits, '_', '.' and '-', a letter first")
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.details = details
        self.hint = hint


@dataclass(frozen=True)
class ToolReply:
    """What came of one call: what the model is shown, and the code if it was not a success."""

    outcome: ToolOutcome
    output: Json
    code: str | None = None


def failed(
    code: str,
    message: str,
    details: dict[str, Any] | None = None,
    *,
    outcome: ToolOutcome = ToolOutcome.ERROR,
    retryable: bool = False,
    hint: str | None = None,
) -> ToolReply:
    """Return the reply of a call that failed."""
    told = {"message": message} | {key: value for key, value in (details or {}).items() if key != "message"}
    envelope: dict[str, Any] = {"error": code, "retryable": retryable, "details": told}
    if hint is not None:
        envelope["_hint"] = hint
    return ToolReply(outcome, clean_json(envelope), code)


def misfit(message: str, fields: list[dict[str, str]]) -> ToolReply:
    """Return the reply to arguments that do not fit, with the places where they do not."""
    return failed("VALIDATION_ERROR", message, {"fields": fields})


def told(error: ToolError) -> ToolReply:
    """Return the reply that an error asks for; details that are not JSON are left out."""
    try:
        details = cast(dict[str, Any], json_output(error.details or {}))
    except Exception:
        logger.warning("the details of tool error %s are not JSON and were left out", error.code)
        details = {}
    return failed(error.code, error.message, details, retryable=error.retryable, hint=error.hint)
