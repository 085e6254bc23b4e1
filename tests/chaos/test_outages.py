"""The store or the Temporal server goes away in the middle of a turn, and nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from tests.conftest import Bench, texts
from tests.integration.stage import Stage, until
from turnlane.client.dev_config import DevConfig
from turnlane.client.dev_server import DevServer
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import TerminalReason
from turnlane.store.sql import open_store

pytestmark = pytest.mark.chaos

PATIENCE = 60.0


class Refusals(logging.Handler):
    """Hears when a write was refused and is going to be tried again."""

    def __init__(self, wanted: int) -> None:
        super().__init__(logging.WARNING)
        self.reached = asyncio.Event()
        self._left = wanted

    def emit(self, record: logging.LogRecord) -> None:
        self._left -= 1
        if self._left <= 0:
            self.reached.set()


@contextmanager
def refusals(wanted: int) -> Iterator[Refusals]:
    """Count the refused writes of activities that keep trying by themselves."""
    logger = logging.getLogger("turnlane.activities.failing")
    handler = Refusals(wanted)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


@contextmanager
def no_writes(path: Path) -> Iterator[None]:
    """Hold the store's only write lock, as another process that hangs in a transaction would."""
    other = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


@pytest.fixture
async def hasty(temporal: Client, tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench whose store gives a locked database up at once."""
    path = tmp_path / "hasty.db"
    store = await open_store(str(path), busy_seconds=0.2)
    try:
        yield Bench(temporal, store, str(path))
    finally:
        await store.close()


async def test_an_answer_that_the_store_refuses_for_seconds_is_kept(hasty: Bench, conversation: str) -> None:
    stage, client = Stage(), hasty.client()
    async with hasty.worker(stage.agent(), providers=stage.providers):
        ticket = await client.submit(conversation, "hi")
        call = await stage.call(1)

        with refusals(4) as refused, no_writes(Path(hasty.place)):
            call.answer("paid for")
            async with asyncio.timeout(PATIENCE):
                await refused.reached.wait()
        result = await ticket.result(PATIENCE)

    assert (TerminalReason.SUCCESS, "paid for") == (result.reason, result.text)
    kinds = [event.kind for event in (await hasty.store.read_events(conversation)).items]
    assert (1, 1, 1) == (
        len(stage.calls),
        kinds.count(LedgerKind.PROVIDER_REQUEST),
        kinds.count(LedgerKind.PROVIDER_RESPONSE),
    )


async def test_an_input_that_comes_while_the_store_is_away_waits_and_is_answered_once(
    hasty: Bench, conversation: str
) -> None:
    stage, client = Stage(), hasty.client(answer_seconds=PATIENCE)
    stage.play()
    async with hasty.worker(stage.agent(), providers=stage.providers):
        with no_writes(Path(hasty.place)):
            submitting = asyncio.create_task(client.submit(conversation, "hi", key="k"))
            await _until_the_lane_waits(hasty, conversation)
            early = submitting.done()
        async with asyncio.timeout(PATIENCE):
            ticket = await submitting
        result = await ticket.result(PATIENCE)

    assert not early
    assert (TerminalReason.SUCCESS, "answer to hi") == (result.reason, result.text)
    assert [("user", "hi"), ("assistant", "answer to hi")] == texts((await client.messages(conversation)).items)
    assert 1 == len(stage.calls)


async def test_a_lane_that_waits_for_the_store_moves_to_another_worker(hasty: Bench, conversation: str) -> None:
    stage, client = Stage(), hasty.client()
    stage.play()
    with no_writes(Path(hasty.place)):
        async with hasty.worker(stage.agent(), providers=stage.providers):
            ticket = await client.submit(conversation, "hi", via="signal")
            await _until_the_lane_waits(hasty, conversation)
    async with hasty.worker(stage.agent(), providers=stage.providers):
        result = await ticket.result(PATIENCE)

    assert (TerminalReason.SUCCESS, "answer to hi", 1) == (result.reason, result.text, len(stage.calls))


async def _until_the_lane_waits(bench: Bench, conversation: str) -> None:
    """Return once a lane waits for its store: it made a call again as an activity that is retried for ever."""
    scheduled = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    handle = bench.temporal.get_workflow_handle(f"lane/{conversation}")

    async def waits() -> bool:
        try:
            history = await handle.fetch_history()
        except RPCError:  # the lane is not started yet
            return False
        return any(event.event_type == scheduled for event in history.events)

    await until(waits, PATIENCE)


async def test_the_temporal_server_may_be_killed_in_mid_answer(tmp_path: Path, conversation: str) -> None:
    config = DevConfig.throwaway(tmp_path).model_copy(update={"temporal_db": tmp_path / "temporal.db"})
    store = await open_store(str(tmp_path / "store.db"))
    stage = Stage()
    async with DevServer(config) as server:
        temporal = await Client.connect(server.target, data_converter=pydantic_data_converter)
        bench = Bench(temporal, store, str(tmp_path / "store.db"))
        client = bench.client(answer_seconds=PATIENCE)
        async with bench.worker(stage.agent(), providers=stage.providers):
            running = await client.submit(conversation, "A", key="a")
            waiting = await client.submit(conversation, "B", key="b")
            call = await stage.call(1)
            call.say("half ")

            await server.kill()
            call.say("and ")
            await server.start()
            stage.play()
            results = [await ticket.result(PATIENCE) for ticket in (running, waiting)]
            again = await client.submit(conversation, "A", key="a")

    said = texts((await client.messages(conversation)).items)
    await store.close()
    assert [TerminalReason.SUCCESS] * 2 == [result.reason for result in results]
    assert "answer to B" == results[1].text
    assert ["user", "assistant", "user", "assistant"] == [role for role, _ in said]
    assert results[0].text in ("half and answer to A", "answer to A")
    assert again.admission is not None
    assert (True, results[0].run_id) == (again.admission.duplicate, again.admission.run_id)
