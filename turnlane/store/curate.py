"""Effects on the history itself: a range becomes a summary, seeds are planted, a conversation is purged."""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError
from sqlalchemy import Connection, delete, func, select, tuple_, update

from turnlane.records.compaction import CompactedRange
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import MessageStatus, Role
from turnlane.records.mutations import ChooseModel, CompactRange, MutationKind, SeedInputs
from turnlane.records.runs import ACTIVE_STATES
from turnlane.records.turns import Seed
from turnlane.store.describe import describe_effect
from turnlane.store.effects import Change, insert_message, take_blob
from turnlane.store.rows import dump_ids, select_active
from turnlane.store.statements import chunks, insert_rows, new_row
from turnlane.store.tables import CONVERSATION, MESSAGE, OWNED, RUN, SEED, SeedRow
from turnlane.store.work import Work


def compact(work: Work, effect: CompactRange, at: datetime) -> Change:
    """Mark messages as compacted; the summary stands right behind the last of them."""
    effect = _with_content(work, effect)
    summary = effect.summary
    if summary.role is not Role.SUMMARY or summary.status is not MessageStatus.COMMITTED:
        raise StoreIntegrityError("a summary is a committed summary message", message_id=summary.id)
    ids = list(dict.fromkeys(effect.message_ids))
    _refuse_active_answers(work, ids, summary.id)
    position, place = _range_end(work, ids)
    for chunk in chunks(ids):
        where = (MESSAGE.c.conversation_id == work.conversation_id, MESSAGE.c.id.in_(chunk))
        work.connection.execute(update(MESSAGE).where(*where).values(compacted=True))
    insert_message(work, summary, position, place + 1, None)
    return Change((), (), describe_effect(effect))


def _with_content(work: Work, effect: CompactRange) -> CompactRange:
    """The effect with the ids and the summary's content that came in a blob."""
    if effect.blob is None:
        return effect
    try:
        content = CompactedRange.model_validate_json(take_blob(work, effect.blob))
    except ValidationError:
        raise StoreIntegrityError("a blob does not hold a compacted range", blob_id=effect.blob.id) from None
    summary = effect.summary.model_copy(update={"parts": content.parts, "metadata": content.metadata})
    return effect.model_copy(update={"message_ids": content.message_ids, "summary": summary})


def _range_end(work: Work, ids: list[str]) -> tuple[int, int]:
    """Return where the last of the messages stands, having checked that they are one unbroken range."""
    here = (MESSAGE.c.conversation_id == work.conversation_id, MESSAGE.c.compacted.is_(False))
    stands = tuple_(MESSAGE.c.position, MESSAGE.c.place)
    query = select(MESSAGE.c.position, MESSAGE.c.place).where(*here)
    found = sorted(
        (row.position, row.place)
        for chunk in chunks(ids)
        for row in work.connection.execute(query.where(MESSAGE.c.id.in_(chunk)))
    )
    if not found or len(found) != len(ids):
        raise StoreIntegrityError("a message to compact is not in the active history", messages=len(ids))
    between = select(func.count()).select_from(MESSAGE).where(*here, stands >= found[0], stands <= found[-1])
    if work.connection.execute(between).scalar_one() != len(ids):
        raise StoreIntegrityError("the messages to compact are not one unbroken range", messages=len(ids))
    return found[-1]


def _refuse_active_answers(work: Work, ids: list[str], summary_id: str) -> None:
    """Refuse to replace a running answer, and a summary whose id is reserved for an answer."""
    work.flush_runs()
    answers = select(RUN.c.id, RUN.c.state, RUN.c.assistant_message_id)
    answers = answers.where(RUN.c.conversation_id == work.conversation_id)
    for chunk in chunks([*ids, summary_id]):
        for row in work.connection.execute(answers.where(RUN.c.assistant_message_id.in_(chunk))):
            if row.assistant_message_id == summary_id or row.state in ACTIVE_STATES:
                raise StoreIntegrityError("an id to compact belongs to an answer in use", run_id=row.id)


def is_seeded(connection: Connection, conversation_id: str, seed_key: str) -> bool:
    """Whether there is a receipt of the seed."""
    receipt = select(SEED.c.seed_key).where(SEED.c.conversation_id == conversation_id, SEED.c.seed_key == seed_key)
    return connection.execute(receipt).first() is not None


def seed(work: Work, effect: SeedInputs, at: datetime) -> Change | None:
    """Prepend messages once under a key; None when there is nothing to do any more.

    The version moves only if messages are written. Some but not all of them being there is an
    integrity error: only the caller can tell which ones it meant.
    """
    here = work.conversation_id
    if is_seeded(work.connection, here, effect.seed_key):
        return None
    ids = [message.id for message in effect.messages]
    query = select(func.count()).select_from(MESSAGE).where(MESSAGE.c.conversation_id == here)
    counts = (work.connection.execute(query.where(MESSAGE.c.id.in_(chunk))).scalar_one() for chunk in chunks(ids))
    present = sum(counts)
    if present not in (0, len(ids)):
        raise StoreIntegrityError("a seed is there in part", seed_key=effect.seed_key)
    if any(message.role is not Role.USER for message in effect.messages):
        raise StoreIntegrityError("a seed holds user messages only", seed_key=effect.seed_key)
    row = new_row(SeedRow, conversation_id=here, seed_key=effect.seed_key, message_ids=dump_ids(ids), created_at=at)
    insert_rows(work.connection, SeedRow, row)
    return None if present else _plant(work, effect)


def plant(work: Work, given: Seed, at: datetime) -> None:
    """Plant a seed within another write, with a transition of its own in the ledger if messages are written."""
    change = seed(work, SeedInputs(seed_key=given.seed_key, messages=given.messages), at)
    if change is not None:
        work.record(LedgerKind.TRANSITION, at, {"type": MutationKind.SEED.value, "effect": change.described})


def _plant(work: Work, effect: SeedInputs) -> Change:
    work.advance()
    work.head.first_position -= len(effect.messages)
    for offset, message in enumerate(effect.messages):
        insert_message(work, message, work.head.first_position + offset, 0, None)
    return Change((), (), describe_effect(effect))


def choose_model(work: Work, effect: ChooseModel) -> Change:
    """Keep the key of the model for the runs to come."""
    work.head.model = effect.model
    return Change((), (), describe_effect(effect))


def erase(work: Work) -> None:
    """Delete everything of the conversation. The caller leaves the tombstone."""
    work.flush_runs()
    active = select_active(RUN.c.conversation_id == work.conversation_id).limit(1)
    if work.connection.execute(active).first() is not None:
        raise StoreIntegrityError(
            "a conversation with active runs cannot be purged", conversation_id=work.conversation_id
        )
    for table in OWNED:
        work.connection.execute(delete(table).where(table.c.conversation_id == work.conversation_id))
    work.connection.execute(delete(CONVERSATION).where(CONVERSATION.c.id == work.conversation_id))
