"""Reads from an application's side: what was said, what runs or waits, what was spent, and what happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from turnlane.client.lane_calls import LaneCalls, NoLane
from turnlane.client.requests import checked_id
from turnlane.client.watching import Watcher
from turnlane.records.approvals import AskedApproval, PendingApproval
from turnlane.records.errors import StoreRequiredError
from turnlane.records.events import Event
from turnlane.records.files import blob_of
from turnlane.records.lane import RunLine
from turnlane.records.ledger import LedgerPage
from turnlane.records.runs import Run, RunView, Snapshot
from turnlane.records.spending import ConversationSpend
from turnlane.store.bus import EventBus
from turnlane.store.payloads import ConversationPage, MessagePage
from turnlane.store.protocol import Store


class Reading:
    """The part of a client that reads.

    All but `lane_runs` and `lane_approvals` needs a store, and raises `StoreRequiredError` without.
    """

    _lanes: LaneCalls
    _store: Store | None
    _bus: EventBus | None

    def _reads_of(self, conversation_id: str) -> Store:
        checked_id("conversation_id", conversation_id)
        return self._reads

    @property
    def _reads(self) -> Store:
        if self._store is None:
            raise StoreRequiredError("this client has no store; give one to Turnlane.connect(store=...)")
        return self._store

    async def snapshot(self, conversation_id: str, *, tenant: str | None = None) -> Snapshot:
        """The conversation as it stands: messages in causal order and their runs."""
        return await self._reads_of(conversation_id).load_snapshot(conversation_id, tenant=tenant)

    async def messages(
        self,
        conversation_id: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        include_compacted: bool = False,
        tenant: str | None = None,
    ) -> MessagePage:
        """A page of messages in causal order."""
        return await self._reads_of(conversation_id).list_messages(
            conversation_id, limit=limit, cursor=cursor, include_compacted=include_compacted, tenant=tenant
        )

    async def read_blob(self, conversation_id: str, reference: str, *, tenant: str | None = None) -> bytes | None:
        """What a reference such as `blob:...` stands for: a file, or all of a tool's output that was cut."""
        reads = self._reads_of(conversation_id)
        return await reads.get_blob(conversation_id, blob_of(reference) or reference, tenant=tenant)

    async def runs(self, conversation_id: str, *, tenant: str | None = None) -> tuple[Run, ...]:
        """The active runs, in queue order."""
        return await self._reads_of(conversation_id).list_active_runs(conversation_id, tenant=tenant)

    async def lane_runs(self, conversation_id: str) -> list[RunLine]:
        """The active runs as the lane itself sees them; needs no store. Empty when no lane runs."""
        try:
            return await self._lanes.query_runs(conversation_id)
        except NoLane:
            return []

    async def pending_approvals(
        self, conversation_id: str | None = None, *, limit: int = 100, tenant: str | None = None
    ) -> tuple[PendingApproval, ...]:
        """The calls that wait for approval and can be answered, oldest first: of a conversation, or of all."""
        if conversation_id is not None:
            checked_id("conversation_id", conversation_id)
        return await self._reads.pending_approvals(conversation_id, limit=limit, tenant=tenant)

    async def lane_approvals(self, conversation_id: str) -> list[AskedApproval]:
        """The latest approvals that wait, as the lane itself sees them; needs no store. Empty when no lane runs."""
        try:
            return await self._lanes.query_approvals(conversation_id)
        except NoLane:
            return []

    async def run(self, conversation_id: str, run_id: str, *, tenant: str | None = None) -> RunView | None:
        """One run, with its answer once it has ended."""
        reads = self._reads_of(conversation_id)
        return await reads.load_run(conversation_id, checked_id("run_id", run_id), tenant=tenant)

    async def spend(self, conversation_id: str, *, tenant: str | None = None) -> ConversationSpend:
        """What the conversation spent: its ended runs in all, and the run in flight so far."""
        return await self._reads_of(conversation_id).conversation_spend(conversation_id, tenant=tenant)

    async def chosen_model(self, conversation_id: str, *, tenant: str | None = None) -> str | None:
        """The key of the model that the conversation chose; None for the agent's own."""
        return await self._reads_of(conversation_id).load_model(conversation_id, tenant=tenant)

    async def conversations(
        self, *, limit: int = 100, cursor: str | None = None, tenant: str | None = None
    ) -> ConversationPage:
        """A page of conversations."""
        return await self._reads.list_conversations(limit=limit, cursor=cursor, tenant=tenant)

    async def events(
        self, conversation_id: str, *, from_seq: int | None = None, tenant: str | None = None
    ) -> AsyncIterator[Event]:
        """Every delivery event of a conversation, for ever: durable ones after `from_seq` (all of them, from
        0; only new ones, without it), transient ones from now on."""
        reads = self._reads_of(conversation_id)

        async def start() -> int:
            return await reads.last_seq(conversation_id) if from_seq is None else from_seq

        async for event in Watcher(reads, self._bus, conversation_id, start, tenant).events():
            yield event

    async def events_from_version(
        self, conversation_id: str, version: int, *, tenant: str | None = None
    ) -> AsyncIterator[Event]:
        """The same, from the event on that made `version`."""
        reads = self._reads_of(conversation_id)

        watcher = Watcher(
            reads, self._bus, conversation_id, lambda: reads.seq_before_version(conversation_id, version), tenant
        )
        async for event in watcher.events():
            yield event

    async def ledger_position(self, conversation_id: str, version: int) -> int:
        """The ledger seq just before the event that made `version`: where to start watching from it."""
        return await self._reads_of(conversation_id).seq_before_version(conversation_id, version)

    async def ledger(
        self,
        conversation_id: str,
        *,
        from_seq: int | None = None,
        limit: int = 1000,
        kinds: Sequence[str] | None = None,
        tenant: str | None = None,
    ) -> LedgerPage:
        """A page of the conversation's ledger from `from_seq` on; of some kinds only, if any are named."""
        return await self._reads_of(conversation_id).read_events(
            conversation_id, from_seq=from_seq, limit=limit, kinds=kinds, tenant=tenant
        )

    async def absorber_of(self, conversation_id: str, run_id: str) -> str | None:
        """The run that absorbed this one, if one did."""
        view = await self._reads_of(conversation_id).load_run(conversation_id, run_id)
        return view.run.absorbed_into_run_id if view is not None else None
