"""Checking the files of an input before it is admitted."""

from __future__ import annotations

from collections.abc import Sequence

from turnlane.records.errors import FileRefusedError
from turnlane.records.files import IMAGE_TYPES, PDF_TYPE, blob_of
from turnlane.records.limits import FileLimits
from turnlane.records.messages import FilePart, InputPart
from turnlane.store.payloads import StoredBlob
from turnlane.store.protocol import Store


async def check_files(store: Store, conversation_id: str, parts: Sequence[InputPart], limits: FileLimits) -> None:
    """Refuse an input with files that the agent does not take, or that its conversation does not have."""
    files = [part for part in parts if isinstance(part, FilePart)]
    if len(files) > limits.files_per_input:
        raise FileRefusedError("an input has too many files", reason="count", limit=limits.files_per_input)
    wanted = {blob_id for part in files if (blob_id := blob_of(part.reference)) is not None}
    kept = await store.find_blobs(conversation_id, sorted(wanted)) if wanted else {}
    if wanted - kept.keys():
        raise FileRefusedError("a file of the input is not in this conversation", reason="missing")
    for blob in kept.values():
        _check_size(blob, limits)


def _check_size(blob: StoredBlob, limits: FileLimits) -> None:
    limit = limits.other_bytes
    if blob.media_type in IMAGE_TYPES:
        limit = limits.image_bytes
    elif blob.media_type == PDF_TYPE:
        limit = limits.pdf_bytes
    if blob.size > limit:
        raise FileRefusedError("a file is over the agent's limit", reason="size", size=blob.size, limit=limit)
