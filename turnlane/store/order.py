"""The causal order of messages: `position`, then `place`.

A queued run's inputs stand together at one pending position, far behind everything that was said:
urgent runs before ordinary ones, then by admission. When the run starts, its whole block moves to the
next real position with a single update. Inside a block, inputs stand a stride apart, so that a summary
fits right behind the last message that it replaces.
"""

from __future__ import annotations

from sqlalchemy import bindparam, select, update

from turnlane.records.errors import StoreIntegrityError
from turnlane.store.prepared import Prepared
from turnlane.store.rows import load_ids
from turnlane.store.tables import MESSAGE, RunRow
from turnlane.store.work import Work

URGENT = 10**15
ORDINARY = 2 * 10**15
STRIDE = 2**20

_MOVE_BLOCK = Prepared(
    update(MESSAGE).where(
        MESSAGE.c.conversation_id == bindparam("in_conversation"), MESSAGE.c.position == bindparam("from_position")
    ),
    ["position"],
)


def block_of(work: Work, run: RunRow) -> int:
    """Return the position that a run's inputs share."""
    if run.execution_sequence is None and run.terminal_reason is None:
        return (ORDINARY if run.queue_priority is None else URGENT) + run.admission_order
    first = load_ids(run.input_ids)[0]
    where = (MESSAGE.c.conversation_id == work.conversation_id, MESSAGE.c.id == first)
    position = work.connection.execute(select(MESSAGE.c.position).where(*where)).scalar()
    if position is None:
        raise StoreIntegrityError("a run's input is missing", run_id=run.id, message_id=first)
    return int(position)


def move_block(work: Work, run: RunRow) -> None:
    """Move a run's inputs, and summaries that stand among them, to the next position."""
    places = {"in_conversation": work.conversation_id, "from_position": block_of(work, run)}
    _MOVE_BLOCK.change(work.connection, {**places, "position": work.take_position()})
