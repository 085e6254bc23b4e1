"""Message content: segments read back into messages, one query for any number of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Select, and_, bindparam, select

from turnlane.records.messages import Message, Part
from turnlane.store.prepared import Prepared
from turnlane.store.rows import load_parts, message_record
from turnlane.store.statements import chunks
from turnlane.store.tables import MESSAGE, SEGMENT, MessageRow

CONTENT = "content"
MODEL = "model"
CALL = "call"
CONTROL = "control"

CONTROL_STEP = 2**31 - 1
"""The step of a control part: behind every other."""

CALLS_OF_STEP = (
    SEGMENT.c.conversation_id == bindparam("conversation_id"),
    SEGMENT.c.message_id == bindparam("message_id"),
    SEGMENT.c.step == bindparam("step"),
    SEGMENT.c.kind == CALL,
)
"""The segments of the calls that one step asked for: given conversation, message and step."""


class Segment(NamedTuple):
    """One piece of content. `parts` is None on a call that has no result yet."""

    step: int
    slot: int
    kind: str
    call_id: str | None
    parts: tuple[Part, ...] | None


class StoredMessage(NamedTuple):
    """A message's row and its pieces in order."""

    row: MessageRow
    segments: tuple[Segment, ...]

    @property
    def message(self) -> Message:
        """The message: step by step the model's parts, then the calls' results, then the control part."""
        return message_record(self.row, tuple(part for piece in self.segments for part in piece.parts or ()))


MESSAGE_AND_CONTENT = (
    *MESSAGE.c,
    SEGMENT.c.step,
    SEGMENT.c.slot,
    SEGMENT.c.kind,
    SEGMENT.c.call_id,
    SEGMENT.c.parts,
)


def select_content(*more: Any) -> Select[Any]:
    """Return a select of messages with their segments, in causal order; add conditions to it."""
    return (
        select(*MESSAGE_AND_CONTENT, *more)
        .select_from(MESSAGE)
        .outerjoin(
            SEGMENT,
            and_(SEGMENT.c.conversation_id == MESSAGE.c.conversation_id, SEGMENT.c.message_id == MESSAGE.c.id),
        )
        .order_by(MESSAGE.c.position, MESSAGE.c.place, SEGMENT.c.step, SEGMENT.c.slot)
    )


def gather(rows: Iterable[Any]) -> list[StoredMessage]:
    """Group the rows of `select_content` by message."""
    gathered: dict[str, tuple[Any, list[Segment]]] = {}
    for row in rows:
        _, segments = gathered.setdefault(row.id, (row, []))
        if row.kind is not None:
            parts = None if row.parts is None else load_parts(row.parts)
            segments.append(Segment(row.step, row.slot, row.kind, row.call_id, parts))
    return [StoredMessage(cast(MessageRow, row), tuple(pieces)) for row, pieces in gathered.values()]


_OF_CONVERSATION = select_content().where(MESSAGE.c.conversation_id == bindparam("conversation_id"))
_ONE = Prepared(_OF_CONVERSATION.where(MESSAGE.c.id == bindparam("name")))
_SOME = _OF_CONVERSATION.where(MESSAGE.c.id.in_(bindparam("names", expanding=True)))


def load_messages(connection: Connection, conversation_id: str, ids: Sequence[str]) -> dict[str, StoredMessage]:
    """Return the messages that exist among `ids`."""
    if len(ids) == 1:
        # The usual case has a statement of its own: a list's is put together anew at each use.
        one = _ONE.all(connection, {"conversation_id": conversation_id, "name": ids[0]})
        return {stored.row.id: stored for stored in gather(one)}
    found: dict[str, StoredMessage] = {}
    for chunk in chunks(ids):
        where = {"conversation_id": conversation_id, "names": chunk}
        found |= {stored.row.id: stored for stored in gather(connection.execute(_SOME, where))}
    return found
