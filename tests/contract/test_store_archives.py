"""Archives: a conversation leaves a store whole, comes into another one whole, or not at all."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.archived_talk import live_talk, talk
from turnlane.records.archives import Archive
from turnlane.records.base import JsonObject
from turnlane.records.errors import ArchiveInvalidError, ConversationExistsError, ConversationPurgedError
from turnlane.records.ledger import LedgerKind
from turnlane.records.mutations import CommitOutcome
from turnlane.store.sql import SqlStore, open_store

if TYPE_CHECKING:
    from tests.contract.conftest import Lane

Json = dict[str, Any]

LATER = datetime(2026, 1, 3, tzinfo=UTC)


@pytest.fixture
async def other() -> AsyncIterator[SqlStore]:
    """An empty store of another kind."""
    opened = await open_store(":memory:")
    yield opened
    await opened.close()


async def exported(lane: Lane) -> bytes:
    return await lane.store.export_conversation(lane.conversation_id)


async def imported(lane: Lane, other: SqlStore, data: bytes | None = None) -> Lane:
    """A lane of the same conversation in another store, which was imported there; not opened yet."""
    data = data or await exported(lane)
    await other.import_conversation(data, lane.clock())
    return type(lane)(other, lane.conversation_id, lane.clock, lane.epoch, lane.seq, lane.order, dict(lane.tokens))


# --- there and back -----------------------------------------------------------------------------


async def test_what_was_imported_is_exported_again_byte_for_byte(lane: Lane, other: SqlStore) -> None:
    await live_talk(lane)
    data = await exported(lane)

    done = await other.import_conversation(data, lane.clock())

    assert (lane.conversation_id, len(json.loads(data)["events"])) == (done.conversation_id, done.events)
    assert data == await other.export_conversation(lane.conversation_id)


async def test_an_archive_goes_into_every_store_and_reads_there_as_it_did(lane: Lane, other: SqlStore) -> None:
    there = await type(lane)(other).open()
    await live_talk(there)
    here = await imported(there, lane.store)

    for name, options in READS.items():
        before, after = (getattr(each, name)(there.conversation_id, **options) for each in (other, here.store))
        assert await before == await after, name
    assert await exported(there) == await exported(here)


READS: dict[str, Json] = {
    "load_snapshot": {},
    "list_messages": {"include_compacted": True},
    "list_runs": {},
    "list_active_runs": {},
    "load_model": {},
    "conversation_spend": {},
    "pending_approvals": {},
    "read_events": {},
    "events_since": {"seq": 0, "limit": 1000},
    "last_seq": {},
}


async def test_two_exports_of_a_quiet_store_are_equal(lane: Lane) -> None:
    await live_talk(lane)

    assert await exported(lane) == await exported(lane)


async def test_a_conversation_that_was_never_heard_of_exports_empty_and_imports_as_nothing(
    lane: Lane, other: SqlStore
) -> None:
    data = await lane.store.export_conversation("unheard-of")

    done = await other.import_conversation(data, lane.clock())
    again = await other.import_conversation(data, lane.clock())

    plain = json.loads(data)
    assert ([], 0) == (plain["events"], plain["projections"][0]["snapshot"]["version"])
    assert (0, 0) == (done.events, again.events)
    assert data == await other.export_conversation("unheard-of")


async def test_receipts_of_a_conversation_in_which_nothing_was_said_travel(lane: Lane, other: SqlStore) -> None:
    payload: JsonObject = {"invocation": {"n": 1}}
    await lane.store.append_event(
        lane.conversation_id, LedgerKind.INVOCATION_STARTED, payload, lane.clock(), key="once"
    )
    there = await imported(lane, other)

    again = await other.append_event(
        there.conversation_id, LedgerKind.INVOCATION_STARTED, {"n": 2}, lane.clock(), key="once"
    )

    assert (1, payload) == (again.seq, again.payload)


async def test_an_export_shows_one_moment_while_others_write(lane: Lane) -> None:
    await lane.answer("first")

    async def export() -> Archive:
        return Archive.model_validate_json(await exported(lane))

    archives = [asyncio.create_task(export()) for _ in range(3)]
    for turn in range(12):
        await lane.answer(f"turn-{turn}")
        archives.append(asyncio.create_task(export()))

    for archive in await asyncio.gather(*archives):
        assert archive.events[-1].version == archive.snapshot.version
        ended = sum(event.payload.get("type") == "terminal" for event in archive.events)
        assert ended == sum(not run.run.state.is_active for run in archive.snapshot.runs)


# --- going on -----------------------------------------------------------------------------------


async def test_a_lane_goes_on_from_an_archive_with_the_next_epoch(lane: Lane, other: SqlStore) -> None:
    await live_talk(lane)
    there = await imported(lane, other)

    opened = await other.open_lane(there.conversation_id, "lane-2", None)

    assert lane.epoch + 1 == opened.epoch
    assert (lane.seq, ["run-g", "run-h"]) == (opened.head.seq, [run.id for run in opened.head.runs])
    assert opened.progress is not None
    assert ("run-g", 0, 2) == (opened.progress.run_id, opened.progress.step, opened.progress.attempt)


async def test_what_was_admitted_is_a_duplicate_after_the_import(lane: Lane, other: SqlStore) -> None:
    await talk(lane)
    there = await imported(lane, other)

    opened = await other.open_lane(there.conversation_id, "lane-2", None)
    found = await other.find_receipts(there.conversation_id, ["a", "c"])

    assert found == await lane.store.find_receipts(lane.conversation_id, ["a", "c"])
    assert {"a", "b", "c", "d", "e", "tool-approval:apr-c-2"} == {receipt.key for receipt in opened.head.receipts}


async def test_a_lane_that_outlived_its_store_commits_on_into_the_imported_one(lane: Lane, other: SqlStore) -> None:
    await talk(lane)
    last = lane.note()
    before = await lane.apply(last)
    there = await imported(lane, other)

    repeated = await there.commit(last)
    await there.answer("z")

    assert (CommitOutcome.APPLIED, before) == (repeated.reply.outcome, repeated.reply.results)
    assert "out-z" == (await there.said())[-1]


# --- refusals -----------------------------------------------------------------------------------


async def test_nothing_is_imported_over_what_is_there(lane: Lane, other: SqlStore) -> None:
    await talk(lane)
    data = await exported(lane)
    await other.open_lane(lane.conversation_id, "a-lane-that-waits", None)

    for store in (lane.store, other):
        with pytest.raises(ConversationExistsError):
            await store.import_conversation(data, lane.clock())
    assert 0 == (await other.load_snapshot(lane.conversation_id)).version
    assert data == await exported(lane)


async def test_a_purged_conversation_stays_purged(lane: Lane) -> None:
    await talk(lane)
    data = await exported(lane)
    await lane.apply(lane.purge())

    with pytest.raises(ConversationPurgedError):
        await lane.store.import_conversation(data, lane.clock())
    assert 0 == json.loads(await exported(lane))["projections"][0]["snapshot"]["version"]


async def test_of_two_imports_at_once_one_is_made(lane: Lane, other: SqlStore) -> None:
    await talk(lane)
    data = await exported(lane)

    done = await asyncio.gather(
        *(other.import_conversation(data, lane.clock()) for _ in range(4)), return_exceptions=True
    )

    assert 3 == sum(isinstance(each, ConversationExistsError) for each in done)
    assert data == await other.export_conversation(lane.conversation_id)


async def test_a_tenant_exports_and_imports_what_is_its_own(lane: Lane, other: SqlStore) -> None:
    await lane.answer("a", tenant="acme")
    unknown = await lane.store.export_conversation("unheard-of", tenant="acme")
    hidden = await lane.store.export_conversation(lane.conversation_id, tenant="evil")
    data = await lane.store.export_conversation(lane.conversation_id, tenant="acme")

    with pytest.raises(ArchiveInvalidError):
        await other.import_conversation(data, lane.clock(), tenant="evil")
    await other.import_conversation(data, lane.clock(), tenant="acme")

    assert json.loads(unknown) == json.loads(hidden) | {
        "conversation_id": "unheard-of",
        "projections": json.loads(unknown)["projections"],
    }
    assert "acme" not in hidden.decode()
    assert data == await other.export_conversation(lane.conversation_id)


def _snapshot(archive: Json) -> Json:
    found: Json = archive["projections"][0]["snapshot"]
    return found


def _event(archive: Json, kind: str) -> Json:
    found: Json = next(event for event in archive["events"] if event["payload"].get("type") == kind)
    return found


def _asked(archive: Json) -> list[Json]:
    """The calls that were asked about."""
    pieces = [piece for message in _snapshot(archive)["messages"] for piece in message["segments"]]
    return [piece for piece in pieces if piece["approval_id"] is not None]


def _swap_first_events(archive: Json) -> None:
    archive["events"][0], archive["events"][1] = archive["events"][1], archive["events"][0]


def _forge_spill(archive: Json) -> None:
    archive["spills"][0]["base64"] = base64.b64encode(b"forged!").decode()


BROKEN: dict[str, Callable[[Json], object]] = {
    "another format": lambda archive: archive.update(format="other.conversation"),
    "a newer version": lambda archive: archive.update(format_version=2),
    "an unknown field": lambda archive: archive.update(surprise=1),
    "no records": lambda archive: archive.update(projections=[]),
    "records of another conversation": lambda archive: _snapshot(archive).update(conversation_id="c-2"),
    "an event of another conversation": lambda archive: archive["events"][3].update(conversation_id="c-2"),
    "events out of order": _swap_first_events,
    "a hole in the ledger": lambda archive: archive["events"].pop(4),
    "no first event": lambda archive: archive["events"].pop(0),
    "two events under one id": lambda archive: archive["events"][1].update(event_id=archive["events"][0]["event_id"]),
    "an unknown kind": lambda archive: archive["events"][2].update(kind="runtime/of-tomorrow"),
    "an unknown version of an event": lambda archive: archive["events"][2].update(schema_version=2),
    "records of another version": lambda archive: _snapshot(archive).update(version=3),
    "versions that go back": lambda archive: archive["events"][6].update(version=0),
    "a run of another conversation": lambda archive: _snapshot(archive)["runs"][0]["run"].update(conversation_id="x"),
    "two runs under one id": lambda archive: _snapshot(archive)["runs"][1]["run"].update(id="run-a"),
    "a run that is missing": lambda archive: _snapshot(archive)["runs"].pop(0),
    "a run that contradicts itself": lambda archive: _snapshot(archive)["runs"][0]["run"].update(state="queued"),
    "an input that no run claims": lambda archive: _snapshot(archive)["runs"][0]["run"].update(
        input_message_ids=["seed-1"]
    ),
    "a message that is missing": lambda archive: _snapshot(archive)["messages"].pop(3),
    "two messages in one place": lambda archive: _snapshot(archive)["messages"][3].update(position=1, place=0),
    "another text": lambda archive: _snapshot(archive)["messages"][0]["segments"][0].update(
        parts=[{"type": "text", "text": "forged"}]
    ),
    "a part of tomorrow": lambda archive: _snapshot(archive)["messages"][0]["segments"][0].update(
        parts=[{"type": "hologram"}]
    ),
    "a receipt that does not fit": lambda archive: _event(archive, "accept")["payload"]["effect"].update(receipt={}),
    "a transition without effect": lambda archive: _event(archive, "accept")["payload"].pop("effect"),
    "notes that do not fit": lambda archive: archive["events"][0].update(notes=[{"type": "gossip"}]),
    "two approvals under one id": lambda archive: _asked(archive)[1].update(approval_id="apr-c-2"),
    "two seeds under one key": lambda archive: _snapshot(archive)["seeds"].append(_snapshot(archive)["seeds"][0]),
    "two mutations at one place": lambda archive: archive["events"][1]["mutation"].update(seq=1),
    "two events under one once-key": lambda archive: [
        event.update(once_key="once") for event in archive["events"] if event["kind"] == "provider/request"
    ],
    "a number that no store takes": lambda archive: _snapshot(archive).update(next_position=2**63),
    "a code that is too long": lambda archive: _snapshot(archive)["messages"][0]["segments"][0].update(kind="x" * 33),
    "a digest that is too long": lambda archive: _event(archive, "accept")["payload"]["effect"]["receipt"].update(
        content_digest="d" * 129
    ),
    "content that was forged": _forge_spill,
    "content that is no base64": lambda archive: archive["spills"][0].update(base64="A"),
    "content of another size": lambda archive: archive["spills"][0].update(size=5),
    "content under another name": lambda archive: archive["spills"][0].update(reference="blob-" + "0" * 32),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_an_archive_that_is_broken_is_refused_and_nothing_is_written(
    lane: Lane, other: SqlStore, broken: str
) -> None:
    await talk(lane)
    archive = json.loads(await exported(lane))
    before = json.dumps(archive)
    BROKEN[broken](archive)
    assert before != json.dumps(archive)

    with pytest.raises(ArchiveInvalidError) as refused:
        await other.import_conversation(json.dumps(archive).encode(), lane.clock())

    told = f"{refused.value} {refused.value.details}"
    assert "forged" not in told
    assert "gossip" not in told
    assert await other.export_conversation("x") == (await other.export_conversation(lane.conversation_id)).replace(
        f'"{lane.conversation_id}"'.encode(), b'"x"'
    )
    await other.import_conversation(before.encode(), lane.clock())


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff\xfe", b"null", b'{"format":', b"[" * 5000])
async def test_bytes_that_are_no_archive_are_refused(store: SqlStore, data: bytes) -> None:
    with pytest.raises(ArchiveInvalidError):
        await store.import_conversation(data, LATER)


async def test_an_event_that_may_be_ignored_travels_whoever_knows_it(lane: Lane, other: SqlStore) -> None:
    await lane.apply(lane.admit("a"), lane.note("app/of-its-own"))

    there = await imported(lane, other)

    kinds = [event.kind for event in (await other.read_events(there.conversation_id)).items]
    assert ["runtime/transition", "app/of-its-own"] == kinds
