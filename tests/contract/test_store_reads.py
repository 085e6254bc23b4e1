"""Reads and lists: heads, pages, cursors, and the wall between tenants."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from turnlane.records.admissions import Policy
from turnlane.records.errors import InvalidInputError
from turnlane.records.lane import ids_for_key
from turnlane.records.limits import KIB
from turnlane.records.runs import RunState
from turnlane.store.payloads import StoredBlob
from turnlane.store.sql import SqlStore

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_an_opened_head_is_what_was_committed(lane: Lane) -> None:
    await lane.begin_run("a", tenant="t")
    await lane.apply(
        lane.admit("b", policy=Policy.INJECT, tenant="t"), lane.admit("u", policy=Policy.INTERRUPT_NEXT, tenant="t")
    )
    head = (await lane.store.open_lane(lane.conversation_id, "lane-2", None)).head

    assert ("helper", "t", 4, 4, 3) == (head.agent, head.tenant, head.version, head.seq, head.order)
    assert ["run-a", "run-u", "run-b"] == [run.id for run in head.runs]
    assert [(RunState.RUNNING, True, 1, False), (RunState.QUEUED, False, 0, True)] == [
        (run.state, run.started, run.token, run.urgent) for run in head.runs[:2]
    ]
    assert [(), (), ("in-b",)] == [run.offered for run in head.runs]
    assert (["a", "b", "u"], True) == ([receipt.key for receipt in head.receipts], head.receipts_complete)


async def test_a_receipt_leaves_out_the_ids_that_follow_from_its_key(lane: Lane) -> None:
    usual = ids_for_key(lane.conversation_id, "k")
    message = lane.message(usual.input_message_id)
    await lane.apply(lane.admit("k", message=message, run_id=usual.run_id, assistant_id="out-k"))
    (receipt,) = (await lane.store.open_lane(lane.conversation_id, "lane-2", None)).head.receipts

    assert ("", "", "out-k") == (receipt.input_message_id, receipt.run_id, receipt.assistant_message_id)


async def test_a_head_holds_the_last_512_receipts(lane: Lane) -> None:
    keys = [f"k{number}" for number in range(513)]
    await lane.apply(*(lane.admit(key) for key in keys))
    head = (await lane.store.open_lane(lane.conversation_id, "lane-2", None)).head

    assert (keys[1:], False) == ([receipt.key for receipt in head.receipts], head.receipts_complete)


async def test_a_long_queue_is_loaded_in_pages_without_a_hole(lane: Lane) -> None:
    keys = [f"{number:04}-{'x' * 200}" for number in range(300)]
    await lane.apply(*(lane.admit(key) for key in keys), lane.admit("u", policy=Policy.INTERRUPT_NEXT))
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)
    runs, more = opened.head.runs, opened.more
    sizes = [len(run.model_dump_json()) for run in runs]
    while more:
        page, more = await lane.store.load_queue(lane.conversation_id, runs[-1].id)
        runs += page

    assert opened.more and sum(sizes) <= 48 * KIB
    assert ["run-u", *(f"run-{key}" for key in keys)] == [run.id for run in runs]


async def test_a_thousand_urgent_runs_with_the_longest_ids_are_loaded_in_small_pages(lane: Lane) -> None:
    keys = [f"{number:04}" + "\N{GRINNING FACE}" * 251 for number in range(1000)]
    for start in range(0, 1000, 250):
        batch = keys[start : start + 250]
        urgent = Policy.INTERRUPT_NEXT
        await lane.apply(
            *(
                lane.admit(k, policy=urgent, message=lane.message(k), run_id=f"r{k}", assistant_id=f"a{k}")
                for k in batch
            )
        )
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)
    sizes, runs, more = [len(opened.model_dump_json().encode())], opened.head.runs, opened.more
    while more:
        page, more = await lane.store.load_queue(lane.conversation_id, runs[-1].id)
        sizes.append(sum(len(run.model_dump_json().encode()) for run in page))
        runs += page

    assert keys == [run.input_ids[0] for run in runs]
    assert max(sizes) <= 112 * KIB


async def test_messages_are_listed_in_pages_in_causal_order(lane: Lane) -> None:
    for key in ("a", "b", "c"):
        await lane.answer(key)
    seen: list[str] = []
    cursor = None
    while True:
        page = await lane.store.list_messages(lane.conversation_id, limit=2, cursor=cursor)
        seen += [message.id for message in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert ["in-a", "out-a", "in-b", "out-b", "in-c", "out-c"] == seen


async def test_runs_are_listed_in_pages_in_order_of_admission(lane: Lane) -> None:
    await lane.answer("z")
    await lane.apply(lane.admit("b"), lane.admit("u", policy=Policy.INTERRUPT_NEXT))
    first, cursor = await lane.store.list_runs(lane.conversation_id, limit=2)
    rest, end = await lane.store.list_runs(lane.conversation_id, limit=2, cursor=cursor)

    assert (["run-z", "run-b"], ["run-u"], None) == ([r.id for r in first], [r.id for r in rest], end)


async def test_conversations_are_seen_once_while_they_change(lane: Lane) -> None:
    lanes = [await lane.beside(f"c-{number}").open() for number in range(5)]
    for each in lanes:
        await each.apply(each.admit("a"))
    first = await lane.store.list_conversations(limit=2)
    for each in lanes:
        await each.apply(each.admit("b"))
    second = await lane.store.list_conversations(limit=2, cursor=first.next_cursor)
    third = await lane.store.list_conversations(limit=2, cursor=second.next_cursor)
    lines = [line for page in (first, second, third) for line in page.items]

    assert {each.conversation_id for each in lanes} == {line.conversation_id for line in lines}
    assert (5, [1, 1, 2, 2, 2], None) == (len(lines), [line.active_runs for line in lines], third.next_cursor)


async def test_recoverable_runs_are_scanned_once_though_the_cursors_run_ended(lane: Lane) -> None:
    lanes = [await lane.beside(f"c-{number}").open() for number in range(4)]
    for each in lanes:
        await each.apply(each.admit("a"))
    first = await lane.store.scan_recoverable(limit=2)
    await lanes[1].apply(lanes[1].start("run-a"), lanes[1].settle("run-a"))
    second = await lane.store.scan_recoverable(limit=2, cursor=first.next_cursor)

    assert ["c-0", "c-1"] == [item.conversation_id for item in first.items]
    assert (["c-2", "c-3"], None) == ([item.conversation_id for item in second.items], second.next_cursor)


async def test_ids_never_alias_in_a_cursor(lane: Lane) -> None:
    names = [("a", 'b","c'), ('a","b', "c")]
    for conversation, run in names:
        each = await lane.beside(conversation).open()
        await each.apply(each.admit("k", run_id=run))
    first = await lane.store.scan_recoverable(limit=1)
    second = await lane.store.scan_recoverable(limit=1, cursor=first.next_cursor)

    assert sorted(names) == [(page.items[0].conversation_id, page.items[0].run_id) for page in (first, second)]


@pytest.mark.parametrize("cursor", ["", "?", "bm9wZQ", base64.urlsafe_b64encode(b'["runs","x"]').decode()])
async def test_a_made_up_cursor_is_the_callers_mistake(lane: Lane, cursor: str) -> None:
    await lane.apply(lane.admit("a"))
    reads = (
        lane.store.list_messages(lane.conversation_id, cursor=cursor),
        lane.store.list_runs(lane.conversation_id, cursor=cursor),
        lane.store.list_conversations(cursor=cursor),
        lane.store.scan_recoverable(cursor=cursor),
    )

    for read in reads:
        with pytest.raises(InvalidInputError):
            await read


async def test_a_cursor_of_another_list_is_refused(lane: Lane) -> None:
    await lane.apply(lane.admit("a"), lane.admit("b"))
    _, cursor = await lane.store.list_runs(lane.conversation_id, limit=1)

    with pytest.raises(InvalidInputError):
        await lane.store.list_messages(lane.conversation_id, cursor=cursor)


async def test_another_tenants_conversation_answers_as_an_unknown_one(lane: Lane) -> None:
    await lane.answer("a", tenant="mine")
    await lane.apply(lane.admit("b", tenant="mine"))
    store, here = lane.store, lane.conversation_id

    assert await answers(store, "c-unknown", "other") == await answers(store, here, "other", called="c-unknown")
    assert await answers(store, here, "mine") == await answers(store, here, None)
    assert [1, 0] == [len((await store.list_conversations(tenant=tenant)).items) for tenant in ("mine", "other")]


async def test_another_tenants_blob_is_not_there(lane: Lane) -> None:
    await lane.answer("a", tenant="mine")
    blob = await lane.store.put_blob(lane.conversation_id, b"[]", "application/json", lane.clock())
    found = [await lane.store.get_blob(lane.conversation_id, blob.id, tenant=name) for name in ("mine", None, "other")]

    assert [b"[]", b"[]", None] == found


async def answers(store: SqlStore, here: str, tenant: str | None, *, called: str | None = None) -> list[object]:
    """What every read answers; `called` renames the conversation in the answers."""
    snapshot = await store.load_snapshot(here, tenant=tenant)
    return [
        snapshot.model_copy(update={"conversation_id": called or here}),
        await store.load_run(here, "run-a", tenant=tenant),
        await store.list_active_runs(here, tenant=tenant),
        await store.list_messages(here, tenant=tenant),
        await store.list_runs(here, tenant=tenant),
        await store.read_events(here, tenant=tenant),
        await store.events_since(here, 0, tenant=tenant),
    ]


async def test_a_run_of_another_conversation_is_unknown(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    other = await lane.beside().open()
    await other.apply(other.admit("b"))

    assert await lane.store.load_run(other.conversation_id, "run-a") is None
    assert () == await lane.store.list_active_runs("c-unknown")


async def test_blobs_are_found_without_their_content(lane: Lane) -> None:
    kept = await lane.store.put_blob(lane.conversation_id, b"12345", "image/png", lane.clock())

    found = await lane.store.find_blobs(lane.conversation_id, [kept.id, "blob-none"])

    assert {kept.id: StoredBlob(media_type="image/png", size=5)} == found


async def test_a_blob_of_another_conversation_is_not_found(lane: Lane) -> None:
    kept = await lane.store.put_blob(lane.conversation_id, b"12345", "image/png", lane.clock())

    assert {} == await lane.store.find_blobs("another", [kept.id])
