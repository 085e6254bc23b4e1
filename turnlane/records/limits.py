"""The limits: all configurable, all checked at the edge with a typed error."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from turnlane.records.base import Payload
from turnlane.records.files import FileLimits

KIB = 1024
MIB = 1024 * KIB

Positive = Annotated[int, Field(gt=0)]


class Limits(Payload):
    """Sizes in bytes of UTF-8 JSON unless a name says otherwise."""

    input_text_bytes: Positive = 1 * MIB
    inline_payload_bytes: Positive = 64 * KIB
    metadata_bytes: Positive = 16 * KIB
    tool_output_bytes: Positive = 64 * KIB
    tool_calls_per_step: Positive = 128
    steps_per_run: Positive = 50
    queued_runs: Positive = 1000
    recent_receipts: Positive = 512
    files: FileLimits = FileLimits()
