"""What a run may see: the history up to its own answer, with the steps of every answer kept apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from threading import Lock
from typing import Any, cast

from sqlalchemy import Connection, and_, bindparam, or_, select

from turnlane.records.errors import RunNotFoundError
from turnlane.records.messages import Role, ToolResultPart
from turnlane.records.runs import TerminalReason
from turnlane.records.turns import PreparedTurn
from turnlane.store.content import CALL, MODEL, Segment, StoredMessage, gather, load_messages, select_content
from turnlane.store.haste import refuse_long
from turnlane.store.past import pasts_of
from turnlane.store.payloads import HistoryMessage, HistoryStep, RunContext
from turnlane.store.prepared import Prepared
from turnlane.store.rows import load_ids, load_object, run_record
from turnlane.store.tables import CONVERSATION, MESSAGE, RUN, RunRow

SHORT = 512
"""Up to how many messages behind what a process knows of a conversation's past are read in passing."""

REMEMBERED = 4096
REMEMBERED_SIZE = 4096
"""How many parsed messages a process keeps besides, and the characters of content up to which it keeps one."""

_BETWEEN = Prepared(
    select_content(RUN.c.terminal_reason)
    .outerjoin(RUN, and_(RUN.c.conversation_id == MESSAGE.c.conversation_id, RUN.c.id == MESSAGE.c.run_id))
    .where(
        MESSAGE.c.conversation_id == bindparam("conversation_id"),
        MESSAGE.c.position > bindparam("start"),
        MESSAGE.c.position <= bindparam("end"),
        MESSAGE.c.compacted.is_(False),
        # What was asked of a run that was cancelled while it waited was taken back.
        or_(
            RUN.c.terminal_reason.is_(None),
            RUN.c.terminal_reason != TerminalReason.CANCELLED,
            MESSAGE.c.role == Role.ASSISTANT,
        ),
    )
)
_OWN_POSITION = Prepared(
    select(MESSAGE.c.position)
    .join(RUN, and_(RUN.c.conversation_id == MESSAGE.c.conversation_id, RUN.c.assistant_message_id == MESSAGE.c.id))
    .where(RUN.c.conversation_id == bindparam("conversation_id"), RUN.c.id == bindparam("run"))
)

_OWN_MESSAGE = Prepared(
    select(RUN.c.assistant_message_id).where(
        RUN.c.conversation_id == bindparam("conversation_id"), RUN.c.id == bindparam("run")
    )
)

_RUN_AND_CONVERSATION = Prepared(
    select(RUN, CONVERSATION.c.agent, CONVERSATION.c.tenant, CONVERSATION.c.model)
    .join(CONVERSATION, CONVERSATION.c.id == RUN.c.conversation_id)
    .where(RUN.c.conversation_id == bindparam("conversation_id"), RUN.c.id == bindparam("run"))
)

_METADATA = Prepared(
    select(MESSAGE.c.details).where(
        MESSAGE.c.conversation_id == bindparam("conversation_id"), MESSAGE.c.id == bindparam("message")
    )
)


def load_history(
    connection: Connection, conversation_id: str, run_id: str, extra: Sequence[str]
) -> tuple[HistoryMessage, ...]:
    """Return the messages up to a run's own, then the `extra` inputs that joined it on the way.

    Those that have not changed since they were read last are the same objects then.
    """
    end = _own_position(connection, conversation_id, run_id)
    pasts = pasts_of(connection)
    past = pasts.find(connection, conversation_id, end)
    refuse_long(connection, end - max(past.end, 0) > SHORT or bool(extra))
    lines, read = _BETWEEN.lines(connection, {"conversation_id": conversation_id, "start": past.end, "end": end})
    by_message: dict[str, list[Line]] = {}
    for line in lines:
        by_message.setdefault(line[_ID], []).append(line)
    first_lines = [pieces[0] for pieces in by_message.values()]
    new = [_memory.read(pieces, read) for pieces in by_message.values()]
    settled = _settled(first_lines, new)
    if settled:
        pasts.keep(connection, conversation_id, past, new[:settled], first_lines[settled - 1][_POSITION])
    seen = (*past.messages, *new)
    return (*seen, *_joined(connection, conversation_id, _not_in(seen, extra)))


def _settled(lines: Sequence[Line], messages: Sequence[HistoryMessage]) -> int:
    """How many of these messages, from the first on, change no more. Those at one position stay together."""
    each = enumerate(zip(lines, messages, strict=True))
    count = next((place for place, (line, item) in each if not _is_settled(line, item)), len(messages))
    while 0 < count < len(lines) and lines[count][_POSITION] == lines[count - 1][_POSITION]:
        count -= 1
    return count


def _is_settled(line: Line, item: HistoryMessage) -> bool:
    is_over = line[_RUN] is None or item.run_reason is not None
    return is_over and not any(step.open_calls for step in item.steps)


def _not_in(seen: Sequence[HistoryMessage], names: Sequence[str]) -> list[str]:
    known = {item.message.id for item in seen} if names else frozenset()
    return [name for name in names if name not in known]


def load_answer(connection: Connection, conversation_id: str, run_id: str) -> HistoryMessage | None:
    """Return a run's own message, as far as it is stored."""
    where = {"conversation_id": conversation_id, "run": run_id}
    name = _OWN_MESSAGE.scalar(connection, where)
    return next(iter(_joined(connection, conversation_id, [name])), None) if name is not None else None


Line = tuple[Any, ...]

_ID, _RUN, _POSITION = (list(MESSAGE.c.keys()).index(name) for name in ("id", "run_id", "position"))
"""Where a line of `_BETWEEN` has its message's id, run and position."""


class _Memory:
    """Parsed messages by the rows they were parsed from.

    What stands behind a conversation's past is read by every step, and parsing it is most of that. Rows that say the
    same are the same frozen message; what changed has other rows. The oldest go first. Threads share it.
    """

    def __init__(self) -> None:
        self._messages: dict[tuple[Any, ...], HistoryMessage] = {}
        self._lock = Lock()

    def read(self, lines: Sequence[Line], read: Callable[[Line], Any]) -> HistoryMessage:
        """Return the message that lines of `_BETWEEN` hold. Those that are remembered are not even read as rows."""
        # Plain tuples: they are hashed and compared without a call for each of their fields.
        key = tuple([tuple(line) for line in lines])
        found = self._messages.get(key)
        if found is None:
            rows = [read(line) for line in lines]
            found = _history_message(gather(rows)[0], rows[0].terminal_reason)
            self._keep(key, rows, found)
        return found

    def _keep(self, key: tuple[Any, ...], rows: Sequence[Any], message: HistoryMessage) -> None:
        if len(rows[0].details or "") + sum(len(row.parts or "") for row in rows) > REMEMBERED_SIZE:
            return
        with self._lock:
            self._messages[key] = message
            if len(self._messages) > REMEMBERED:
                del self._messages[next(iter(self._messages))]


_memory = _Memory()


def _own_position(connection: Connection, conversation_id: str, run_id: str) -> int:
    position = _OWN_POSITION.scalar(connection, {"conversation_id": conversation_id, "run": run_id})
    if position is None:
        raise RunNotFoundError("the conversation has no such run, or it has not started", run_id=run_id)
    return int(position)


def _joined(connection: Connection, conversation_id: str, ids: Sequence[str]) -> Iterable[HistoryMessage]:
    found = load_messages(connection, conversation_id, ids) if ids else {}
    return [_history_message(found[name], None) for name in ids if name in found]


def _history_message(stored: StoredMessage, reason: str | None) -> HistoryMessage:
    return HistoryMessage(
        message=stored.message,
        steps=_steps(stored.segments) if stored.row.role == Role.ASSISTANT else (),
        run_reason=None if reason is None else TerminalReason(reason),
    )


def _steps(segments: Sequence[Segment]) -> tuple[HistoryStep, ...]:
    # An answer that came whole (an import) has no steps: its parts say themselves how calls and results go together.
    content = (segment for segment in segments if segment.kind in (MODEL, CALL))
    return tuple(_step(step, tuple(pieces)) for step, pieces in groupby(content, key=lambda segment: segment.step))


def _step(step: int, pieces: tuple[Segment, ...]) -> HistoryStep:
    calls = [piece for piece in pieces if piece.kind == CALL]
    return HistoryStep(
        step=step,
        parts=tuple(part for piece in pieces if piece.kind != CALL for part in piece.parts or ()),
        results=tuple(part for call in calls for part in call.parts or () if isinstance(part, ToolResultPart)),
        open_calls=tuple(call.call_id for call in calls if call.parts is None and call.call_id is not None),
    )


def load_run_context(connection: Connection, conversation_id: str, run_id: str) -> RunContext | None:
    """Return a run, its conversation's agent, and what its first input came with."""
    found = _RUN_AND_CONVERSATION.first(connection, {"conversation_id": conversation_id, "run": run_id})
    if found is None:
        return None
    run = run_record(cast(RunRow, found))
    first = {"conversation_id": conversation_id, "message": load_ids(found.input_ids)[0]}
    metadata = _METADATA.scalar(connection, first)
    return RunContext(
        run=run,
        agent=found.agent,
        tenant=found.tenant,
        context=load_object(found.context),
        metadata=load_object(metadata),
        prepared=None if found.prepared is None else PreparedTurn.model_validate_json(found.prepared),
        model=found.model,
    )
