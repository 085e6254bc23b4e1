"""The part of the SQL store that moves whole conversations: archives and branches.

A transaction reads or writes rows and does nothing else. What makes rows of an archive, and the other way round,
takes a while for a long conversation, and runs on a thread beside the event loop. The modules that know how are
imported by the first call: a worker starts without them.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from turnlane.store.database import Database

if TYPE_CHECKING:
    from turnlane.records.archives import Branched, BranchReceipt, BranchRequest, Imported
    from turnlane.store.exporting import Kept
    from turnlane.store.importing import Rows


class SqlArchives:
    """Exports, imports and branches."""

    _database: Database

    async def export_conversation(self, conversation_id: str, *, tenant: str | None = None) -> bytes:
        from turnlane.store import exporting

        kept = await self._database.read(lambda connection: exporting.load_rows(connection, conversation_id, tenant))
        return await asyncio.to_thread(lambda: exporting.archive_in(kept).to_bytes())

    async def import_conversation(self, data: bytes, now: datetime, *, tenant: str | None = None) -> Imported:
        from turnlane.store import branching

        incoming = await asyncio.to_thread(branching.incoming, data, tenant, now)
        return await self._database.write(lambda connection: branching.import_rows(connection, incoming))

    async def branch_conversation(
        self, request: BranchRequest, now: datetime, *, tenant: str | None = None
    ) -> Branched:
        from turnlane.store import branching

        before = await self._database.read(lambda connection: branching.find_branch(connection, request, tenant))
        if before is not None:
            return before
        found = await self._found(request, tenant)
        receipt, rows = await asyncio.to_thread(_copied, request, found, now, tenant)
        return await self._database.write(
            lambda connection: branching.insert_branch(connection, request, receipt, rows, tenant)
        )

    async def _found(self, request: BranchRequest, tenant: str | None) -> Kept | bytes:
        from turnlane.store import branching

        source = request.source
        if source.kind == "archive":
            return source.data
        named = source.conversation_id
        return await self._database.read(lambda connection: branching.load_source(connection, named, tenant))


def _copied(
    request: BranchRequest, found: Kept | bytes, now: datetime, tenant: str | None
) -> tuple[BranchReceipt, list[Rows]]:
    from turnlane.store import branching, importing

    copied = branching.make_copy(request, branching.source_of(found, tenant), now)
    return copied.receipt, importing.rows_of(copied.archive, now)
