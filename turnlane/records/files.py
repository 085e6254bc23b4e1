"""Files: how a record refers to one that the store keeps, and which kinds are looked into."""

from __future__ import annotations

import hashlib
from typing import Final

IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
PDF_TYPE: Final = "application/pdf"

_SCHEME: Final = "blob:"


def blob_id_of(data: bytes) -> str:
    """The id under which a store keeps these bytes: it follows from them."""
    return f"blob-{hashlib.sha256(data).hexdigest()[:32]}"


def blob_reference(blob_id: str) -> str:
    """The reference of a file that the conversation's store keeps."""
    return f"{_SCHEME}{blob_id}"


def blob_of(reference: str) -> str | None:
    """The id of the blob that a reference names, or None if it names something else."""
    return reference.removeprefix(_SCHEME) if reference.startswith(_SCHEME) else None
