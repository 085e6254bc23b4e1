"""Ends of runs in the store: what a run leaves behind, and what it takes over from the one behind it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from turnlane.records.admissions import Policy
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.messages import (
    ControlPart,
    ControlReason,
    MessageStatus,
    TextPart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.runs import Failure, FailureClass, RunState, TerminalReason
from turnlane.records.usage import Provenance, computed

if TYPE_CHECKING:
    from tests.contract.conftest import Lane


@pytest.mark.parametrize("act", ["start", "interrupt", "requeue", "settle"])
async def test_an_ended_run_stays_as_it_is(lane: Lane, act: str) -> None:
    await lane.answer("a")
    before = await lane.stored("run-a")
    with pytest.raises(StoreIntegrityError):
        await lane.commit(getattr(lane, act)("run-a"))

    assert before == await lane.stored("run-a")


@pytest.mark.parametrize("reason", [TerminalReason.ABANDONED, TerminalReason.INTERRUPTED, TerminalReason.CANCELLED])
async def test_the_calls_of_an_attempt_that_never_ended_are_closed_with_its_run(
    lane: Lane, reason: TerminalReason
) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.checkpoint(fence, *(ToolCallPart(call_id=name, tool_name="look", input={}) for name in ("c1", "c2")))
    if reason is TerminalReason.CANCELLED:
        await lane.apply(lane.requeue("run-a"))
    await lane.apply(lane.settle("run-a", reason))
    parts = (await lane.store.load_snapshot(lane.conversation_id)).messages[-1].parts

    results = [(part.call_id, part.outcome) for part in parts if isinstance(part, ToolResultPart)]
    assert [("c1", ToolOutcome.INTERRUPTED), ("c2", ToolOutcome.INTERRUPTED)] == results


async def test_a_settled_run_has_its_ending_and_computed_usage(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    usage = lane.reported(7, 0.25)
    await lane.finish_step(fence, TextPart(text="42"), usage=usage)
    failure = Failure(failure_class=FailureClass.OVERLOADED, status=529)
    await lane.apply(lane.settle("run-a", TerminalReason.PROVIDER_FAILURE, failure=failure))
    view = await lane.store.load_run(lane.conversation_id, "run-a")

    assert view is not None and view.assistant is not None
    assert (RunState.FAILED, failure, computed(usage)) == (view.run.state, view.run.failure, view.run.usage)
    assert (MessageStatus.FAILED, "42") == (view.assistant.status, view.assistant.text)
    assert () == await lane.store.list_active_runs(lane.conversation_id)


async def test_open_calls_are_closed_when_a_run_ends(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.call_tools(fence, "c1", "c2", "c3")
    await lane.store.begin_call(fence, "out-a", 1, lane.clock())
    await lane.store.begin_call(fence, "out-a", 2, lane.clock())
    await lane.store.finish_call(fence, "out-a", 2, lane.result("c2"), lane.clock())
    await lane.apply(lane.interrupt("run-a"))
    await lane.apply(lane.settle("run-a", TerminalReason.INTERRUPTED, control=ControlReason.RUN_INTERRUPTED))
    view = await lane.store.load_run(lane.conversation_id, "run-a")

    assert view is not None and view.assistant is not None
    results = [part for part in view.assistant.parts if isinstance(part, ToolResultPart)]
    interrupted = [json.dumps(part.output) for part in results if part.outcome is ToolOutcome.INTERRUPTED]
    assert ["c1", "c2", "c3"] == [part.call_id for part in results]
    assert [True, False] == ["effects are unknown" in text for text in interrupted]
    assert ControlPart(reason=ControlReason.RUN_INTERRUPTED) == view.assistant.parts[-1]


async def test_a_run_cancelled_in_the_queue_gets_an_empty_answer_behind_what_was_said(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"), lane.admit("c"), lane.settle("run-b", TerminalReason.CANCELLED))
    view = await lane.store.load_run(lane.conversation_id, "run-b")

    assert view is not None and view.assistant is not None
    assert (RunState.CANCELLED, None) == (view.run.state, view.run.execution_sequence)
    assert (MessageStatus.INTERRUPTED, ()) == (view.assistant.status, view.assistant.parts)
    assert ["in-a", "out-a", "in-b", "out-b", "in-c"] == await lane.said()


async def test_an_abandoned_run_keeps_its_draft_as_failed(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.checkpoint(fence, TextPart(text="half"))
    await lane.apply(lane.settle("run-a", TerminalReason.ABANDONED))
    view = await lane.store.load_run(lane.conversation_id, "run-a")

    assert view is not None and view.assistant is not None
    assert (RunState.ABANDONED, MessageStatus.FAILED) == (view.run.state, view.assistant.status)
    assert "half" == view.assistant.text
    assert () == (await lane.store.scan_recoverable()).items


async def test_spend_that_nobody_reported_makes_the_total_a_floor(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, TextPart(text="one"), usage=lane.reported(3, 0.5))
    await lane.begin_step(lane.fence("run-a", step=1))
    await lane.apply(lane.settle("run-a", TerminalReason.RUNTIME_FAILURE))
    usage = (await lane.stored("run-a")).usage

    assert usage is not None and usage.cost is not None
    assert (3, Provenance.COMPUTED) == (usage.input_tokens.value, usage.input_tokens.provenance)
    assert Provenance.UNAVAILABLE is usage.cost.provenance


async def test_a_run_that_never_called_anybody_states_all_usage_as_unavailable(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.settle("run-a", TerminalReason.CONTEXT_OVERFLOW))
    usage = (await lane.stored("run-a")).usage

    assert usage is not None
    assert {"unavailable"} == {figure["provenance"] for figure in usage.model_dump(mode="json").values()}


async def test_a_completed_run_absorbs_its_successor(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b", policy=Policy.INJECT), lane.admit("c"))
    (settled,) = await lane.apply(lane.settle("run-a", absorbed=[("run-b", ("in-b",))]))
    run, other = await lane.stored("run-a"), await lane.stored("run-b")

    assert {"run-a": 2, "run-b": 1} == settled.revisions
    assert (("in-a", "in-b"), ("in-b",)) == (run.input_message_ids, other.input_message_ids)
    assert (RunState.SUPERSEDED, TerminalReason.ABSORBED, "run-a") == (
        other.state,
        other.terminal_reason,
        other.absorbed_into_run_id,
    )


async def test_absorbed_inputs_stand_before_the_answer_and_later_ones_behind_it(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"), lane.admit("b2", into="run-b"), lane.admit("c"), lane.admit("d"))
    absorbed = [("run-c", ("in-c",)), ("run-b", ("in-b", "in-b2"))]
    await lane.apply(lane.settle("run-a", absorbed=absorbed))
    snapshot = await lane.store.load_snapshot(lane.conversation_id)
    view = await lane.store.load_run(lane.conversation_id, "run-b")

    assert ["in-a", "in-c", "in-b", "in-b2", "out-a", "in-d"] == [message.id for message in snapshot.messages]
    assert ["run-a", "run-d"] == [run.id for run in snapshot.runs]
    assert view is not None and view.assistant is None


@pytest.mark.parametrize("reason", [TerminalReason.INTERRUPTED, TerminalReason.PROVIDER_FAILURE])
async def test_only_a_completed_run_absorbs(lane: Lane, reason: TerminalReason) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"))
    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.settle("run-a", reason, absorbed=[("run-b", ("in-b",))]))

    assert [RunState.RUNNING, RunState.QUEUED] == [
        run.state for run in await lane.store.list_active_runs(lane.conversation_id)
    ]


async def test_a_run_is_absorbed_with_all_of_its_inputs_or_not_at_all(lane: Lane) -> None:
    await lane.begin_run("a")
    await lane.apply(lane.admit("b"), lane.admit("c", into="run-b"))

    with pytest.raises(StoreIntegrityError):
        await lane.commit(lane.settle("run-a", absorbed=[("run-b", ("in-b",))]))
