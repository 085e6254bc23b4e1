"""Coded results: how a call that failed is told to the model, to watchers and to the history."""

from __future__ import annotations

from turnlane.records.base import JsonObject

LOST_CALL_MESSAGES = {
    "OUTCOME_UNKNOWN": "The worker of this call was lost. Whether its effect happened is unknown.",
    "TIMEOUT": "The call took too long and was given up. Whether its effect happened is unknown.",
}


def coded(code: str, message: str) -> JsonObject:
    """The envelope of a code with its message."""
    return {"error": code, "retryable": False, "details": {"message": message}}
