"""Bounds: what one run may gather, so that no payload of a history grows with what people send."""

from __future__ import annotations

from tests.unit.reducer_desk import Desk
from turnlane.records.lane import LaneHead, LaneRun
from turnlane.records.runs import RunState
from turnlane.workflows.accepting import RUN_INPUTS
from turnlane.workflows.offers import TAKEN_INPUTS, take_offers


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

    after, taken = take_offers(head, "live", room=3)

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
