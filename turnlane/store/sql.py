"""The store on SQL: the protocol's methods, each one transaction. `open_store` is the way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from sqlalchemy.engine import URL

from turnlane.records.admissions import BlobRef
from turnlane.records.approvals import CallOrigin, PendingApproval, RunAnswers, StoredApproval
from turnlane.records.base import JsonObject
from turnlane.records.durable import Delivery, DurableEntry, SuspendedCall
from turnlane.records.events import DurableEvent
from turnlane.records.lane import LaneRun
from turnlane.records.ledger import LedgerEvent, LedgerPage
from turnlane.records.messages import Part, ToolResultPart
from turnlane.records.mutations import CommitBatch
from turnlane.records.runs import Operation, Run, RunView, Snapshot
from turnlane.records.spending import ConversationSpend
from turnlane.records.steps import Fence
from turnlane.store import (
    approvals,
    blobs,
    calls,
    commit,
    compacting,
    curate,
    durable,
    entries,
    fenced,
    head,
    history,
    ledger,
    lists,
    reads,
    spending,
    work,
)
from turnlane.store.database import Database, connect
from turnlane.store.opening import bring_up
from turnlane.store.payloads import (
    CallStart,
    Committed,
    CompactionFinish,
    CompactionStart,
    ConversationPage,
    HistoryMessage,
    MessagePage,
    NewEvent,
    OpenedLane,
    RecoverablePage,
    RunContext,
    Spill,
    StepFinish,
    StepStart,
    StoredBlob,
    StoredReceipt,
    Written,
)
from turnlane.store.sql_archives import SqlArchives
from turnlane.store.urls import store_url

Clock = Callable[[], datetime]


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def open_store(url_or_path: str | URL, *, busy_seconds: float = 5.0, clock: Clock = _utc_now) -> SqlStore:
    """Open a store, creating or migrating its schema: a `postgresql://` URL, the path of a SQLite file, or `:memory:`.

    `busy_seconds` bounds the wait for another process's write; then the call raises
    `StoreUnavailableError`. A schema that this release does not know raises `StoreSchemaError`.
    """
    database = connect(store_url(url_or_path), busy_seconds)
    try:
        await bring_up(database, busy_seconds)
    except BaseException:
        await database.close()
        raise
    return SqlStore(database, clock)


class SqlStore(SqlArchives):
    """A `Store` on SQLite or PostgreSQL. Safe to share by all tasks of a process; other processes may open the same."""

    def __init__(self, database: Database, clock: Clock = _utc_now) -> None:
        self._database = database
        self._clock = clock

    async def close(self) -> None:
        """Release the connections. Calls after this fail."""
        await self._database.close()

    # --- lanes ----------------------------------------------------------------------------------

    async def open_lane(self, conversation_id: str, owner: str, carried_epoch: int | None) -> OpenedLane:
        return await self._database.write(
            lambda connection: head.open_lane(connection, conversation_id, owner, carried_epoch, self._clock()),
            brief=True,
        )

    async def load_queue(self, conversation_id: str, after_run_id: str) -> tuple[tuple[LaneRun, ...], bool]:
        return await self._database.read(lambda connection: head.load_queue(connection, conversation_id, after_run_id))

    async def find_receipts(self, conversation_id: str, keys: Sequence[str]) -> dict[str, StoredReceipt]:
        return await self._database.read(lambda connection: reads.find_receipts(connection, conversation_id, keys))

    async def find_collisions(self, conversation_id: str, ids: Sequence[str]) -> frozenset[str]:
        return await self._database.read(lambda connection: reads.find_collisions(connection, conversation_id, ids))

    async def is_purged(self, conversation_id: str) -> bool:
        return await self._database.read(lambda connection: work.is_purged(connection, conversation_id))

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        return await self._database.write(
            lambda connection: commit.commit(connection, batch, now), brief=commit.is_brief(batch)
        )

    # --- fenced writes --------------------------------------------------------------------------

    async def begin_step(self, start: StepStart, now: datetime) -> Written:
        return await self._database.write(
            lambda connection: fenced.begin_step(connection, start, now), brief=start.seed is None
        )

    async def checkpoint(
        self,
        fence: Fence,
        assistant_message_id: str,
        parts: Sequence[Part],
        operation: Operation | None,
        now: datetime,
    ) -> Written:
        return await self._database.write(
            lambda connection: fenced.checkpoint(connection, fence, assistant_message_id, parts, operation, now)
        )

    async def finish_step(self, finish: StepFinish, now: datetime) -> Written:
        return await self._database.write(
            lambda connection: fenced.finish_step(connection, finish, now), brief=fenced.is_brief(finish)
        )

    async def find_settled(self, fence: Fence, assistant_message_id: str) -> Written | None:
        return await self._database.read(
            lambda connection: fenced.find_settled(connection, fence, assistant_message_id)
        )

    async def begin_compaction(self, start: CompactionStart, now: datetime) -> Written:
        return await self._database.write(lambda connection: compacting.begin_compaction(connection, start, now))

    async def finish_compaction(self, finish: CompactionFinish, now: datetime) -> Written:
        return await self._database.write(lambda connection: compacting.finish_compaction(connection, finish, now))

    async def last_input_tokens(self, conversation_id: str) -> int | None:
        return await self._database.read(lambda connection: compacting.last_input_tokens(connection, conversation_id))

    async def begin_call(
        self,
        fence: Fence,
        assistant_message_id: str,
        slot: int,
        now: datetime,
        *,
        durable: SuspendedCall | None = None,
        origin: CallOrigin | None = None,
    ) -> CallStart:
        return await self._database.write(
            lambda connection: calls.begin_call(connection, fence, assistant_message_id, slot, now, durable, origin)
        )

    async def finish_call(
        self,
        fence: Fence,
        assistant_message_id: str,
        slot: int,
        result: ToolResultPart,
        now: datetime,
        *,
        spill: Spill | None = None,
        origin: CallOrigin | None = None,
    ) -> Written:
        return await self._database.write(
            lambda connection: calls.finish_call(
                connection, fence, assistant_message_id, slot, result, now, spill, origin
            )
        )

    async def suspend_call(self, fence: Fence, assistant_message_id: str, call: SuspendedCall, now: datetime) -> None:
        await self._database.write(
            lambda connection: calls.suspend_call(connection, fence, assistant_message_id, call, now)
        )

    # --- durable tool bodies --------------------------------------------------------------------

    async def load_entries(self, conversation_id: str, scope: str) -> tuple[DurableEntry, ...]:
        return await self._database.read(lambda connection: entries.load_entries(connection, conversation_id, scope))

    async def record_entry(
        self,
        fence: Fence,
        assistant_message_id: str,
        scope: str,
        entry: DurableEntry,
        event: NewEvent,
        now: datetime,
        *,
        instead_of: str | None = None,
    ) -> DurableEntry:
        return await self._database.write(
            lambda connection: durable.record_entry(
                connection, fence, assistant_message_id, scope, entry, event, now, instead_of
            )
        )

    async def deliver(self, conversation_id: str, delivery: Delivery, now: datetime) -> bool:
        return await self._database.write(
            lambda connection: durable.deliver(connection, conversation_id, delivery, now)
        )

    async def find_delivery(self, conversation_id: str, key: str) -> DurableEntry | None:
        return await self._database.read(lambda connection: durable.find_delivery(connection, conversation_id, key))

    # --- what a step needs ----------------------------------------------------------------------

    async def load_run_context(self, conversation_id: str, run_id: str) -> RunContext | None:
        return await self._database.read(
            lambda connection: history.load_run_context(connection, conversation_id, run_id)
        )

    async def load_answer(self, conversation_id: str, run_id: str) -> HistoryMessage | None:
        return await self._database.read(lambda connection: history.load_answer(connection, conversation_id, run_id))

    async def load_history(self, conversation_id: str, run_id: str, extra: Sequence[str]) -> tuple[HistoryMessage, ...]:
        return await self._database.read(
            lambda connection: history.load_history(connection, conversation_id, run_id, extra), brief=True
        )

    async def find_approvals(self, conversation_id: str, ids: Sequence[str]) -> dict[str, StoredApproval]:
        return await self._database.read(lambda connection: approvals.find_approvals(connection, conversation_id, ids))

    async def load_answers(self, conversation_id: str, run_id: str) -> RunAnswers:
        return await self._database.read(
            lambda connection: approvals.load_answers(connection, conversation_id, run_id, self._clock())
        )

    async def is_seeded(self, conversation_id: str, seed_key: str) -> bool:
        return await self._database.read(lambda connection: curate.is_seeded(connection, conversation_id, seed_key))

    async def put_blob(self, conversation_id: str, data: bytes, media_type: str, now: datetime) -> BlobRef:
        return await self._database.write(
            lambda connection: blobs.put_blob(connection, conversation_id, data, media_type, now)
        )

    async def get_blob(self, conversation_id: str, blob_id: str, *, tenant: str | None = None) -> bytes | None:
        return await self._database.read(
            lambda connection: blobs.get_blob(connection, conversation_id, blob_id, tenant)
        )

    async def find_blobs(self, conversation_id: str, blob_ids: Sequence[str]) -> dict[str, StoredBlob]:
        return await self._database.read(lambda connection: blobs.find_blobs(connection, conversation_id, blob_ids))

    async def append_event(
        self, conversation_id: str, kind: str, payload: JsonObject, now: datetime, key: str | None = None
    ) -> LedgerEvent:
        return await self._database.write(
            lambda connection: ledger.append_event(connection, conversation_id, kind, payload, now, key)
        )

    # --- reads ----------------------------------------------------------------------------------

    async def load_snapshot(self, conversation_id: str, *, tenant: str | None = None) -> Snapshot:
        return await self._database.read(lambda connection: reads.load_snapshot(connection, conversation_id, tenant))

    async def load_run(self, conversation_id: str, run_id: str, *, tenant: str | None = None) -> RunView | None:
        return await self._database.read(
            lambda connection: reads.load_run(connection, conversation_id, run_id, tenant), brief=True
        )

    async def is_active(self, conversation_id: str, run_id: str) -> bool:
        return await self._database.read(
            lambda connection: reads.is_active(connection, conversation_id, run_id), brief=True
        )

    async def load_model(self, conversation_id: str, *, tenant: str | None = None) -> str | None:
        return await self._database.read(lambda connection: reads.load_model(connection, conversation_id, tenant))

    async def list_active_runs(self, conversation_id: str, *, tenant: str | None = None) -> tuple[Run, ...]:
        return await self._database.read(lambda connection: reads.list_active_runs(connection, conversation_id, tenant))

    async def list_messages(
        self,
        conversation_id: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        include_compacted: bool = False,
        tenant: str | None = None,
    ) -> MessagePage:
        return await self._database.read(
            lambda connection: reads.list_messages(
                connection, conversation_id, limit, cursor, include_compacted, tenant
            )
        )

    async def pending_approvals(
        self, conversation_id: str | None = None, *, limit: int = 100, tenant: str | None = None
    ) -> tuple[PendingApproval, ...]:
        return await self._database.read(
            lambda connection: approvals.pending_approvals(connection, conversation_id, self._clock(), limit, tenant)
        )

    async def list_runs(
        self, conversation_id: str, *, limit: int = 100, cursor: str | None = None, tenant: str | None = None
    ) -> tuple[tuple[Run, ...], str | None]:
        return await self._database.read(
            lambda connection: reads.list_runs(connection, conversation_id, limit, cursor, tenant)
        )

    async def conversation_spend(self, conversation_id: str, *, tenant: str | None = None) -> ConversationSpend:
        return await self._database.read(
            lambda connection: spending.conversation_spend(connection, conversation_id, tenant)
        )

    async def list_conversations(
        self, *, limit: int = 100, cursor: str | None = None, tenant: str | None = None
    ) -> ConversationPage:
        return await self._database.read(lambda connection: lists.list_conversations(connection, limit, cursor, tenant))

    async def scan_recoverable(self, *, limit: int = 100, cursor: str | None = None) -> RecoverablePage:
        return await self._database.read(lambda connection: lists.scan_recoverable(connection, limit, cursor))

    async def read_events(
        self,
        conversation_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        limit: int = 1000,
        tenant: str | None = None,
        kinds: Sequence[str] | None = None,
    ) -> LedgerPage:
        return await self._database.read(
            lambda connection: ledger.read_events(connection, conversation_id, from_seq, to_seq, limit, tenant, kinds)
        )

    async def find_event(self, conversation_id: str, kind: str, key: str) -> LedgerEvent | None:
        return await self._database.read(lambda connection: ledger.find_event(connection, conversation_id, kind, key))

    async def last_seq(self, conversation_id: str, *, tenant: str | None = None) -> int:
        return await self._database.read(lambda connection: ledger.last_seq(connection, conversation_id, tenant))

    async def seq_before_version(self, conversation_id: str, version: int, *, tenant: str | None = None) -> int:
        return await self._database.read(
            lambda connection: ledger.seq_before_version(connection, conversation_id, version, tenant)
        )

    async def events_since(
        self, conversation_id: str, seq: int, *, limit: int = 200, tenant: str | None = None
    ) -> tuple[tuple[DurableEvent, ...], int]:
        return await self._database.read(
            lambda connection: ledger.events_since(connection, conversation_id, seq, limit, tenant)
        )
