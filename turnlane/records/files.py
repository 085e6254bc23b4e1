"""Files: how a record refers to one that the store keeps, and how large each kind may be."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

from pydantic import Field

from turnlane.records.base import Payload

Positive = Annotated[int, Field(gt=0)]

MIB: Final = 1024 * 1024

IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
PDF_TYPE: Final = "application/pdf"

_SCHEME: Final = "blob:"


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
    text_bytes: Positive = 256 * 1024
    other_bytes: Positive = 20 * MIB


def blob_id_of(data: bytes) -> str:
    """The id under which a store keeps these bytes: it follows from them."""
    return f"blob-{hashlib.sha256(data).hexdigest()[:32]}"


def blob_reference(blob_id: str) -> str:
    """The reference of a file that the conversation's store keeps."""
    return f"{_SCHEME}{blob_id}"


def blob_of(reference: str) -> str | None:
    """The id of the blob that a reference names, or None if it names something else."""
    return reference.removeprefix(_SCHEME) if reference.startswith(_SCHEME) else None
