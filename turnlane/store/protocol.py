"""What turnlane asks of a store. SQL comes with the package; others may bring their own.

Every method raises `StoreUnavailableError` when the database does not answer or is locked beyond the
busy timeout, and may then be called again with the same arguments. Every write method is one
transaction: applied whole or not at all, and safe to repeat with the same arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from turnlane.records.admissions import BlobRef
from turnlane.records.approvals import CallOrigin, PendingApproval, RunAnswers, StoredApproval
from turnlane.records.base import JsonObject, Timestamp
from turnlane.records.durable import Delivery, DurableEntry, SuspendedCall
from turnlane.records.events import DurableEvent
from turnlane.records.lane import LaneRun
from turnlane.records.ledger import LedgerEvent, LedgerPage
from turnlane.records.messages import Part, ToolResultPart
from turnlane.records.mutations import CommitBatch
from turnlane.records.runs import Operation, Run, RunView, Snapshot
from turnlane.records.spending import ConversationSpend
from turnlane.records.steps import Fence
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

if TYPE_CHECKING:
    from turnlane.records.archives import Branched, BranchRequest, Imported


class LaneStore(Protocol):
    """The writes: what lanes and their activities do."""

    async def open_lane(self, conversation_id: str, owner: str, carried_epoch: int | None) -> OpenedLane:
        """Take the next epoch for `owner` and load the head.

        The same owner asking again gets the epoch it has. With `carried_epoch` another value in force
        answers `epoch=None` and writes nothing. A purged conversation answers a head with `purged` set,
        and writes nothing. The head holds the active runs in queue order (`more` tells of the rest) and the last
        512 receipts within 48 KiB (`receipts_complete` says whether those are all), all of the answer
        within 112 KiB.
        An unknown conversation gets its epoch and stays unknown to every read until something is committed.
        """
        ...

    async def load_queue(self, conversation_id: str, after_run_id: str) -> tuple[tuple[LaneRun, ...], bool]:
        """Load the active runs behind `after_run_id` in queue order, within 48 KiB, and whether more remain."""
        ...

    async def find_receipts(self, conversation_id: str, keys: Sequence[str]) -> dict[str, StoredReceipt]:
        """Return the receipts that exist among `keys`."""
        ...

    async def find_collisions(self, conversation_id: str, ids: Sequence[str]) -> frozenset[str]:
        """Return those of `ids` that a message, a run or a reserved answer of the conversation has."""
        ...

    async def is_purged(self, conversation_id: str) -> bool:
        """Whether the conversation left a tombstone."""
        ...

    async def commit(self, batch: CommitBatch, now: Timestamp) -> Committed:
        """Apply mutations in one transaction and answer where each landed.

        Mutations with a seq the store has seen are answered from the ledger as the first time if their
        digest is the same, else the outcome is `diverged` and nothing is written. A wrong epoch is
        `superseded`, a tombstone `purged`; both write nothing. A mutation that would break an invariant
        raises `StoreIntegrityError`. `now` is the store's clock for `updated_at`; mutations carry their own.
        """
        ...

    async def begin_step(self, start: StepStart, now: Timestamp) -> Written:
        """Record, before the provider is called, that this attempt of this step calls it, and keep what it brings.

        Clears what an earlier attempt of the step left in the draft. An earlier attempt that never
        finished counts as spend that nobody reported. Raises `StaleFenceError` unless the run is running
        under this epoch and token and no later attempt began.
        """
        ...

    async def checkpoint(
        self,
        fence: Fence,
        assistant_message_id: str,
        parts: Sequence[Part],
        operation: Operation | None,
        now: Timestamp,
    ) -> Written:
        """Replace the draft of this step.

        Raises `StaleFenceError` unless the run is running and this attempt is the current one.
        """
        ...

    async def finish_step(self, finish: StepFinish, now: Timestamp) -> Written:
        """Store the step's output, calls, usage and response identity.

        Like `checkpoint`, but allowed while an interrupt is requested. Repeating it changes nothing. With `settles`
        the run ends in the same transaction, unless an interrupt is requested: see `Written.settled`. What a
        lane then commits about the run changes nothing.
        """
        ...

    async def find_settled(self, fence: Fence, assistant_message_id: str) -> Written | None:
        """Return where the end of a run landed, with its event, if a step wrote it: this one, in any attempt."""
        ...

    async def begin_compaction(self, start: CompactionStart, now: Timestamp) -> Written:
        """Record, before anybody is asked for a summary, that this attempt at a compaction begins.

        Raises `StaleFenceError` unless the run is running under this epoch and token and has begun no step.
        """
        ...

    async def finish_compaction(self, finish: CompactionFinish, now: Timestamp) -> Written:
        """Store how the attempt ended and count what it spent, once. Also while an interrupt is requested."""
        ...

    async def last_input_tokens(self, conversation_id: str) -> int | None:
        """Return what the last model call took in, as its provider reported it; None if that is not known, or
        the conversation was compacted since."""
        ...

    async def begin_call(
        self,
        fence: Fence,
        assistant_message_id: str,
        slot: int,
        now: Timestamp,
        *,
        durable: SuspendedCall | None = None,
        origin: CallOrigin | None = None,
    ) -> CallStart:
        """Check the fence before a tool's effect and mark the call as begun.

        With `durable` the call may be run again from what it records, also after its lane was lost; one that
        was suspended does not count as begun before. Raises `StaleFenceError`, with reason `run-interrupted`
        when an interrupt is requested. With `origin` the call is one of an earlier run's, at `slot` there; the
        fence is the run's that acts on its approval. A call that is not approved raises `StoreIntegrityError`.
        """
        ...

    async def finish_call(
        self,
        fence: Fence,
        assistant_message_id: str,
        slot: int,
        result: ToolResultPart,
        now: Timestamp,
        *,
        spill: Spill | None = None,
        origin: CallOrigin | None = None,
    ) -> Written:
        """Accept a call's result, once: the first result stands, and only its spill is kept.

        Fence and `origin` as in `begin_call`; a call that was denied takes no success. Watchers are told the
        draft as it stands, though not for each of many results.
        """
        ...

    async def suspend_call(self, fence: Fence, assistant_message_id: str, call: SuspendedCall, now: Timestamp) -> None:
        """Note that a durable call waits without a worker. Fence as in `begin_call`."""
        ...

    async def load_entries(self, conversation_id: str, scope: str) -> tuple[DurableEntry, ...]:
        """Load what a tool call recorded, as it was written."""
        ...

    async def record_entry(
        self,
        fence: Fence,
        assistant_message_id: str,
        scope: str,
        entry: DurableEntry,
        event: NewEvent,
        now: Timestamp,
        *,
        instead_of: str | None = None,
    ) -> DurableEntry:
        """Record an entry of a tool call with its ledger event, and return the entry that stands: the first.

        `instead_of` names the text of the entry that this one replaces; another one in its place stands.
        Fence as in `begin_call`.
        """
        ...

    async def deliver(self, conversation_id: str, delivery: Delivery, now: Timestamp) -> bool:
        """Keep a delivered event, with its ledger event. False when one with another payload came first."""
        ...

    async def find_delivery(self, conversation_id: str, key: str) -> DurableEntry | None:
        """Return the event that was delivered under a key."""
        ...

    async def load_run_context(self, conversation_id: str, run_id: str) -> RunContext | None:
        """Load a run with its conversation's agent and the context its first input came with."""
        ...

    async def load_history(self, conversation_id: str, run_id: str, extra: Sequence[str]) -> tuple[HistoryMessage, ...]:
        """Load what a run may see, in causal order: everything up to its own assistant message, compacted
        messages left out, then the `extra` inputs (injected ones) in the order given."""
        ...

    async def load_answer(self, conversation_id: str, run_id: str) -> HistoryMessage | None:
        """Load a run's own assistant message with its steps, as far as they are stored; None for an unknown run."""
        ...

    async def find_approvals(self, conversation_id: str, ids: Sequence[str]) -> dict[str, StoredApproval]:
        """Return the approvals that exist among `ids`, however they stand."""
        ...

    async def load_answers(self, conversation_id: str, run_id: str) -> RunAnswers:
        """Return the approval answers among a run's inputs, in order, each with the call that it is about."""
        ...

    async def is_seeded(self, conversation_id: str, seed_key: str) -> bool:
        """Whether a seed of this key was ever planted in the conversation."""
        ...

    async def put_blob(self, conversation_id: str, data: bytes, media_type: str, now: Timestamp) -> BlobRef:
        """Keep content under an id derived from its digest. Refused on a purged conversation."""
        ...

    async def get_blob(self, conversation_id: str, blob_id: str, *, tenant: str | None = None) -> bytes | None:
        """Return a blob's content; with a `tenant`, only of a conversation of its own."""
        ...

    async def find_blobs(self, conversation_id: str, blob_ids: Sequence[str]) -> dict[str, StoredBlob]:
        """Return what is known of those of `blob_ids` that the conversation has, without their content."""
        ...

    async def append_event(
        self, conversation_id: str, kind: str, payload: JsonObject, now: Timestamp, key: str | None = None
    ) -> LedgerEvent:
        """Append a ledger event that changes no record. With `key`, once: a repeat returns the first event."""
        ...


class StoreReads(Protocol):
    """The reads. With `tenant`, a conversation of another tenant answers as an unknown one."""

    async def load_snapshot(self, conversation_id: str, *, tenant: str | None = None) -> Snapshot:
        """Return the conversation as it stands: its messages in causal order and its runs. Empty for an unknown one."""
        ...

    async def load_run(self, conversation_id: str, run_id: str, *, tenant: str | None = None) -> RunView | None:
        """Return one run, with its answer once it has ended."""
        ...

    async def load_model(self, conversation_id: str, *, tenant: str | None = None) -> str | None:
        """Return the key of the model that the conversation chose; None for the agent's own."""
        ...

    async def list_active_runs(self, conversation_id: str, *, tenant: str | None = None) -> tuple[Run, ...]:
        """Return the active runs, in queue order."""
        ...

    async def list_messages(
        self,
        conversation_id: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        include_compacted: bool = False,
        tenant: str | None = None,
    ) -> MessagePage:
        """Return a page of messages in causal order."""
        ...

    async def pending_approvals(
        self, conversation_id: str | None = None, *, limit: int = 100, tenant: str | None = None
    ) -> tuple[PendingApproval, ...]:
        """Return the calls that wait for approval and can be answered, oldest first: of one conversation, or of all.

        A call of a run that has not ended is not among them.
        """
        ...

    async def list_runs(
        self, conversation_id: str, *, limit: int = 100, cursor: str | None = None, tenant: str | None = None
    ) -> tuple[tuple[Run, ...], str | None]:
        """Return a page of runs in the order of their admission, and the cursor of the next one."""
        ...

    async def conversation_spend(self, conversation_id: str, *, tenant: str | None = None) -> ConversationSpend:
        """Return what the conversation's ended runs spent in all, and what the run in flight spent so far."""
        ...

    async def list_conversations(
        self, *, limit: int = 100, cursor: str | None = None, tenant: str | None = None
    ) -> ConversationPage:
        """Return a page of conversations in the order of their creation."""
        ...

    async def scan_recoverable(self, *, limit: int = 100, cursor: str | None = None) -> RecoverablePage:
        """Return a page of the active runs of all conversations; not in queue order."""
        ...

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
        """Return ledger events in order, both bounds included; `next_seq` only if more match. Of some kinds only,
        if any are named."""
        ...

    async def find_event(self, conversation_id: str, kind: str, key: str) -> LedgerEvent | None:
        """Return the event that was appended under a key, if there is one."""
        ...

    async def is_active(self, conversation_id: str, run_id: str) -> bool:
        """Whether the conversation has this run, and it has not ended: all that most who wait for a run must know."""
        ...

    async def last_seq(self, conversation_id: str, *, tenant: str | None = None) -> int:
        """Return the seq of the last ledger event, 0 for none."""
        ...

    async def seq_before_version(self, conversation_id: str, version: int, *, tenant: str | None = None) -> int:
        """Return the seq just before the first ledger event at or after `version`: where to read from to see it."""
        ...

    async def events_since(
        self, conversation_id: str, seq: int, *, limit: int = 200, tenant: str | None = None
    ) -> tuple[tuple[DurableEvent, ...], int]:
        """Return the durable delivery events of the ledger after `seq`, in order, and the last seq read.

        A checkpoint that a later one replaced is left out: only the draft as it stands is told.
        """
        ...


class StoreArchives(Protocol):
    """Whole conversations: as bytes, and copied. With `tenant`, another tenant's answers as an unknown one."""

    async def export_conversation(self, conversation_id: str, *, tenant: str | None = None) -> bytes:
        """Return a conversation as an archive, all of it at one moment; of an unknown one, an empty archive.

        Two exports of a store that nobody writes to are equal byte for byte.
        """
        ...

    async def import_conversation(self, data: bytes, now: Timestamp, *, tenant: str | None = None) -> Imported:
        """Restore an archive's conversation under its own id, all of it or nothing.

        Raises `ArchiveInvalidError` for bytes that are not a whole archive, or are another tenant's,
        `ConversationExistsError` where there is something under the id, and `ConversationPurgedError`.
        Receipts, once-keys and delivered events are as they were: what was admitted is a duplicate again.
        """
        ...

    async def branch_conversation(
        self, request: BranchRequest, now: Timestamp, *, tenant: str | None = None
    ) -> Branched:
        """Make a new conversation that begins with what was said in another one, up to the end of a run, or in all.

        The same request again is answered with the first one's receipt, whatever became of source and copy.
        Nothing is written where it raises: `ConversationNotFoundError`, `RunNotFoundError`,
        `ConversationActiveError` when a run of the part to copy has not ended, `ConversationExistsError`,
        `IdempotencyConflictError`, `ConversationPurgedError`, `ArchiveInvalidError`, and `BranchRefusedError`
        when the application's own data names records of the source.
        """
        ...


class Store(LaneStore, StoreReads, StoreArchives, Protocol):
    """A whole store."""

    async def close(self) -> None:
        """Release the store. Calls that are under way come to their end first."""
        ...
