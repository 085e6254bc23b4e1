"""The limits: all configurable, all checked at the edge with a typed error."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from turnlane.records.base import Payload

KIB = 1024
MIB = 1024 * KIB

Positive = Annotated[int, Field(gt=0)]


class FileLimits(Payload):
    """How large a file may be. The defaults are within what OpenAI and Anthropic document for one request.

    `image_long_edge` is in pixels: a conversation with many images may have none over 2,000. `image_bytes`
    is 5 MB in base64. `upload_bytes` and `image_pixels` bound what is scaled down at all. `text_bytes` is how much
    of a text file the model is shown.
    """

    files_per_input: Positive = 20
    image_long_edge: Positive = 2000
    image_bytes: Positive = 3_750_000
    image_pixels: Positive = 100_000_000
    upload_bytes: Positive = 32 * MIB
    pdf_bytes: Positive = 20 * MIB
    text_bytes: Positive = 256 * KIB
    other_bytes: Positive = 20 * MIB


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
