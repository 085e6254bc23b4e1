"""Kept files: what the conversation's store keeps of users' files, as a provider can have it."""

from __future__ import annotations

from typing import Final

from turnlane.activities.failing import persist
from turnlane.agent.history import FileBytes, FileText, ResolvedFile
from turnlane.records.base import clean_text
from turnlane.records.files import IMAGE_TYPES, PDF_TYPE, blob_of
from turnlane.records.messages import FilePart
from turnlane.store.protocol import Store

_TEXT_TYPES: Final = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml", "application/x-ndjson"}
)


class KeptFiles:
    """Reads the files of one conversation. `text_bytes` is how much of a text file the model is shown."""

    def __init__(self, store: Store, conversation_id: str, text_bytes: int) -> None:
        self._store = store
        self._conversation_id = conversation_id
        self._text_bytes = text_bytes

    async def read(self, part: FilePart) -> ResolvedFile | None:
        """Return an image or a PDF by its bytes, a text file as text; None for any other, or one kept elsewhere."""
        blob_id = blob_of(part.reference)
        if blob_id is None or not (_is_text(part) or part.media_type in (*IMAGE_TYPES, PDF_TYPE)):
            return None
        data = await persist(lambda: self._store.get_blob(self._conversation_id, blob_id))
        if data is None:
            return None
        return self._text(part, data) if _is_text(part) else FileBytes(data)

    def _text(self, part: FilePart, data: bytes) -> FileText:
        shown = clean_text(data[: self._text_bytes].decode("utf-8", "replace"))
        name = part.filename or part.media_type
        cut = "" if len(data) <= self._text_bytes else f"\n[{len(data) - self._text_bytes} more bytes are not shown]"
        return FileText(f"[file: {name}]\n{shown}{cut}")


def _is_text(part: FilePart) -> bool:
    return part.media_type.startswith("text/") or part.media_type in _TEXT_TYPES
