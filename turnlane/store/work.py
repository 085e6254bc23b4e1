"""A unit of work: one write transaction on one conversation, its counters, runs and ledger entries."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import Connection, select

from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.errors import ConversationPurgedError, StoreIntegrityError
from turnlane.records.events import DurableEvent
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import Message
from turnlane.records.runs import LIVE_STATES
from turnlane.records.spending import Tally
from turnlane.store.delivery import Note, Told, dump_notes, make_events
from turnlane.store.holding import has_many_writers, hold_name
from turnlane.store.statements import find_row, insert_rows, new_row, update_row
from turnlane.store.tables import TOMBSTONE, ConversationRow, LedgerRow, RunRow

HELD = "conversation"


def find_conversation(connection: Connection, conversation_id: str) -> ConversationRow | None:
    """Return a conversation's row for writing, also one that only reserves an epoch; None if there is none.

    No other transaction writes to the conversation until this one ends, so this is the first thing a write does.
    """
    row = find_row(connection, ConversationRow, conversation_id, lock=True)
    if row is None and has_many_writers(connection):
        # There is no row to hold. Who waited for another's to come, or for a purge, finds out what became of it.
        hold_name(connection, HELD, conversation_id)
        row = find_row(connection, ConversationRow, conversation_id, lock=True)
    return row


def hold_conversation(connection: Connection, conversation_id: str) -> None:
    """Hold a conversation, whether it exists or not, for a write that needs nothing of its row."""
    if has_many_writers(connection):
        find_conversation(connection, conversation_id)


def is_purged(connection: Connection, conversation_id: str) -> bool:
    """Whether the conversation left a tombstone."""
    statement = select(TOMBSTONE.c.conversation_id).where(TOMBSTONE.c.conversation_id == conversation_id)
    return connection.execute(statement).first() is not None


def refuse_purged(connection: Connection, conversation_id: str) -> None:
    if is_purged(connection, conversation_id):
        raise ConversationPurgedError("the conversation was purged", conversation_id=conversation_id)


def create_conversation(connection: Connection, conversation_id: str, now: datetime) -> ConversationRow:
    """Insert the row of a conversation that has none, unless it was purged."""
    refuse_purged(connection, conversation_id)
    row = new_row(ConversationRow, id=conversation_id, created_at=now, updated_at=now, spent=Tally().model_dump_json())
    insert_rows(connection, ConversationRow, row)
    return row


class Work:
    """What one transaction changes in one conversation, written back by `flush`.

    Runs are read once and kept; ledger entries are collected. So a batch of mutations that touch the
    same run costs one read and one write of it.
    """

    def __init__(self, connection: Connection, head: ConversationRow) -> None:
        self.connection = connection
        self.head = head
        self.conversation_id = head.id
        self._told: list[Told] = []
        self._messages: dict[str, Message] = {}
        self._runs: dict[str, RunRow] = {}
        self._stored: set[str] = set()
        self._touched: dict[str, None] = {}
        self._entries: list[LedgerRow] = []

    def keep(self, run: RunRow) -> RunRow:
        """Take over a run that was read already."""
        self._runs[run.id] = run
        self._stored.add(run.id)
        return run

    def add(self, run: RunRow) -> None:
        """Take a new run, to be inserted."""
        if run.id in self._runs:
            raise StoreIntegrityError("a run with this id exists", run_id=run.id)
        self._runs[run.id] = run
        self._touched[run.id] = None

    def reserves(self, message_id: str) -> bool:
        """Whether a run of this transaction has the id for its answer."""
        return any(run.assistant_message_id == message_id for run in self._runs.values())

    def run(self, run_id: str) -> RunRow:
        """Return a run; one that does not exist is an integrity error, for the lane knows its runs."""
        if run_id not in self._runs:
            row = find_row(self.connection, RunRow, self.conversation_id, run_id)
            if row is None:
                raise StoreIntegrityError("the conversation has no such run", run_id=run_id)
            self.keep(row)
        return self._runs[run_id]

    def touch(self, run: RunRow, at: datetime) -> None:
        """Move a run's revision by one."""
        run.revision += 1
        run.updated_at = at
        self._touched[run.id] = None

    def know(self, message: Message) -> None:
        """Take a message that this transaction inserts whole, so that it is not read to be told."""
        self._messages[message.id] = message

    def take_position(self) -> int:
        """Give the next position in the causal order."""
        position = self.head.next_position
        self.head.next_position += 1
        return position

    def advance(self) -> int:
        """Move the conversation's version by one; the version after it."""
        self.head.version += 1
        return self.head.version

    def record(self, kind: str, at: datetime, payload: JsonObject, *, notes: Sequence[Note] = ()) -> LedgerRow:
        """Append a ledger event under the current version, and tell watchers what `notes` say."""
        self.head.ledger_seq += 1
        entry = new_row(
            LedgerRow,
            conversation_id=self.conversation_id,
            seq=self.head.ledger_seq,
            event_id=f"ev-{uuid.uuid4().hex}",
            version=self.head.version,
            kind=kind,
            occurred_at=at,
            payload=canonical_json(payload),
            ignorable=kind not in KNOWN_KINDS,
            notes=dump_notes(notes),
        )
        self._entries.append(entry)
        self.tell(notes, entry.version, at)
        return entry

    def tell(self, notes: Iterable[Note], version: int, at: datetime) -> None:
        """Tell watchers, once the transaction is through, what `notes` say."""
        self._told.extend(Told(note, version, at) for note in notes)

    def events(self) -> tuple[DurableEvent, ...]:
        """What watchers are told, with messages as they are now; what is written must be flushed."""
        return make_events(self.connection, self.conversation_id, self._told, self._messages)

    def flush(self, now: datetime) -> None:
        """Write runs, ledger entries and counters."""
        self.flush_runs()
        insert_rows(self.connection, LedgerRow, *self._entries)
        self._entries = []
        self.head.updated_at = now
        update_row(self.connection, ConversationRow, self.head)

    def flush_runs(self) -> None:
        """Write the runs touched so far, so that statements see them."""
        # Runs that leave the lane go first: only one live run may be in the table at any moment.
        touched = sorted((self._runs[name] for name in self._touched), key=lambda run: run.state in LIVE_STATES)
        for run in touched:
            if run.id in self._stored:
                update_row(self.connection, RunRow, run)
            else:
                insert_rows(self.connection, RunRow, run)
                self._stored.add(run.id)
        self._touched = {}


KNOWN_KINDS = frozenset(LedgerKind)
