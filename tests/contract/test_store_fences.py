"""Fenced writes: who may write a step or a call, and what a repeat does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from turnlane.records.errors import StaleFenceError, StoreIntegrityError
from turnlane.records.messages import TextPart, ToolResultPart
from turnlane.records.runs import OperationPhase, Run, TerminalReason
from turnlane.records.steps import Fence
from turnlane.records.usage import Provenance
from turnlane.store.payloads import NewCall

if TYPE_CHECKING:
    from tests.contract.conftest import Lane

WRITES = ("begin", "checkpoint", "finish", "begin-call", "finish-call")


async def write(lane: Lane, kind: str, fence: Fence) -> Any:
    """One fenced write of a kind."""
    match kind:
        case "begin":
            return await lane.begin_step(fence)
        case "checkpoint":
            return await lane.checkpoint(fence, TextPart(text="late"))
        case "finish":
            return await lane.finish_step(fence, TextPart(text="late"), usage=lane.reported(1))
        case "begin-call":
            return await lane.store.begin_call(fence, "out-a", 1, lane.clock())
        case _:
            return await lane.store.finish_call(fence, "out-a", 1, lane.result("c1", "late"), lane.clock())


async def run_of(lane: Lane) -> Run:
    view = await lane.store.load_run(lane.conversation_id, "run-a")
    assert view is not None
    return view.run


async def draft(lane: Lane) -> str:
    """The text of the draft."""
    return (await lane.store.load_snapshot(lane.conversation_id)).messages[-1].text


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize(
    "wrong", [{"epoch": 9}, {"token": 2}, {"run_id": "run-x"}, {"conversation_id": "c-x"}, {"attempt": 0}]
)
async def test_a_write_under_a_wrong_fence_changes_nothing(lane: Lane, kind: str, wrong: dict[str, Any]) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    before = await lane.store.load_snapshot(lane.conversation_id)
    with pytest.raises(StaleFenceError) as refused:
        await write(lane, kind, fence.model_copy(update=wrong))

    assert "stale-run" == refused.value.details["reason"]
    assert before == await lane.store.load_snapshot(lane.conversation_id)


@pytest.mark.parametrize("kind", [kind for kind in WRITES if kind != "finish"])
async def test_after_an_interrupt_request_a_write_is_refused_as_interrupted(lane: Lane, kind: str) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    await lane.apply(lane.interrupt("run-a"))
    with pytest.raises(StaleFenceError) as refused:
        await write(lane, kind, fence)

    assert "run-interrupted" == refused.value.details["reason"]


async def test_after_an_interrupt_request_a_step_may_still_be_finished(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.apply(lane.interrupt("run-a"))
    await lane.finish_step(fence, TextPart(text="kept"))

    assert "kept" == await draft(lane)


@pytest.mark.parametrize("kind", WRITES)
async def test_after_a_run_ended_no_write_lands(lane: Lane, kind: str) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    await lane.apply(lane.settle("run-a", TerminalReason.PROVIDER_STOP))
    view = await lane.store.load_run(lane.conversation_id, "run-a")
    with pytest.raises(StaleFenceError) as refused:
        await write(lane, kind, fence)

    assert "stale-run" == refused.value.details["reason"]
    assert view == await lane.store.load_run(lane.conversation_id, "run-a")


@pytest.mark.parametrize("kind", WRITES)
async def test_a_new_epoch_stops_every_write_of_the_old_one(lane: Lane, kind: str) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    with pytest.raises(StaleFenceError):
        await write(lane, kind, fence)


@pytest.mark.parametrize("kind", WRITES)
async def test_an_older_attempt_cannot_write_over_a_newer_one(lane: Lane, kind: str) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    await lane.begin_step(lane.fence("run-a", attempt=2))

    with pytest.raises(StaleFenceError):
        await write(lane, kind, fence)


async def test_a_new_attempt_of_a_step_clears_what_the_earlier_one_left(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="step 0;"))
    second = lane.fence("run-a", step=1)
    await lane.begin_step(second)
    await lane.checkpoint(second, TextPart(text="half"))
    third = lane.fence("run-a", step=1, attempt=2)
    await lane.begin_step(third)
    cleared = await draft(lane)
    await lane.finish_step(third, TextPart(text="step 1"))

    assert ("step 0;", "step 0;step 1") == (cleared, await draft(lane))


async def test_beginning_a_step_twice_with_one_fence_counts_once(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    first = await lane.begin_step(fence)
    again = await lane.begin_step(fence)

    assert (3, 2) == (first.version, first.revision)
    assert (first.version, first.revision, ()) == (again.version, again.revision, again.events)
    assert (await run_of(lane)).usage is None


async def test_finishing_a_step_twice_spends_once(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    first = await lane.finish_step(fence, TextPart(text="once"), usage=lane.reported(5, 0.5))
    again = await lane.finish_step(fence, TextPart(text="twice"), usage=lane.reported(5, 0.5))

    assert (first.version, first.revision) == (again.version, again.revision)
    assert lane.reported(5, 0.5) == (await run_of(lane)).usage
    assert "once" == await draft(lane)


async def test_a_checkpoint_after_its_step_finished_is_stale(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="whole"))
    with pytest.raises(StaleFenceError):
        await lane.checkpoint(fence, TextPart(text="half"))

    assert "whole" == await draft(lane)


async def test_a_checkpoint_replaces_the_draft_of_its_step_only(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="0;"))
    second = lane.fence("run-a", step=1)
    await lane.begin_step(second)
    await lane.checkpoint(second, TextPart(text="x"), first_output=True)
    await lane.checkpoint(second, TextPart(text="x y"))
    run = await run_of(lane)

    assert "0;x y" == await draft(lane)
    assert run.last_operation is not None
    assert (OperationPhase.FIRST_OUTPUT, "op-1") == (run.last_operation.phase, run.last_operation.operation_id)


async def test_each_fenced_write_is_one_mutation(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    writes = [
        await lane.begin_step(fence),
        await lane.checkpoint(fence, TextPart(text="x")),
        await lane.finish_step(fence, TextPart(text="x y"), usage=lane.reported(1)),
    ]

    assert [(3, 2), (4, 3), (5, 4)] == [(written.version, written.revision) for written in writes]
    assert (5, 4) == ((await lane.store.load_snapshot(lane.conversation_id)).version, (await run_of(lane)).revision)


async def test_an_attempt_that_never_reported_makes_the_tokens_a_floor(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    retry = lane.fence("run-a", attempt=2)
    await lane.begin_step(retry)
    await lane.finish_step(retry, TextPart(text="x"), usage=lane.reported(5, 0.5))
    usage = (await run_of(lane)).usage

    assert usage is not None and usage.cost is not None
    assert (5, Provenance.COMPUTED) == (usage.input_tokens.value, usage.input_tokens.provenance)
    assert Provenance.UNAVAILABLE is usage.cost.provenance


async def test_a_failed_attempt_leaves_its_spend_and_no_parts(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="half"))
    await lane.finish_step(fence, TextPart(text="half"), usage=lane.reported(2, 0.25), keep_parts=False)
    opened = await lane.store.open_lane(lane.conversation_id, "lane-1", None)

    assert "" == await draft(lane)
    assert lane.reported(2, 0.25) == (await run_of(lane)).usage
    assert opened.progress is not None
    assert (0, 2) == (opened.progress.step, opened.progress.attempt)


async def test_a_call_is_begun_with_the_arguments_of_the_model(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1", "c2")
    first = await lane.store.begin_call(fence, "out-a", 2, lane.clock())
    again = await lane.store.begin_call(fence, "out-a", 2, lane.clock())

    assert ({"at": "c2"}, False, None) == (first.input, first.started_before, first.result)
    assert ({"at": "c2"}, True, None) == (again.input, again.started_before, again.result)


async def test_beginning_a_call_moves_no_version(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    before = (await lane.store.load_snapshot(lane.conversation_id)).version
    await lane.store.begin_call(fence, "out-a", 1, lane.clock())

    assert before == (await lane.store.load_snapshot(lane.conversation_id)).version


async def test_the_first_result_of_a_call_stands(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")
    first = await lane.store.finish_call(fence, "out-a", 1, lane.result("c1", "first"), lane.clock())
    again = await lane.store.finish_call(fence, "out-a", 1, lane.result("c1", "second"), lane.clock())
    begun = await lane.store.begin_call(fence, "out-a", 1, lane.clock())

    assert (first.version, ()) == (again.version, again.events)
    assert lane.result("c1", "first") == begun.result


async def test_results_stand_in_call_order_whatever_order_they_came_in(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1", "c2")
    await lane.store.finish_call(fence, "out-a", 2, lane.result("c2"), lane.clock())
    await lane.store.finish_call(fence, "out-a", 1, lane.result("c1"), lane.clock())
    second = lane.fence("run-a", step=1)
    await lane.begin_step(second)
    await lane.finish_step(second, TextPart(text="done"))
    parts = (await lane.store.load_snapshot(lane.conversation_id)).messages[-1].parts

    assert ["tool-call", "tool-call", "tool-result", "tool-result", "text"] == [part.type for part in parts]
    assert ["c1", "c2"] == [part.call_id for part in parts if isinstance(part, ToolResultPart)]


async def test_a_call_refused_at_once_has_its_result_already(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    refused = NewCall(slot=1, call_id="c1", tool_name="look", result=lane.result("c1", "unknown tool"))
    await lane.finish_step(fence, calls=[refused])
    parts = (await lane.store.load_snapshot(lane.conversation_id)).messages[-1].parts

    assert (lane.result("c1", "unknown tool"),) == parts


async def test_a_call_that_the_step_does_not_have_is_an_integrity_error(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")

    with pytest.raises(StoreIntegrityError):
        await lane.store.begin_call(fence, "out-a", 7, lane.clock())


async def test_a_result_for_another_call_is_an_integrity_error(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1")

    with pytest.raises(StoreIntegrityError):
        await lane.store.finish_call(fence, "out-a", 1, lane.result("c9"), lane.clock())


async def test_the_evidence_of_a_step_is_in_the_ledger(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="secret words"))
    events = (await lane.store.read_events(lane.conversation_id)).items

    assert [
        "runtime/transition",
        "runtime/transition",
        "runtime/transition",
        "provider/request",
        "runtime/transition",
        "provider/response",
    ] == [event.kind for event in events]
    assert [{"model": "m-1"}, {"response": "r-1"}] == [events[3].payload, events[5].payload]
    assert [2, 3, 3, 4, 4] == [event.version for event in events][1:]


async def test_the_ledger_names_content_by_digest_and_never_holds_it(lane: Lane) -> None:
    fence = await lane.begin_run("a", message=lane.message("in-a", text="secret question"))
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="secret ans"))
    await lane.finish_step(fence, TextPart(text="secret answer"))
    await lane.apply(lane.settle("run-a"), lane.compact("sum", "in-a", "out-a"), lane.seed("s", "secret-seed"))
    events = (await lane.store.read_events(lane.conversation_id)).items

    assert [] == [event for event in events if "secret " in event.model_dump_json()]
    assert {"id", "status", "sha256", "parts", "bytes"} == set(events[0].payload["effect"]["message"])  # type: ignore[call-overload, index, arg-type]


async def test_a_lane_that_opens_again_knows_which_model_its_run_speaks_with(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence, model=2)

    reopened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert reopened.progress is not None
    assert 2 == reopened.progress.model


async def test_a_run_that_begins_anew_speaks_with_its_agents_own_model(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence, model=2)
    await lane.commit(lane.requeue("run-a"), lane.start("run-a"))

    reopened = await lane.store.open_lane(lane.conversation_id, "lane-2", None)

    assert reopened.progress is not None
    assert 0 == reopened.progress.model


async def test_a_run_is_read_as_far_as_it_got_step_by_step(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1", "c2")
    result = lane.result("c2", "two")
    await lane.store.begin_call(fence, "out-a", 2, lane.clock())
    await lane.store.finish_call(fence, "out-a", 2, result, lane.clock())

    answer = await lane.store.load_answer(lane.conversation_id, "run-a")

    assert answer is not None
    (step,) = answer.steps
    assert (0, (result,), ("c1",)) == (step.step, step.results, step.open_calls)
    assert await lane.store.load_answer(lane.conversation_id, "run-x") is None


async def test_a_draft_and_an_admission_at_one_moment_both_land(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)

    written, committed = await asyncio.gather(
        lane.checkpoint(fence, TextPart(text="so far")), lane.commit(lane.admit("b"))
    )

    snapshot = await lane.store.load_snapshot(lane.conversation_id)
    assert written.version != committed.reply.results[-1].version
    assert ["run-a", "run-b"] == [run.id for run in snapshot.runs]
    assert "so far" in [message.text for message in snapshot.messages]
