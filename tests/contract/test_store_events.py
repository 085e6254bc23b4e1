"""Delivery events and the ledger: what a commit makes known, and that a late reader learns the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.errors import InvalidInputError
from turnlane.records.events import AdmissionEvent, AssistantCheckpointEvent, DurableEvent, TerminalEvent
from turnlane.records.messages import FilePart, MessageStatus, TextPart
from turnlane.records.runs import RunState, TerminalReason
from turnlane.records.usage import computed, stated

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


def ids(events: Sequence[DurableEvent]) -> list[str]:
    return [event.event_id for event in events]


def to_the_letter(event: DurableEvent) -> str:
    """An event's JSON, in which 1 and 1.0 are two things; the order of keys means nothing."""
    return canonical_json(event.model_dump(mode="json"))


async def test_an_admission_is_told_with_its_input_and_run(lane: Lane) -> None:
    mutation = lane.admit("a")
    committed = await lane.commit(mutation)
    admission = committed.events[0]

    assert ["run-a:admission:1", "run-a:run-state:1"] == ids(committed.events)
    assert isinstance(admission, AdmissionEvent)
    assert ("question a", RunState.QUEUED, "out-a") == (
        admission.input.text,
        admission.run.state,
        admission.assistant_message_id,
    )
    assert mutation.at == admission.emitted_at


async def test_a_coalesced_input_is_told_under_the_run_it_joined(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    committed = await lane.commit(lane.admit("b", into="run-a"))

    assert ["run-a:admission:2", "run-a:run-state:2"] == ids(committed.events)


@pytest.mark.parametrize("kind", ["interrupt", "requeue"])
async def test_a_change_of_state_is_told(lane: Lane, kind: str) -> None:
    await lane.begin_run("a")
    committed = await lane.commit(getattr(lane, kind)("run-a"))

    assert ["run-a:run-state:3"] == ids(committed.events)


async def test_a_step_is_told_as_it_goes(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    begun = await lane.begin_step(fence)
    first = await lane.checkpoint(fence, TextPart(text="x"), first_output=True)
    later = await lane.checkpoint(fence, TextPart(text="x y"))
    finished = await lane.finish_step(fence, TextPart(text="x y z"), usage=lane.reported(3))

    assert ["run-a:run-operation:3"] == ids(begun.events)
    assert ["run-a:run-operation:4", "run-a:assistant-checkpoint:4"] == ids(first.events)
    assert ["run-a:assistant-checkpoint:5"] == ids(later.events)
    assert ["run-a:run-operation:6", "run-a:assistant-checkpoint:6"] == ids(finished.events)
    draft = finished.events[1]
    assert isinstance(draft, AssistantCheckpointEvent) and draft.metrics is not None
    assert ("x y z", True, stated(lane.reported(3))) == (
        draft.message.text,
        draft.metrics.partial,
        draft.metrics.usage,
    )


async def test_a_result_is_told_as_a_checkpoint(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    written = await lane.store.finish_call(fence, "out-a", 1, lane.result("c1"), lane.clock())
    draft = written.events[0]

    assert isinstance(draft, AssistantCheckpointEvent)
    assert lane.result("c1") == draft.message.parts[-1]


async def test_an_end_is_told_with_the_whole_answer(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="42"), usage=lane.reported(3, 0.5))
    committed = await lane.commit(lane.settle("run-a", TerminalReason.POLICY_STOP, policy_name="max-steps"))
    (terminal,) = committed.events

    assert isinstance(terminal, TerminalEvent) and terminal.metrics is not None
    assert ("42", MessageStatus.COMPLETED, "max-steps") == (
        terminal.message.text,
        terminal.message.status,
        terminal.policy_name,
    )
    assert (False, computed(lane.reported(3, 0.5))) == (terminal.metrics.partial, terminal.metrics.usage)


async def test_absorbed_runs_are_told_before_the_end(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"))
    committed = await lane.commit(lane.settle("run-a", absorbed=[("run-b", ("in-b",))]))

    assert ["run-b:run-state:4", "run-a:terminal:4"] == ids(committed.events)


async def test_a_cancel_is_told_as_state_and_end_and_an_abandoned_run_as_state_only(lane: Lane) -> None:
    await lane.apply(lane.admit("a"), lane.admit("b"))
    cancelled = await lane.commit(lane.settle("run-a", TerminalReason.CANCELLED))
    abandoned = await lane.commit(lane.settle("run-b", TerminalReason.ABANDONED))

    assert ["run-a:run-state:3", "run-a:terminal:3"] == ids(cancelled.events)
    assert ["run-b:run-state:4"] == ids(abandoned.events)


async def test_seeds_summaries_and_notes_are_not_told(lane: Lane) -> None:
    committed = await lane.commit(lane.seed("s", "seed-1"), lane.compact("sum", "seed-1"), lane.note())

    assert () == committed.events


async def test_a_late_reader_is_told_what_was_published(lane: Lane) -> None:
    told: list[DurableEvent] = []
    told += (await lane.commit(lane.admit("a"), lane.start("run-a"), lane.admit("b"))).events
    fence = lane.fence("run-a")
    told += (await lane.begin_step(fence)).events
    told += (await lane.finish_step(fence, TextPart(text="42"))).events
    ended = (await lane.commit(lane.settle("run-a"), lane.start("run-b"), lane.settle("run-b"))).events
    caught_up, last = await lane.store.events_since(lane.conversation_id, 0)

    published = [event for event in (*told, *ended) if not isinstance(event, AssistantCheckpointEvent)]
    assert published == list(caught_up)
    assert (await lane.store.read_events(lane.conversation_id)).items[-1].seq == last


async def test_an_input_is_told_to_the_letter_as_it_is_kept(lane: Lane) -> None:
    metadata: JsonObject = {"z": 1.0, "a": [None, True, 2**53, 1e300, -0.5], "text": "ü\u2028\U0001f600", "none": {}}
    parts = (TextPart(text="line\nline\u0007"), FilePart(media_type="image/png", reference="file:a"))
    message = lane.message("in-a", parts=parts, metadata=metadata)
    published = (await lane.commit(lane.admit("a", message=message))).events
    caught_up, _ = await lane.store.events_since(lane.conversation_id, 0)

    assert [to_the_letter(event) for event in caught_up] == [to_the_letter(event) for event in published]


async def test_a_late_reader_is_told_only_the_draft_that_stands(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="x"))
    standing = (await lane.checkpoint(fence, TextPart(text="x y"))).events
    caught_up, _ = await lane.store.events_since(lane.conversation_id, 0)

    assert list(standing) == [event for event in caught_up if isinstance(event, AssistantCheckpointEvent)]


async def test_events_are_read_in_pages_without_a_hole(lane: Lane) -> None:
    for key in ("a", "b", "c"):
        await lane.answer(key)
    whole, end = await lane.store.events_since(lane.conversation_id, 0)
    paged: list[DurableEvent] = []
    seq = 0
    while seq < end:
        events, seq = await lane.store.events_since(lane.conversation_id, seq, limit=2)
        paged += events

    assert list(whole) == paged
    assert ((), end) == await lane.store.events_since(lane.conversation_id, end)


async def test_parallel_appends_leave_no_hole(lane: Lane) -> None:
    await lane.store.append_event(lane.conversation_id, "app/first", {}, lane.clock())
    appends = (lane.store.append_event(lane.conversation_id, "app/n", {"n": n}, lane.clock()) for n in range(20))
    appended = await asyncio.gather(*appends)
    page = await lane.store.read_events(lane.conversation_id, from_seq=5, to_seq=9, limit=3)

    assert list(range(2, 22)) == sorted(event.seq for event in appended)
    assert ([5, 6, 7], 8) == ([event.seq for event in page.items], page.next_seq)
    assert {True} == {event.ignorable for event in page.items}


async def test_an_event_under_a_key_is_appended_once_a_kind(lane: Lane) -> None:
    first = await lane.store.append_event(lane.conversation_id, "app/a", {"n": 1}, lane.clock(), key="k")
    again = await lane.store.append_event(lane.conversation_id, "app/a", {"n": 2}, lane.clock(), key="k")
    other = await lane.store.append_event(lane.conversation_id, "app/b", {"n": 3}, lane.clock(), key="k")

    assert (first, 2) == (again, other.seq)


async def test_an_appended_event_makes_no_conversation(lane: Lane) -> None:
    await lane.store.append_event("c-new", "app/a", {}, lane.clock())

    assert () == (await lane.store.list_conversations()).items


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 10_001}, {"from_seq": 0}, {"from_seq": 3, "to_seq": 2}])
async def test_bounds_of_a_ledger_page_are_checked(lane: Lane, wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        await lane.store.read_events(lane.conversation_id, **wrong)  # type: ignore[arg-type]


async def test_the_ledger_is_contiguous_and_ends_at_the_version_of_the_head(lane: Lane) -> None:
    for key in ("a", "b"):
        await lane.answer(key)
    events = (await lane.store.read_events(lane.conversation_id)).items
    snapshot = await lane.store.load_snapshot(lane.conversation_id)

    assert list(range(1, len(events) + 1)) == [event.seq for event in events]
    assert snapshot.version == events[-1].version
    assert len(events) == len({event.event_id for event in events})
    transitions = [event.version for event in events if event.kind == "runtime/transition"]
    assert list(range(1, snapshot.version + 1)) == transitions
