"""The part of the SQL store that moves whole conversations: archives and branches."""

from __future__ import annotations

import asyncio
from datetime import datetime

from turnlane.records.archives import Archive, Branched, BranchRequest, ConversationSource, Imported
from turnlane.store import branching, exporting
from turnlane.store.database import Database


class SqlArchives:
    """Exports, imports and branches. What takes long runs beside the event loop."""

    _database: Database

    async def export_conversation(self, conversation_id: str, *, tenant: str | None = None) -> bytes:
        archive = await self._database.read(
            lambda connection: exporting.load_archive(connection, conversation_id, tenant)
        )
        return await asyncio.to_thread(archive.to_bytes)

    async def import_conversation(self, data: bytes, now: datetime, *, tenant: str | None = None) -> Imported:
        archive = await asyncio.to_thread(branching.archive_to_import, data, tenant)
        return await self._database.write(lambda connection: branching.import_archive(connection, archive, now))

    async def branch_conversation(
        self, request: BranchRequest, now: datetime, *, tenant: str | None = None
    ) -> Branched:
        found = await self._database.read(lambda connection: branching.find_branch(connection, request, tenant))
        if found is not None:
            return found
        source = await self._source(request, tenant)
        copied = await asyncio.to_thread(branching.make_copy, request, source, now)
        return await self._database.write(
            lambda connection: branching.insert_branch(connection, request, copied, now, tenant)
        )

    async def _source(self, request: BranchRequest, tenant: str | None) -> Archive:
        source = request.source
        if isinstance(source, ConversationSource):
            named = source.conversation_id
            return await self._database.read(lambda connection: branching.load_source(connection, named, tenant))
        return await asyncio.to_thread(branching.source_in, source.data, tenant)
