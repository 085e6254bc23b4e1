"""The past: the messages of a conversation that change no more, kept in memory from one step to the next.

Every step reads the whole history, and nearly all of it is what the step before has read. A message is settled when it
was said under no run or one that has ended, and no call of it is open. Nothing writes to a settled message but a
compaction, which takes messages out: it marks them, and puts its summary behind the last of them. So two things tell
whether a past is as it was: how many messages stand up to its end, and where (a summary or a seed in it is one more),
and whether its last one was taken out (by a compaction that reaches beyond it, and whose summary stands there).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, bindparam, func, select

from turnlane.store.payloads import HistoryMessage
from turnlane.store.prepared import Prepared
from turnlane.store.tables import MESSAGE

KEPT: Final = 8192
"""How many messages a process keeps of each store it reads; one counts as many times as it has `LARGE` characters."""

LARGE: Final = 4096

BEFORE_ALL: Final = -(2**62)
"""A position that nothing stands at."""

_HERE = MESSAGE.c.conversation_id == bindparam("conversation_id")
_STANDING = Prepared(
    select(
        func.count().label("messages"),
        func.coalesce(func.sum(MESSAGE.c.position), 0).label("positions"),
        func.coalesce(func.sum(MESSAGE.c.place), 0).label("places"),
    ).where(_HERE, MESSAGE.c.position > bindparam("start"), MESSAGE.c.position <= bindparam("end"))
)
_COMPACTED = Prepared(select(MESSAGE.c.compacted).where(_HERE, MESSAGE.c.id == bindparam("message")))


class Standing(NamedTuple):
    """How many messages stand in a stretch of positions, those that are not told included; and where, in sums."""

    messages: int = 0
    positions: int = 0
    places: int = 0

    def plus(self, more: Standing) -> Standing:
        return Standing(*(one + other for one, other in zip(self, more, strict=True)))


class Past(NamedTuple):
    """The settled messages that a history begins with, up to which position, and how much they are to keep."""

    messages: tuple[HistoryMessage, ...] = ()
    end: int = BEFORE_ALL
    standing: Standing = Standing()
    weight: int = 0


NOTHING: Final = Past()


class Pasts:
    """The pasts of conversations in one store. Those used last are kept; threads share it."""

    def __init__(self) -> None:
        self._kept: dict[str, Past] = {}
        self._weight = 0
        self._lock = Lock()

    def find(self, connection: Connection, conversation_id: str, end: int) -> Past:
        """Return the past of a conversation if it is as it was and goes no further than `end`, else one of nothing."""
        past = self._kept.get(conversation_id, NOTHING)
        if not past.messages or past.end > end or not _is_as_it_was(connection, conversation_id, past):
            return NOTHING
        with self._lock:
            # The one that was used last is last. Another thread may have put a longer one there, or dropped it.
            if self._kept.get(conversation_id) is past:
                self._kept[conversation_id] = self._kept.pop(conversation_id)
        return past

    def keep(
        self, connection: Connection, conversation_id: str, past: Past, new: Sequence[HistoryMessage], end: int
    ) -> None:
        """Keep a past that was found in this transaction, with the settled messages behind it up to `end`."""
        standing = past.standing.plus(_standing(connection, conversation_id, past.end, end))
        grown = Past((*past.messages, *new), end, standing, past.weight + sum(map(_weight, new)))
        with self._lock:
            self._drop(conversation_id)
            self._kept[conversation_id] = grown
            self._weight += grown.weight
            while self._weight > KEPT:
                self._drop(next(iter(self._kept)))

    def _drop(self, conversation_id: str) -> None:
        self._weight -= self._kept.pop(conversation_id, NOTHING).weight


def pasts_of(connection: Connection) -> Pasts:
    """Return what this process knows of the store behind a connection."""
    return _by_store.setdefault(connection.engine, Pasts())


_by_store: Final[WeakKeyDictionary[Engine, Pasts]] = WeakKeyDictionary()


def _is_as_it_was(connection: Connection, conversation_id: str, past: Past) -> bool:
    last = {"conversation_id": conversation_id, "message": past.messages[-1].message.id}
    if _COMPACTED.scalar(connection, last) is not False:
        return False
    return _standing(connection, conversation_id, BEFORE_ALL, past.end) == past.standing


def _standing(connection: Connection, conversation_id: str, start: int, end: int) -> Standing:
    found = _STANDING.first(connection, {"conversation_id": conversation_id, "start": start, "end": end})
    return Standing() if found is None else Standing(*map(int, found))


def _weight(item: HistoryMessage) -> int:
    return 1 + sum(len(part.model_dump_json()) for part in item.message.parts) // LARGE
