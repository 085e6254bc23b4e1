"""Branches: a conversation that begins with what was said in another one, and shares nothing with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.archived_talk import live_talk, talk
from tests.contract.branching import Json, branch, branched, exported, texts
from turnlane.records.archives import Archive
from turnlane.records.errors import ArchiveInvalidError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import ToolApprovalRequestPart, ToolResultPart

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


# --- what is copied -------------------------------------------------------------------------------


async def test_a_branch_says_what_its_source_said_and_goes_its_own_way(lane: Lane) -> None:
    for turn in range(5):
        await lane.answer(f"t{turn}", text=f"answer {turn}")
    before = await exported(lane)

    copy = await branched(lane, through="run-t3")
    inherited = await texts(copy)
    copy.order = 5
    await copy.answer("again", text="another answer")

    said = [text for turn in range(4) for text in (f"question t{turn}", f"answer {turn}")]
    assert said == inherited
    assert [*said, "question again", "another answer"] == await texts(copy)
    assert before == await exported(lane)


async def test_nothing_of_the_source_is_named_in_the_copy_but_where_it_is_from(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)
    source = Archive.model_validate_json(await exported(lane))
    copy = json.loads(await exported(lane, "copy"))

    copy["events"].pop()
    told = json.dumps(copy)
    names = [lane.conversation_id, *(run.run.id for run in source.snapshot.runs)]
    # A seed's text is its id here.
    names += [message.id for message in source.snapshot.messages if not message.id.startswith("seed-")]
    names += [run.run.assistant_message_id for run in source.snapshot.runs]
    names += [event.event_id for event in source.events]
    names += ["apr-c-2", "apr-c-3"]
    assert [] == [name for name in names if f'"{name}"' in told]


async def test_what_is_read_of_the_copy_is_what_is_read_of_the_source(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)
    one, two = [Archive.model_validate_json(await exported(lane, name)) for name in (None, "copy")]

    def shape(archive: Archive) -> list[Any]:
        return [
            (message.role, message.status, message.position, message.place, message.compacted, message.metadata)
            for message in archive.snapshot.messages
        ]

    assert shape(one) == shape(two)
    assert [run.run.usage for run in one.snapshot.runs] == [run.run.usage for run in two.snapshot.runs]
    assert one.spills == two.spills
    assert "small" == two.snapshot.model
    assert [event.version for event in one.events] == [event.version for event in two.events][:-1]


async def test_thinking_and_provider_envelopes_are_copied_byte_for_byte(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)

    def kept(data: bytes) -> list[str]:
        parts = [
            part
            for message in Archive.model_validate_json(data).snapshot.messages
            for piece in message.segments
            for part in piece.parts or ()
            if part.type in ("reasoning", "provider")
        ]
        return [hashlib.sha256(part.model_dump_json().encode()).hexdigest() for part in parts]

    assert kept(await exported(lane)) == kept(await exported(lane, "copy"))
    assert 2 == len(kept(await exported(lane)))


async def test_the_answered_key_of_the_source_is_answered_in_the_copy(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)

    found = await lane.store.find_receipts("copy", ["a", "unknown"])
    opened = await lane.store.open_lane("copy", "lane-2", None)

    view = await lane.store.load_run("copy", found["a"].receipt.run_id)
    assert ["a"] == list(found)
    assert view is not None
    assert view.assistant is not None
    assert "seen" == view.assistant.text
    # An answer's key names its approval, and so has to follow it.
    assert 6 == len(opened.head.receipts)
    assert "tool-approval:apr-c-2" not in {receipt.key for receipt in opened.head.receipts}


async def test_watchers_are_told_the_copied_history(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)

    before, _ = await lane.store.events_since(lane.conversation_id, 0, limit=1000)
    after, seq = await lane.store.events_since("copy", 0, limit=1000)

    assert [event.type for event in before] == [event.type for event in after]
    assert seq == await lane.store.last_seq("copy")
    assert {"copy"} == {event.conversation_id for event in after}


# --- what is not ----------------------------------------------------------------------------------


async def test_a_branch_has_no_power_of_its_source(lane: Lane) -> None:
    await live_talk(lane)
    copy = await branched(lane, through="run-f")
    archive = Archive.model_validate_json(await exported(copy))

    opened = await lane.store.open_lane("copy", "lane-2", None)
    requests = [
        part
        for message in archive.snapshot.messages
        for piece in message.segments
        for part in piece.parts or ()
        if isinstance(part, ToolApprovalRequestPart)
    ]
    runs = [run.run for run in archive.snapshot.runs]
    assert {(None, None)} == {(run.owner_id, run.fencing_token) for run in runs}
    assert [None, None] == [request.signature for request in requests]
    assert () == await lane.store.pending_approvals("copy")
    assert ((), ()) == (opened.head.approvals, opened.head.runs)
    assert ((), ()) == (archive.snapshot.entries, archive.snapshot.unchanged)
    assert 1 == len(await lane.store.pending_approvals(lane.conversation_id))


async def test_a_call_that_waits_for_approval_is_closed_in_the_copy_alone(lane: Lane) -> None:
    await talk(lane)
    copy = await branched(lane)

    async def outcomes(one: Lane) -> dict[str, Any]:
        messages = (await one.store.load_snapshot(one.conversation_id)).messages
        parts = [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]
        return {part.call_id: part.output["error"] for part in parts if isinstance(part.output, dict)}

    assert {"c-2": "DENIED"} == await outcomes(lane)
    assert {"c-2": "DENIED", "c-3": "LEFT_BEHIND"} == await outcomes(copy)


async def test_only_the_history_is_repeated_in_the_ledger_the_rest_is_observed(lane: Lane) -> None:
    await talk(lane)
    await branch(lane)

    before = (await lane.store.read_events(lane.conversation_id)).items
    after = (await lane.store.read_events("copy")).items

    assert {LedgerKind.TRANSITION, LedgerKind.BRANCH_OBSERVATION, LedgerKind.BRANCHED} == {e.kind for e in after}
    for one, two in zip(before, after, strict=False):
        kind = two.payload["kind"] if two.kind == LedgerKind.BRANCH_OBSERVATION else two.kind
        assert (one.kind, one.seq, one.occurred_at) == (kind, two.seq, two.occurred_at)
    drafts = [e.payload["effect"]["assistant"] for e in after if e.payload.get("type") == "checkpoint"]  # type: ignore[index,call-overload]
    assert drafts
    assert all("sha256" not in draft and "source_sha256" in draft for draft in drafts)  # type: ignore[operator]


# --- archives that lie ----------------------------------------------------------------------------


def _take_over(archive: Json) -> None:
    """Have an input of the first run belong to the last one."""
    snapshot = archive["projections"][0]["snapshot"]
    message = next(each for each in snapshot["messages"] if each["id"] == "in-b")
    message["run_id"] = "run-f"


def _absorb_by_another(archive: Json) -> None:
    runs = archive["projections"][0]["snapshot"]["runs"]
    run = next(each["run"] for each in runs if each["run"]["id"] == "run-c")
    run["absorbed_into_run_id"] = "run-f"


@pytest.mark.parametrize("lie", [_take_over, _absorb_by_another])
async def test_records_that_disagree_with_the_ledger_are_not_copied(lane: Lane, lie: Callable[[Json], None]) -> None:
    await talk(lane)
    archive = json.loads(await exported(lane))
    lie(archive)

    with pytest.raises(ArchiveInvalidError):
        await branch(lane, through="run-b", data=json.dumps(archive).encode())
    assert 0 == (await lane.store.load_snapshot("copy")).version
