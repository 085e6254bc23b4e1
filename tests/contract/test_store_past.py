"""The past: a history that is read from memory is the one that is in the store, whatever became of the conversation."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.contract.conftest import Lane
from tests.contract.test_store_prefixes import Talker
from turnlane.records.errors import RunNotFoundError
from turnlane.records.runs import TerminalReason
from turnlane.store import history, past
from turnlane.store.past import Pasts
from turnlane.store.payloads import HistoryMessage
from turnlane.store.sql import SqlStore, open_store


async def read(store: SqlStore, conversation_id: str, run_id: str, *extra: str) -> tuple[HistoryMessage, ...]:
    return await store.load_history(conversation_id, run_id, extra)


async def read_anew(store: SqlStore, conversation_id: str, run_id: str, *extra: str) -> tuple[HistoryMessage, ...]:
    """The history as a process reads it that never read it before."""

    def load(connection: Connection) -> tuple[HistoryMessage, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(history, "pasts_of", lambda connection: Pasts())
            return history.load_history(connection, conversation_id, run_id, extra)

    return await store._database.read(load)


@dataclass
class Reader(Talker):
    """Says random things, and reads the history of some run whenever anything has changed."""

    started: list[str] = field(default_factory=list)
    reads: int = 0
    from_memory: int = 0

    def acts(self) -> list[Callable[[], Awaitable[None]]]:
        more = [self.taken_over, self.compacting_on_the_way, self.compacting_one_of_two_inputs, self.abandoning]
        return [*super().acts(), self.plain, self.plain, *more]

    async def taken_over(self) -> None:
        """A run that had started is queued again, its input is compacted perhaps, and another one answers it."""
        key, other = self.key(), self.key()
        await self.lane.begin_run(other)
        await self.step(other)
        await self.lane.apply(self.lane.requeue(f"run-{other}"))
        if self.chance.random() < 0.5:
            await self.lane.apply(self.lane.compact(f"sum-{self.key()}", f"in-{other}"))
        await self.lane.begin_run(key)
        await self.step(key)
        await self.settle(f"run-{key}", absorbed=((f"run-{other}", (f"in-{other}",)),))

    async def compacting_on_the_way(self) -> None:
        key = self.key()
        await self.lane.begin_run(key)
        *said, _ = (await self.lane.store.load_snapshot(self.lane.conversation_id)).messages
        first = self.chance.randrange(len(said))
        last = self.chance.randint(first, len(said) - 1)
        names = [message.id for message in said[first : last + 1]]
        await self.lane.apply(self.lane.compact(f"sum-{self.key()}", *names))
        await self.step(key)
        await self.settle(f"run-{key}")

    async def compacting_one_of_two_inputs(self) -> None:
        """A summary stands where an input stands that is not answered yet."""
        key, other = self.key(), self.key()
        lane = self.lane
        await lane.apply(lane.admit(key), lane.admit(other, into=f"run-{key}"), lane.start(f"run-{key}"))
        await lane.apply(lane.compact(f"sum-{self.key()}", f"in-{key}"))
        await self.step(key)
        await self.settle(f"run-{key}")

    async def abandoning(self) -> None:
        key = self.key()
        await self.lane.begin_run(key)
        await self.settle(f"run-{key}", TerminalReason.ABANDONED)

    async def look(self) -> None:
        runs = [f"run-k{number}" for number in range(1, self.count + 1)]
        for run_id in {runs[-1], self.chance.choice(runs)} if runs else ():
            where = (self.lane.store, self.lane.conversation_id, run_id)
            try:
                anew = await read_anew(*where)
            except RunNotFoundError:
                continue
            known = await self._known()
            told = await read(*where)
            assert anew == told
            self.reads += 1
            self.from_memory += sum(one is other for one, other in zip(known, told, strict=False))

    async def _known(self) -> tuple[HistoryMessage, ...]:
        def find(connection: Connection) -> tuple[HistoryMessage, ...]:
            return past.pasts_of(connection)._kept.get(self.lane.conversation_id, past.NOTHING).messages

        return await self.lane.store._database.read(find)


def watched(reader: Reader, patch: pytest.MonkeyPatch) -> Reader:
    """Let the reader look whenever something was written."""

    def watching(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def then_look(*args: Any, **options: Any) -> Any:
            made = await method(*args, **options)
            await reader.look()
            return made

        return then_look

    for name in ("commit", "begin_step", "checkpoint", "finish_step", "finish_call"):
        patch.setattr(reader.lane.store, name, watching(getattr(reader.lane.store, name)))
    return reader


@pytest.mark.parametrize("seed", range(16))
async def test_what_is_read_is_what_is_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(":memory:")
    reader = watched(Reader(await Lane(store).open(), random.Random(seed)), monkeypatch)
    await reader.talk(25)
    await store.close()

    assert reader.reads > 50
    assert reader.from_memory > 50


@pytest.mark.parametrize("seed", range(2))
async def test_what_is_read_is_what_is_there_in_every_store(
    store: SqlStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = watched(Reader(await Lane(store).open(), random.Random(seed)), monkeypatch)
    await reader.talk(12)

    assert reader.reads > 20


async def test_what_has_not_changed_is_the_same_object(lane: Lane) -> None:
    for key in ("a", "b"):
        await lane.answer(key)
    fence = await lane.begin_run("c")
    first = await read(lane.store, lane.conversation_id, "run-c")
    await lane.begin_step(fence)
    second = await read(lane.store, lane.conversation_id, "run-c")

    assert [True] * 5 + [False] == [one is other for one, other in zip(first, second, strict=True)]


async def test_inputs_that_joined_are_told_once(lane: Lane) -> None:
    await lane.answer("a")
    await lane.begin_run("b")
    await lane.apply(lane.admit("c"))
    ids = [
        [item.message.id for item in await read(lane.store, lane.conversation_id, "run-b", "in-a", "in-c")]
        for _ in range(2)
    ]

    assert [["in-a", "out-a", "in-b", "out-b", "in-c"]] * 2 == ids


async def test_a_store_knows_nothing_of_another(tmp_path: Path) -> None:
    told: list[str] = []
    for name in ("one", "two"):
        store = await open_store(str(tmp_path / name))
        lane = await Lane(store, "c").open()
        message = lane.message("in-a", text=f"asked of {name}")
        await lane.apply(lane.admit("a", message=message), lane.start("run-a"), lane.settle("run-a"))
        await lane.begin_run("b")
        told += [item.message.text for item in await read(store, "c", "run-b")][:1]
        await store.close()

    assert ["asked of one", "asked of two"] == told


async def test_no_more_is_kept_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "KEPT", 10)
    store = await open_store(":memory:")
    lanes = {name: await Lane(store, name).open() for name in ("a", "b", "c")}
    large = "x" * (3 * past.LARGE)
    for lane in lanes.values():
        await lane.answer("1")
        await lane.answer("2")
        await lane.begin_run("3")
    for name in ("a", "b", "a", "c"):
        await read(store, name, "run-3")
    pasts = await store._database.read(past.pasts_of)
    kept = {name: (len(each.messages), each.weight) for name, each in pasts._kept.items()}
    await lanes["c"].apply(lanes["c"].settle("run-3"))
    message = lanes["c"].message("in-4", text=large)
    await lanes["c"].apply(lanes["c"].admit("4", message=message), lanes["c"].start("run-4"))
    await lanes["c"].apply(lanes["c"].settle("run-4"))
    await lanes["c"].begin_run("5")
    whole = [item.message.id for item in await read(store, "c", "run-5")]
    await store.close()

    assert {"a": (4, 4), "c": (4, 4)} == kept
    assert ([], 0) == (list(pasts._kept), pasts._weight)
    assert [f"{way}-{number}" for number in range(1, 6) for way in ("in", "out")] == whole
