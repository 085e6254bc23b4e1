"""Runs in the store: admission, acquisition, another try, and the order of what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from turnlane.records.admissions import Policy
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.lane import AbortReason
from turnlane.records.messages import MessageStatus, TextPart
from turnlane.records.runs import QueuePriority, RunState, TerminalReason
from turnlane.records.steps import FinishReason

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


async def test_an_admitted_run_is_queued_at_revision_0(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    run = await lane.stored("run-a")

    assert (RunState.QUEUED, 0, 1, None) == (run.state, run.revision, run.admission_order, run.execution_sequence)
    assert ("in-a",) == run.input_message_ids


async def test_a_coalesced_input_joins_the_queued_run(lane: Lane) -> None:
    results = await lane.apply(lane.admit("a"), lane.admit("b", into="run-a"))
    run = await lane.stored("run-a")

    assert (2, {"run-a": 1}) == (results[1].version, results[1].revisions)
    assert (("in-a", "in-b"), 1) == (run.input_message_ids, run.revision)
    assert await lane.store.load_run(lane.conversation_id, "run-b") is None


async def test_a_coalesced_input_stands_behind_the_first_and_before_later_runs(lane: Lane) -> None:
    await lane.apply(lane.admit("a"), lane.admit("z"), lane.admit("b", into="run-a"))

    assert ["in-a", "in-b", "in-z"] == await lane.said()


async def test_an_input_on_a_reserved_answer_id_is_refused(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.admit("b", into="run-a", message=lane.message("out-a")))


async def test_an_input_on_an_answer_id_reserved_in_the_same_batch_is_refused(lane: Lane) -> None:
    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.admit("a"), lane.admit("b", message=lane.message("out-a")))


@pytest.mark.parametrize(
    "taken", [{"run_id": "run-a"}, {"assistant_id": "out-a"}, {"assistant_id": "in-a"}, {"assistant_id": "in-b"}]
)
async def test_ids_in_use_are_refused(lane: Lane, taken: dict[str, Any]) -> None:
    await lane.apply(lane.admit("a"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.admit("b", **taken))


async def test_an_input_id_in_use_is_refused(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.admit("b", message=lane.message("in-a")))


async def test_collisions_name_the_ids_in_use(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))
    found = await lane.store.find_collisions(lane.conversation_id, ["in-a", "run-a", "out-a", "in-b", "run-b"])

    assert {"in-a", "run-a", "out-a"} == found


async def test_a_started_run_has_its_sequence_token_owner_and_an_empty_draft(lane: Lane) -> None:
    await lane.apply(lane.admit("a"), lane.admit("b", into="run-a"))
    (acquired,) = await lane.apply(lane.start("run-a"))
    run = await lane.stored("run-a")
    draft = (await lane.store.load_snapshot(lane.conversation_id)).messages[-1]

    assert (3, {"run-a": 2}) == (acquired.version, acquired.revisions)
    assert (RunState.RUNNING, 3, 1, "worker-1") == (
        run.state,
        run.execution_sequence,
        run.fencing_token,
        run.owner_id,
    )
    assert ("out-a", MessageStatus.STREAMING, ()) == (draft.id, draft.status, draft.parts)


async def test_a_live_run_has_no_answer_in_its_view(lane: Lane) -> None:
    await lane.begin_run("a")
    view = await lane.store.load_run(lane.conversation_id, "run-a")

    assert view is not None
    assert (2, None) == (view.snapshot_version, view.assistant)


async def test_a_run_cannot_be_started_while_another_is_live(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.start("run-b"))


async def test_an_ended_run_and_its_successor_fit_in_one_batch(lane: Lane) -> None:
    await lane.begin_run("a")
    joined = (lane.admit("b"), lane.admit("c", into="run-b"), lane.settle("run-a"), lane.start("run-b"))
    await lane.apply(*joined)

    assert RunState.RUNNING is (await lane.stored("run-b")).state


@pytest.mark.parametrize("act", ["start", "interrupt", "requeue", "settle"])
async def test_an_unknown_run_is_an_integrity_error(lane: Lane, act: str) -> None:
    with pytest.raises(StoreIntegrityError):
        await lane.commit(getattr(lane, act)("run-nobody"))


async def test_a_queued_run_cannot_be_asked_to_stop(lane: Lane) -> None:
    await lane.apply(lane.admit("a"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.interrupt("run-a"))


async def test_an_interrupt_is_stored_with_its_reason(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.interrupt("run-a"))
    opened = await lane.store.open_lane(lane.conversation_id, "lane-1", None)

    assert [(RunState.INTERRUPT_REQUESTED, AbortReason.INTERRUPT)] == [(r.state, r.abort) for r in opened.head.runs]


async def test_a_success_may_still_land_after_an_interrupt_request(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.interrupt("run-a"), lane.settle("run-a"))

    assert TerminalReason.SUCCESS is (await lane.stored("run-a")).terminal_reason


async def test_a_requeued_run_keeps_token_sequence_usage_and_draft(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="so far"), usage=lane.reported(3, 0.5))
    before = await lane.stored("run-a")
    await lane.apply(lane.requeue("run-a"))
    after = await lane.stored("run-a")

    changed = {"state": RunState.QUEUED, "owner_id": None, "revision": before.revision + 1}
    assert before.model_copy(update={**changed, "updated_at": after.updated_at}) == after
    assert "so far" == (await lane.store.load_snapshot(lane.conversation_id)).messages[-1].text


async def test_a_run_started_again_begins_with_an_empty_draft_in_its_old_place(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="half"))
    await lane.apply(lane.requeue("run-a"), lane.admit("b"), lane.start("run-a"))
    run = await lane.stored("run-a")
    snapshot = await lane.store.load_snapshot(lane.conversation_id)

    assert (2, 2) == (run.fencing_token, run.execution_sequence)
    assert ["in-a", "out-a", "in-b"] == [message.id for message in snapshot.messages]
    assert () == snapshot.messages[1].parts


async def test_a_resumed_run_keeps_its_finished_steps_only(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    await lane.store.finish_call(fence, "out-a", 1, lane.result("c1"), lane.clock())
    second = lane.fence("run-a", step=1)
    await lane.begin_step(second)
    await lane.checkpoint(second, TextPart(text="half"))
    await lane.apply(lane.requeue("run-a"), lane.start("run-a", resumes=True))
    opened = await lane.store.open_lane(lane.conversation_id, "lane-1", None)

    assert "" == (await lane.store.load_snapshot(lane.conversation_id)).messages[-1].text
    assert opened.progress is not None
    assert (1, 1) == (opened.progress.step, opened.progress.attempt)


async def test_a_run_that_waits_to_be_taken_up_again_goes_on_behind_its_finished_steps(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    await lane.store.finish_call(fence, "out-a", 1, lane.result("c1"), lane.clock())
    await lane.apply(lane.requeue("run-a"))
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert opened.progress is not None
    assert ("run-a", 1) == (opened.progress.run_id, opened.progress.step)


async def test_a_last_step_whose_run_did_not_end_is_made_again_in_its_place(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="all of it"))
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert opened.progress is not None
    assert (0, 2) == (opened.progress.step, opened.progress.attempt)


@pytest.mark.parametrize(
    ("finish", "step", "complete"), [(FinishReason.STOP, 0, "stop"), (FinishReason.PAUSED, 1, None)]
)
async def test_a_step_in_which_the_provider_paused_is_not_a_runs_last(
    lane: Lane, finish: FinishReason, step: int, complete: str | None
) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="so far"), finish=finish)
    opened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert opened.progress is not None
    ended = opened.progress.complete
    assert (step, complete) == (opened.progress.step, ended.finish if ended is not None else None)


async def test_a_token_that_does_not_grow_is_refused(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.requeue("run-a"))
    lane.tokens["run-a"] = 0

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.start("run-a"))


async def test_active_runs_are_listed_live_first_then_urgent_then_by_admission(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("z"), lane.admit("b"), lane.admit("u", policy=Policy.INTERRUPT_NEXT))
    runs = await lane.store.list_active_runs(lane.conversation_id)

    assert ["run-a", "run-u", "run-z", "run-b"] == [run.id for run in runs]
    assert QueuePriority.INTERRUPT_NEXT is runs[1].queue_priority
    assert ["in-a", "out-a", "in-u", "in-z", "in-b"] == await lane.said()


async def test_runs_are_ordered_as_they_started(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"), lane.admit("c", policy=Policy.INTERRUPT_NEXT))
    for ended, started in (("run-a", "run-c"), ("run-c", "run-b")):
        await lane.apply(lane.settle(ended, TerminalReason.ABANDONED), lane.start(started))
    runs = (await lane.store.load_snapshot(lane.conversation_id)).runs

    assert [("run-a", 2), ("run-c", 6), ("run-b", 8)] == [(run.id, run.execution_sequence) for run in runs]


async def test_a_receipt_names_the_run_it_was_first_given(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b", policy=Policy.INJECT))
    await lane.apply(lane.settle("run-a", absorbed=[("run-b", ("in-b",))]))
    found = await lane.store.find_receipts(lane.conversation_id, ["b", "nobody"])

    assert ["b"] == list(found)
    assert ("run-b", "in-b", Policy.INJECT, 3) == (
        found["b"].receipt.run_id,
        found["b"].receipt.input_message_id,
        found["b"].receipt.policy,
        found["b"].version,
    )


async def test_a_run_is_active_until_it_has_ended(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.apply(lane.admit("b"))
    assert [True, True, False] == [
        await lane.store.is_active(lane.conversation_id, name) for name in ("run-a", "run-b", "run-c")
    ]
    await lane.apply(lane.interrupt("run-a"))
    assert await lane.store.is_active(lane.conversation_id, fence.run_id)
    await lane.apply(lane.settle("run-a", TerminalReason.INTERRUPTED))

    assert not await lane.store.is_active(lane.conversation_id, fence.run_id)
    assert not await lane.store.is_active("none", "run-b")
