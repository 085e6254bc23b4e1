"""Uploads: the files of an input are kept in the store before it is sent, and travel as references."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from turnlane.agent.files import Upload, ingest
from turnlane.records.errors import FileRefusedError, StoreRequiredError
from turnlane.records.files import blob_reference
from turnlane.records.limits import FileLimits
from turnlane.records.messages import FilePart, InputPart
from turnlane.store.protocol import Store


async def keep_uploads(
    store: Store | None, conversation_id: str, content: str | Sequence[InputPart | Upload], limits: FileLimits
) -> str | tuple[InputPart, ...]:
    """Return the content with every upload kept and replaced by a reference to it.

    All are checked before the first is kept. Raises `FileRefusedError` for one that cannot be taken, and
    `StoreRequiredError` without a store. The same upload again is the same file.
    """
    if isinstance(content, str):
        return content
    uploads = [part for part in content if isinstance(part, Upload)]
    if not uploads:
        return tuple(part for part in content if not isinstance(part, Upload))
    if len(uploads) > limits.files_per_input:
        raise FileRefusedError("an input has too many files", reason="count", limit=limits.files_per_input)
    if store is None:
        raise StoreRequiredError("uploads need a client with a store; or send a web address")
    checked = iter([await asyncio.to_thread(ingest, upload, limits) for upload in uploads])
    return tuple(
        [await _kept(store, conversation_id, next(checked)) if isinstance(part, Upload) else part for part in content]
    )


async def _kept(store: Store, conversation_id: str, upload: Upload) -> FilePart:
    blob = await store.put_blob(conversation_id, upload.data, upload.media_type, datetime.now(UTC))
    return FilePart(media_type=upload.media_type, reference=blob_reference(blob.id), filename=upload.filename)
