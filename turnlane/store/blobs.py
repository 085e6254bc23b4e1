"""Blobs: content too large to travel, kept under an id that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, select, update

from turnlane.records.admissions import BlobRef
from turnlane.records.files import blob_id_of
from turnlane.store.payloads import StoredBlob
from turnlane.store.reads import find_visible
from turnlane.store.statements import chunks, insert_rows, new_row
from turnlane.store.tables import BLOB, BlobRow
from turnlane.store.work import hold_conversation, refuse_purged


def put_blob(connection: Connection, conversation_id: str, data: bytes, media_type: str, now: datetime) -> BlobRef:
    """Keep content. Put again, it is the same blob with one use more, deleted with the last."""
    hold_conversation(connection, conversation_id)
    refuse_purged(connection, conversation_id)
    name = blob_id_of(data)
    digest = name.removeprefix("blob-")
    blob = BlobRef(id=name, digest=digest, size=len(data))
    where = (BLOB.c.conversation_id == conversation_id, BLOB.c.id == blob.id)
    again = connection.execute(update(BLOB).where(*where).values(uses=BLOB.c.uses + 1))
    if again.rowcount == 0:
        row = new_row(
            BlobRow,
            conversation_id=conversation_id,
            id=blob.id,
            digest=digest,
            media_type=media_type,
            size=blob.size,
            data=data,
            created_at=now,
        )
        insert_rows(connection, BlobRow, row)
    return blob


def get_blob(connection: Connection, conversation_id: str, blob_id: str, tenant: str | None = None) -> bytes | None:
    """Return a blob's content, if it is there."""
    if tenant is not None and find_visible(connection, conversation_id, tenant) is None:
        return None
    where = (BLOB.c.conversation_id == conversation_id, BLOB.c.id == blob_id)
    data: bytes | None = connection.execute(select(BLOB.c.data).where(*where)).scalar()
    return data


def find_blobs(connection: Connection, conversation_id: str, blob_ids: Sequence[str]) -> dict[str, StoredBlob]:
    """Return type and size of the blobs that are there."""
    found: dict[str, StoredBlob] = {}
    query = select(BLOB.c.id, BLOB.c.media_type, BLOB.c.size).where(BLOB.c.conversation_id == conversation_id)
    for chunk in chunks(blob_ids):
        rows = connection.execute(query.where(BLOB.c.id.in_(chunk)))
        found |= {row.id: StoredBlob(media_type=row.media_type, size=row.size) for row in rows}
    return found
