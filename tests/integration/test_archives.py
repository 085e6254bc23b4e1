"""Archives in life: a conversation is restored in another store, and goes on there as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Bench
from tests.integration.completing import DONE, asked, chat, receipts, spoken
from tests.integration.completing import KEY as PAYLOAD_KEY
from tests.integration.completing import allow as allowed
from tests.integration.stage import BOUND
from tests.integration.talks import WIRES, Talk, Talks
from turnlane.activities.invocations import ModelInvocations
from turnlane.activities.providers.base import TextDelta
from turnlane.client import Turnlane
from turnlane.records.errors import (
    ArchiveInvalidError,
    ConversationExistsError,
    ConversationNotFoundError,
    IdempotencyConflictError,
    InvalidInputError,
    StoreRequiredError,
)
from turnlane.records.invocations import ProviderResponded
from turnlane.records.runs import TerminalReason
from turnlane.store.sql import SqlStore, open_store
from turnlane.testing.fault_plan import Gate, Pass
from turnlane.testing.fault_server import FaultServer

NO_TEMPORAL: Any = None
"""What a client needs of Temporal for a conversation that the store answers for alone."""


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[SqlStore]:
    """Another store, empty."""
    opened = await open_store(str(tmp_path / "elsewhere.db"))
    yield opened
    await opened.close()


# --- completions --------------------------------------------------------------------------------


async def test_a_key_is_known_where_its_conversation_was_restored_and_nobody_is_called(
    store: SqlStore, elsewhere: SqlStore
) -> None:
    async with FaultServer([Pass("Tides")]) as server:
        models = {"one": chat(server)}
        here = ModelInvocations(store, payload_key=PAYLOAD_KEY, authorize=allowed, models=models)
        there = ModelInvocations(elsewhere, payload_key=PAYLOAD_KEY, authorize=allowed, models=models)
        done = await here.complete(asked())
        data = await Turnlane(NO_TEMPORAL, store=store).export_conversation("c")
        await Turnlane(NO_TEMPORAL, store=elsewhere).import_conversation(data)

        again = await there.complete(asked())
        with pytest.raises(IdempotencyConflictError):
            await there.complete(asked(prompt="Other."))
        told = [await receipts(each) for each in (here, there)]
        await here.aclose()
        await there.aclose()

        assert ("succeeded", "Tides") == (done.outcome, done.text)
        assert ("duplicate", done.invocation_id, None) == (again.outcome, again.invocation_id, again.text)
        assert told[0] == told[1]
        assert 1 == len(server.requests)


async def test_sealed_payloads_open_where_they_were_restored_and_only_under_their_key(
    store: SqlStore, elsewhere: SqlStore
) -> None:
    _, here = spoken(store, TextDelta("Tides"), DONE)
    await here.complete(asked())
    data = await Turnlane(NO_TEMPORAL, store=store).export_conversation("c")
    await Turnlane(NO_TEMPORAL, store=elsewhere).import_conversation(data)
    _, there = spoken(elsewhere)
    told = await receipts(there)
    artifacts = [each.artifact_id for each in told if isinstance(each, ProviderResponded) and each.artifact_id]

    opened = [await there.read_payload("c", artifact) for artifact in artifacts]

    assert [await here.read_payload("c", artifact) for artifact in artifacts] == opened
    assert artifacts
    assert b"Tides" not in data


async def test_what_is_not_there_or_another_tenants_or_no_archive_is_told_at_the_edge(store: SqlStore) -> None:
    client = Turnlane(NO_TEMPORAL, store=store)
    storeless = Turnlane(NO_TEMPORAL)

    with pytest.raises(ConversationNotFoundError):
        await client.export_conversation("unheard-of")
    with pytest.raises(ConversationNotFoundError):
        await client.branch("unheard-of", "copy")
    with pytest.raises(ArchiveInvalidError):
        await client.import_conversation(b"{}")
    with pytest.raises(ArchiveInvalidError):
        await client.branch(b"no archive", "copy")
    for wrong in (("", "copy"), ("c", "bad\nid")):
        with pytest.raises(InvalidInputError):
            await client.branch(*wrong)
    with pytest.raises(InvalidInputError):
        await client.branch("c", "copy", through_run_id="")
    for call in (storeless.export_conversation("c"), storeless.import_conversation(b""), storeless.branch("a", "b")):
        with pytest.raises(StoreRequiredError):
            await call


# --- turns --------------------------------------------------------------------------------------


async def lost(bench: Bench, conversation: str) -> None:
    """End a lane without its saying goodbye."""
    await bench.temporal.get_workflow_handle(f"lane/{conversation}").terminate()


def beside(bench: Bench, store: SqlStore) -> Bench:
    """The same server, with another store and workers of its own."""
    return Bench(bench.temporal, store, "elsewhere")


@pytest.mark.server
async def test_an_answered_input_is_a_duplicate_in_the_restored_store(
    talks: Talks, bench: Bench, elsewhere: SqlStore
) -> None:
    talk = await talks.open(WIRES["responses"], Pass("first"), Pass("second"))
    first = await talk.client.submit(talk.conversation, "one", key="k-1")
    answered = await first.result(BOUND)
    await lost(bench, talk.conversation)
    await moved(talk, elsewhere)
    there = beside(bench, elsewhere)

    async with talks.worker_on(there):
        again = await there.client().submit(talk.conversation, "one", key="k-1")
        result = await again.result(BOUND)
        then = await (await there.client().submit(talk.conversation, "two")).result(BOUND)

    assert again.admission is not None
    assert (True, answered.run_id) == (again.admission.duplicate, again.admission.run_id)
    assert (answered.message, "second") == (result.message, then.text)
    assert 2 == len(talk.bodies)


@pytest.mark.server
async def test_a_run_in_flight_goes_on_where_its_conversation_was_restored(
    talks: Talks, bench: Bench, elsewhere: SqlStore
) -> None:
    gate = Gate(of=Pass("never heard", chunks=4), after=2)
    talk = await talks.open(WIRES["chat"], gate, Pass("the answer"), Pass("and more"))
    ticket = await talk.client.submit(talk.conversation, "one", key="k-1")
    async with asyncio.timeout(BOUND):
        await gate.reached.wait()
    await lost(bench, talk.conversation)
    await moved(talk, elsewhere)
    there = beside(bench, elsewhere)

    async with talks.worker_on(there):
        then = await (await there.client().submit(talk.conversation, "two")).result(BOUND)
        assert ticket.admission is not None
        first = await there.client().await_result(talk.conversation, ticket.admission.run_id)
    gate.event.set()

    assert (TerminalReason.SUCCESS, "the answer") == (first.reason, first.text)
    assert "and more" == then.text


@pytest.mark.server
async def test_text_that_no_store_takes_leaves_and_returns_clean(
    talks: Talks, bench: Bench, elsewhere: SqlStore
) -> None:
    talk = await talks.open(WIRES["anthropic"], Pass("said"), Pass("hi"))
    await talk.turn("half a \ud83d pair\x00")
    await moved(talk, elsewhere)

    messages = (await elsewhere.load_snapshot(talk.conversation)).messages
    assert ["half a \ufffd pair\ufffd", "said"] == [message.text for message in messages]
    assert "hi" == (await talk.turn("hi")).text


async def moved(talk: Talk, elsewhere: SqlStore) -> None:
    """Bring a conversation into another store, and see that nothing of it changed on the way."""
    data = await talk.client.export_conversation(talk.conversation)
    client = Turnlane(NO_TEMPORAL, store=elsewhere)
    await client.import_conversation(data)
    assert data == await client.export_conversation(talk.conversation)
    with pytest.raises(ConversationExistsError):
        await client.import_conversation(data)
