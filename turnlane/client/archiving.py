"""Archives and branches from an application's side: a conversation as bytes, restored, and copied.

The store alone answers: Temporal is not asked, and need not remember the conversation. The records of archives are
imported by the first call that needs them.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from turnlane.client.reading import Reading
from turnlane.client.requests import checked_id
from turnlane.records.errors import ConversationNotFoundError

if TYPE_CHECKING:
    from turnlane.records.archives import ArchiveSource, Branched, ConversationSource, Imported


class Archiving(Reading):
    """The part of a client that moves whole conversations. All of it raises `StoreRequiredError` without a store."""

    async def export_conversation(self, conversation_id: str, *, tenant: str | None = None) -> bytes:
        """The conversation as an archive: its ledger, its records and its large content, all at one moment.

        Raises `ConversationNotFoundError` where the store has nothing of it, or, with a `tenant`, where it is another
        one's. A run in flight is in it as far as it got.
        """
        from turnlane.records.archives import Archive

        data = await self._reads_of(conversation_id).export_conversation(conversation_id, tenant=tenant)
        if data == Archive.empty(conversation_id).to_bytes():
            raise ConversationNotFoundError("there is no such conversation", conversation_id=conversation_id)
        return data

    async def import_conversation(self, data: bytes, *, tenant: str | None = None) -> Imported:
        """Restore an archive's conversation under its own id, all of it or nothing.

        It goes on as it was: what was admitted is a duplicate again, and a run that was in flight is taken up when
        the next call opens its lane, as that of any lane that was lost. So import nothing beside an original that
        still runs elsewhere; `branch` makes a copy. Raises `ConversationExistsError` where there is something under
        the id already, `ConversationPurgedError`, and `ArchiveInvalidError` for bytes that are not a whole archive,
        or, with a `tenant`, another one's.
        """
        return await self._reads.import_conversation(data, datetime.now(UTC), tenant=tenant)

    async def branch(
        self,
        source: str | bytes,
        destination: str,
        *,
        through_run_id: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Branched:
        """Make a new conversation that begins with what was said in another one; the next submit continues it.

        `source` is a conversation of the store, or an archive. With `through_run_id` the copy ends with the end of
        that run; without, it has all that was said. `key` makes a repeat of the call the same branch, whatever became
        of source and copy meanwhile; without one each call is its own. Nobody is called, and the source stays as it is.
        The copy has ids of its own, no open approval and no spend (see `ConversationSpend.inherited`).

        Raises `ConversationNotFoundError` and `RunNotFoundError` for what is not there, `ConversationActiveError`
        when a run of the part to copy has not ended, `ConversationExistsError` where there is something under the
        destination's id, `IdempotencyConflictError` for another branch under the same key, `ConversationPurgedError`,
        `ArchiveInvalidError`, and `BranchRefusedError` when metadata or context name records of the source.
        """
        from turnlane.records.archives import BranchRequest

        if through_run_id is not None:
            checked_id("through_run_id", through_run_id)
        request = BranchRequest(
            request_key=checked_id("key", uuid.uuid4().hex if key is None else key),
            destination_conversation_id=checked_id("destination", destination),
            source=_source(source, through_run_id),
        )
        return await self._reads.branch_conversation(request, datetime.now(UTC), tenant=tenant)


def _source(source: str | bytes, through_run_id: str | None) -> ConversationSource | ArchiveSource:
    from turnlane.records.archives import ArchiveSource, ConversationSource

    if isinstance(source, bytes):
        return ArchiveSource(data=source, through_run_id=through_run_id)
    return ConversationSource(conversation_id=checked_id("source", source), through_run_id=through_run_id)
