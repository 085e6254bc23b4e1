"""Calls: a tool call that a step asked for, as the lane knows it. Its arguments are in the store."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from turnlane.records.approvals import CallOrigin
from turnlane.records.base import UNSAID, Name, Payload, RecordId


class CallRef(Payload):
    """A tool call a step asked for: where its arguments are, and how it may be executed.

    `refused` is set for a call that cannot run (unknown tool, arguments that are not an object, a denial): its
    error result is already stored. `awaiting` is set for one that somebody must approve first. A call of an
    earlier run, approved since, has an `origin`.
    """

    call_id: RecordId
    tool_name: Name
    slot: Annotated[int, Field(ge=1)]
    refused: Annotated[bool, UNSAID] = False
    max_attempts: int = 1
    seconds: float = 300.0
    awaiting: Annotated[bool, UNSAID] = False
    origin: Annotated[CallOrigin | None, UNSAID] = None
