"""Lists across conversations, paged by keys that never change, so that each item is seen once."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, select, tuple_

from turnlane.store.columns import RECORD_ID, TIMESTAMP
from turnlane.store.pages import check_limit, read_cursor, read_moment, write_cursor
from turnlane.store.payloads import ConversationLine, ConversationPage, RecoverablePage, RecoverableRun
from turnlane.store.rows import fetch, run_record, select_active
from turnlane.store.tables import CONVERSATION, RUN, RunRow


def list_conversations(connection: Connection, limit: int, cursor: str | None, tenant: str | None) -> ConversationPage:
    """Return a page of conversations in the order of their creation."""
    query = select(CONVERSATION).where(CONVERSATION.c.version > 0)
    if tenant is not None:
        query = query.where(CONVERSATION.c.tenant == tenant)
    if cursor is not None:
        created, name = read_cursor("conversations", cursor, str, str)
        place = tuple_(CONVERSATION.c.created_at, CONVERSATION.c.id, types=[TIMESTAMP, RECORD_ID])
        query = query.where(place > (read_moment(created), name))
    query = query.order_by(CONVERSATION.c.created_at, CONVERSATION.c.id).limit(check_limit(limit) + 1)
    rows = connection.execute(query).all()
    page = rows[:limit]
    active = _active_counts(connection, [row.id for row in page])
    lines = tuple(
        ConversationLine(
            conversation_id=row.id,
            agent=row.agent,
            tenant=row.tenant,
            version=row.version,
            active_runs=active[row.id],
            created_at=row.created_at,
            updated_at=row.updated_at,
        )
        for row in page
    )
    after = write_cursor("conversations", page[-1].created_at.isoformat(), page[-1].id) if len(rows) > limit else None
    return ConversationPage(items=lines, next_cursor=after)


def _active_counts(connection: Connection, ids: list[str]) -> Counter[str]:
    query = select_active(RUN.c.conversation_id.in_(ids)).with_only_columns(RUN.c.conversation_id)
    return Counter(connection.execute(query).scalars())


def scan_recoverable(connection: Connection, limit: int, cursor: str | None) -> RecoverablePage:
    """Return a page of active runs of all conversations, by conversation and run id: not in queue order."""
    query = select_active()
    if cursor is not None:
        behind = read_cursor("recoverable", cursor, str, str)
        query = query.where(tuple_(RUN.c.conversation_id, RUN.c.id) > behind)
    query = query.limit(check_limit(limit) + 1)
    rows = fetch(connection, query, RunRow)
    page = rows[:limit]
    items = tuple(
        RecoverableRun(conversation_id=row.conversation_id, run_id=row.id, run=run_record(row)) for row in page
    )
    after = write_cursor("recoverable", page[-1].conversation_id, page[-1].id) if len(rows) > limit else None
    return RecoverablePage(items=items, next_cursor=after)
