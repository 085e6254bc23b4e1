"""Reads of one conversation. With a tenant, another tenant's conversation answers as an unknown one."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, bindparam, or_, select, tuple_

from turnlane.records.admissions import Policy, Receipt
from turnlane.records.runs import ACTIVE_STATES, Run, RunView, Snapshot
from turnlane.store.content import gather, load_messages, select_content
from turnlane.store.pages import check_limit, read_cursor, write_cursor
from turnlane.store.payloads import MessagePage, StoredReceipt
from turnlane.store.prepared import Prepared
from turnlane.store.rows import active_runs, fetch, in_queue_order, run_record
from turnlane.store.statements import chunks, find_row
from turnlane.store.tables import ADMISSION, MESSAGE, RUN, ConversationRow, RunRow


def find_visible(connection: Connection, conversation_id: str, tenant: str | None) -> ConversationRow | None:
    """Return a conversation that exists for the reader: something was committed, and the tenant is its own."""
    head = find_row(connection, ConversationRow, conversation_id)
    if head is None or head.version == 0 or (tenant is not None and head.tenant != tenant):
        return None
    return head


def find_known(connection: Connection, conversation_id: str, tenant: str | None) -> ConversationRow | None:
    """Return a conversation also if nothing was committed yet: it has a ledger before that. With a tenant, only one
    of its own; before the first commit it is nobody's."""
    if tenant is None:
        return find_row(connection, ConversationRow, conversation_id)
    return find_visible(connection, conversation_id, tenant)


def load_snapshot(connection: Connection, conversation_id: str, tenant: str | None) -> Snapshot:
    """Return the active history in causal order, and the runs it belongs to."""
    head = find_visible(connection, conversation_id, tenant)
    if head is None:
        return Snapshot(conversation_id=conversation_id, version=0)
    where = (MESSAGE.c.conversation_id == conversation_id, MESSAGE.c.compacted.is_(False))
    messages = [stored.message for stored in gather(connection.execute(select_content().where(*where)))]
    shown = and_(
        MESSAGE.c.conversation_id == RUN.c.conversation_id,
        MESSAGE.c.id == RUN.c.assistant_message_id,
        MESSAGE.c.compacted.is_(False),
    )
    runs = (
        select(RUN)
        .outerjoin(MESSAGE, shown)
        .where(RUN.c.conversation_id == conversation_id, or_(RUN.c.state.in_(ACTIVE_STATES), MESSAGE.c.id.is_not(None)))
    )
    return Snapshot(
        conversation_id=conversation_id,
        version=head.version,
        agent=head.agent,
        tenant=head.tenant,
        messages=tuple(messages),
        runs=tuple(run_record(row) for row in in_queue_order(fetch(connection, runs, RunRow))),
    )


def load_run(connection: Connection, conversation_id: str, run_id: str, tenant: str | None) -> RunView | None:
    """Return a run at the conversation's version, with its answer once it has ended."""
    head = find_visible(connection, conversation_id, tenant)
    row = find_row(connection, RunRow, conversation_id, run_id)
    if head is None or row is None:
        return None
    run = run_record(row)
    ended = not run.state.is_active
    answers = load_messages(connection, conversation_id, [run.assistant_message_id]) if ended else {}
    answer = None if run.absorbed_into_run_id is not None else answers.get(run.assistant_message_id)
    return RunView(
        conversation_id=conversation_id,
        snapshot_version=head.version,
        run=run,
        assistant=None if answer is None else answer.message,
    )


_STATE = Prepared(
    select(RUN.c.state).where(RUN.c.conversation_id == bindparam("conversation_id"), RUN.c.id == bindparam("run"))
)


def is_active(connection: Connection, conversation_id: str, run_id: str) -> bool:
    """Whether a conversation has a run that has not ended."""
    return _STATE.scalar(connection, {"conversation_id": conversation_id, "run": run_id}) in ACTIVE_STATES


def load_model(connection: Connection, conversation_id: str, tenant: str | None) -> str | None:
    """Return the key of the model that the conversation chose, if it chose one."""
    head = find_visible(connection, conversation_id, tenant)
    return None if head is None else head.model


def list_active_runs(connection: Connection, conversation_id: str, tenant: str | None) -> tuple[Run, ...]:
    """Return the active runs in queue order."""
    if find_visible(connection, conversation_id, tenant) is None:
        return ()
    return tuple(run_record(row) for row in active_runs(connection, conversation_id))


def list_messages(
    connection: Connection,
    conversation_id: str,
    limit: int,
    cursor: str | None,
    include_compacted: bool,
    tenant: str | None,
) -> MessagePage:
    """Return a page of messages in causal order."""
    query = select(MESSAGE.c.id, MESSAGE.c.position, MESSAGE.c.place).where(
        MESSAGE.c.conversation_id == conversation_id
    )
    if cursor is not None:
        behind = read_cursor("messages", cursor, int, int)
        query = query.where(tuple_(MESSAGE.c.position, MESSAGE.c.place) > behind)
    if not include_compacted:
        query = query.where(MESSAGE.c.compacted.is_(False))
    query = query.order_by(MESSAGE.c.position, MESSAGE.c.place).limit(check_limit(limit) + 1)
    if find_visible(connection, conversation_id, tenant) is None:
        return MessagePage(items=())
    rows = connection.execute(query).all()
    page = rows[:limit]
    stored = load_messages(connection, conversation_id, [row.id for row in page])
    after = write_cursor("messages", page[-1].position, page[-1].place) if len(rows) > limit else None
    return MessagePage(items=tuple(stored[row.id].message for row in page), next_cursor=after)


def list_runs(
    connection: Connection, conversation_id: str, limit: int, cursor: str | None, tenant: str | None
) -> tuple[tuple[Run, ...], str | None]:
    """Return a page of runs in the order of their admission."""
    query = select(RUN).where(RUN.c.conversation_id == conversation_id)
    if cursor is not None:
        query = query.where(RUN.c.admission_order > read_cursor("runs", cursor, int)[0])
    query = query.order_by(RUN.c.admission_order).limit(check_limit(limit) + 1)
    if find_visible(connection, conversation_id, tenant) is None:
        return (), None
    rows = fetch(connection, query, RunRow)
    page = rows[:limit]
    after = write_cursor("runs", page[-1].admission_order) if len(rows) > limit else None
    return tuple(run_record(row) for row in page), after


def find_receipts(connection: Connection, conversation_id: str, keys: Sequence[str]) -> dict[str, StoredReceipt]:
    """Return the receipts that exist among `keys`."""
    found: dict[str, StoredReceipt] = {}
    for chunk in chunks(keys):
        where = (ADMISSION.c.conversation_id == conversation_id, ADMISSION.c.idempotency_key.in_(chunk))
        for row in connection.execute(select(ADMISSION).where(*where)):
            receipt = Receipt(
                conversation_id=conversation_id,
                idempotency_key=row.idempotency_key,
                content_digest=row.content_digest,
                input_message_id=row.input_message_id,
                run_id=row.run_id,
                assistant_message_id=row.assistant_message_id,
                policy=Policy(row.policy),
            )
            found[row.idempotency_key] = StoredReceipt(receipt=receipt, version=row.version)
    return found


def find_collisions(connection: Connection, conversation_id: str, ids: Sequence[str]) -> frozenset[str]:
    """Return those of `ids` that a message, a run or a reserved answer of the conversation has."""
    taken: set[str] = set()
    for chunk in chunks(ids):
        for column in (MESSAGE.c.id, RUN.c.id, RUN.c.assistant_message_id):
            where = (column.table.c.conversation_id == conversation_id, column.in_(chunk))
            taken.update(connection.execute(select(column).where(*where)).scalars())
    return frozenset(taken)
