"""Bounds: what one run may gather, so that no payload of a history grows with what people send."""

from __future__ import annotations

from tests.unit.reducer_desk import NOW, Desk, accept, message
from turnlane.records.admissions import Policy
from turnlane.records.approvals import AskedApproval
from turnlane.records.durable import WAITS_AT_ONCE, SuspendedCall, Suspension, event_key
from turnlane.records.lane import LaneHead, LaneRun, LaneStart, RunProgress, Taken
from turnlane.records.limits import KIB, Limits
from turnlane.records.runs import RunState
from turnlane.workflows.accepting import RUN_BYTES, RUN_INPUTS
from turnlane.workflows.carrying import room_beside, within
from turnlane.workflows.offers import TAKEN_BYTES, TAKEN_INPUTS, take_offers

LONGEST = "\N{GRINNING FACE}" * 256
CALLS = Limits().tool_calls_per_step


def waiting(run_id: str, order: int, offered: int) -> LaneRun:
    inputs = tuple(f"{run_id}-in-{number}" for number in range(offered))
    return LaneRun(id=run_id, assistant_message_id=f"{run_id}-out", input_ids=inputs, order=order, offered=inputs)


def head_with(*runs: LaneRun) -> LaneHead:
    live = LaneRun(
        id="live",
        assistant_message_id="live-out",
        input_ids=("live-in",),
        order=1,
        state=RunState.RUNNING,
        started=True,
    )
    return LaneHead(conversation_id="c", runs=(live, *runs))


def test_offers_are_taken_run_by_run_while_there_is_room() -> None:
    head = head_with(waiting("b", 2, 2), waiting("c", 3, 2), waiting("d", 4, 1))

    before = tuple(Taken(run_id="a", input_id=f"a-in-{number}", step=0) for number in range(TAKEN_INPUTS - 3))
    after, taken = take_offers(head, "live", before)

    assert (("b", "b-in-0"), ("b", "b-in-1")) == taken
    assert [(), ("c-in-0", "c-in-1"), ("d-in-0",)] == [run.offered for run in after.queued]


def test_offers_that_find_no_room_stay_with_their_run() -> None:
    head = head_with(waiting("b", 2, TAKEN_INPUTS + 1))

    assert (head, ()) == take_offers(head, "live")


def test_a_run_gathers_inputs_up_to_a_bound_and_the_next_input_starts_another() -> None:
    desk = Desk()
    desk.admit("first", coalesce=True)
    desk.start("first")
    desk.admit(*(f"more-{number}" for number in range(RUN_INPUTS + 1)), coalesce=True)

    assert [RUN_INPUTS, 1] == [len(run.input_ids) for run in desk.head.queued]


def test_inputs_with_the_longest_ids_are_spread_over_runs_that_stay_small() -> None:
    desk = Desk()
    desk.admit("first", coalesce=True)
    desk.start("first")
    for number in range(40):
        name = f"{number:03}{LONGEST[3:]}"
        desk.do(accept(f"k{number}", message=message(name), policy=Policy.INJECT, coalesce=True))
    sizes = [len(run.model_dump_json().encode()) for run in desk.head.queued]

    assert 40 == sum(len(run.offered) for run in desk.head.queued)
    assert 1 < len(sizes) < 40
    assert max(sizes) < RUN_BYTES + KIB


def test_inputs_with_the_longest_ids_are_taken_within_a_size() -> None:
    runs = [
        LaneRun(id=name, assistant_message_id="out", input_ids=(name,), order=number, offered=(name,))
        for number, name in enumerate(f"{number:03}{LONGEST[3:]}" for number in range(TAKEN_INPUTS))
    ]
    head = head_with(*runs)
    progress = RunProgress(run_id="live")
    while True:
        head, taken = take_offers(head, "live", progress.taken)
        if not taken:
            break
        more = tuple(Taken(run_id=run_id, input_id=input_id, step=0) for run_id, input_id in taken)
        progress = progress.model_copy(update={"taken": progress.taken + more})

    assert 0 < len(progress.taken) < TAKEN_INPUTS
    assert len(progress.model_dump_json().encode()) < TAKEN_BYTES + KIB


def test_what_is_taken_along_stays_small_whatever_waits() -> None:
    asked = tuple(AskedApproval(approval_id=f"apr-{number:024}", expires_at=NOW) for number in range(CALLS))
    suspended = tuple(
        SuspendedCall(
            call_id=f"{number:03}" + "c" * 197,
            tool_name="t" * 128,
            slot=number + 1,
            suspension=Suspension(resume_at=NOW, waits_for=(event_key("e", "1"),) * WAITS_AT_ONCE),
        )
        for number in range(CALLS)
    )
    progress = RunProgress(run_id=LONGEST, asked=asked, suspended=suspended)
    runs = [waiting(f"{number:03}{LONGEST[:200]}", number, 1) for number in range(1000)]
    head = within(head_with(*runs[:10]), min(64 * KIB, room_beside(progress)))
    carried = LaneStart(conversation_id="c", head=head, progress=progress)

    assert len(carried.model_dump_json().encode()) < 128 * KIB
    assert within(head_with(*runs), room_beside(progress)) is None
