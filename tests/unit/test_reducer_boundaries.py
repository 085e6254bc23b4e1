"""What boundaries take, what the store tells the head, and what identifies a mutation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.unit.reducer_desk import NOW, Desk, accept, claim, message, summary
from turnlane.records.admissions import Policy
from turnlane.records.commands import Command, Compact, Note, Seed
from turnlane.records.lane import LaneHead
from turnlane.records.mutations import Mutation
from turnlane.workflows.decisions import Transition
from turnlane.workflows.offers import absorptions, observe, take_offers
from turnlane.workflows.reducer import reduce


def waiting() -> Desk:
    """A live run, and behind it an injected pair in one run, an ordinary input, and another injected one."""
    desk = Desk()
    desk.admit("a")
    desk.start("a")
    desk.admit("b", "c", policy=Policy.INJECT, coalesce=True)
    desk.admit("d")
    desk.admit("e", policy=Policy.INJECT)
    return desk


# --- taking -------------------------------------------------------------------------------------


def test_a_boundary_takes_every_injected_input_in_queue_order() -> None:
    _, taken = take_offers(waiting().head, "run-a")

    assert (("run-b", "in-b"), ("run-b", "in-c"), ("run-e", "in-e")) == taken


def test_an_input_is_taken_once() -> None:
    once, _ = take_offers(waiting().head, "run-a")

    assert (once, ()) == take_offers(once, "run-a")


def test_what_arrives_later_is_taken_at_the_next_boundary() -> None:
    desk = waiting()
    desk.head, _ = take_offers(desk.head, "run-a")
    desk.admit("f", policy=Policy.INJECT, coalesce=True)

    assert (("run-b", "in-f"),) == take_offers(desk.head, "run-a")[1]


def test_taking_moves_no_counter_and_no_run() -> None:
    desk = waiting()

    head, _ = take_offers(desk.head, "run-a")

    assert [(run.id, run.revision, run.input_ids) for run in desk.head.runs] == [
        (run.id, run.revision, run.input_ids) for run in head.runs
    ]
    assert (desk.head.version, desk.head.seq) == (head.version, head.seq)


def test_a_run_never_takes_its_own_inputs() -> None:
    desk = Desk()
    desk.admit("a", policy=Policy.INJECT)

    assert () == take_offers(desk.head, "run-a")[1]


# --- claiming -----------------------------------------------------------------------------------


def test_what_was_taken_whole_is_claimed() -> None:
    taken = (("run-b", "in-b"), ("run-e", "in-e"), ("run-b", "in-c"))

    assert (claim("run-b", "in-b", "in-c"), claim("run-e", "in-e")) == absorptions(waiting().head, taken)


def test_a_run_taken_in_part_is_not_claimed() -> None:
    assert () == absorptions(waiting().head, (("run-b", "in-b"),))


def test_an_ordinary_input_that_joined_keeps_its_run_from_being_claimed() -> None:
    desk = waiting()
    desk.head, taken = take_offers(desk.head, "run-a")
    desk.admit("f", coalesce=True)

    assert (claim("run-e", "in-e"),) == absorptions(desk.head, taken)


def test_a_run_that_no_longer_waits_is_not_claimed() -> None:
    desk = waiting()
    desk.head, taken = take_offers(desk.head, "run-a")
    desk.settle("a")
    desk.start("b")

    assert (claim("run-e", "in-e"),) == absorptions(desk.head, (*taken, ("run-gone", "in-x")))


# --- what the store tells -----------------------------------------------------------------------


def test_the_head_takes_over_the_stores_counters() -> None:
    desk = waiting()

    head = observe(desk.head, 31, {"run-a": 7, "run-gone": 9})

    assert (31, desk.head.seq) == (head.version, head.seq)
    assert [7, 1, 0, 0] == [run.revision for run in head.runs]


# --- what identifies a mutation -----------------------------------------------------------------

LATER = {"created_at": NOW + timedelta(hours=1), "updated_at": NOW + timedelta(hours=2)}

SAME = [
    (accept("a"), accept("a", message=message("in-a", **LATER))),
    (
        Compact(expected_version=0, message_ids=("m",), summary=summary("s")),
        Compact(expected_version=0, message_ids=("m",), summary=summary("s", **LATER)),
    ),
    (Seed(seed_key="k", messages=(message("s"),)), Seed(seed_key="k", messages=(message("s", **LATER),))),
]
DIFFERENT = [
    (accept("a"), accept("a", message=message("in-a", metadata={"x": 1}))),
    (accept("a"), accept("a", policy=Policy.INJECT)),
    (Seed(seed_key="k", messages=(message("s"),)), Seed(seed_key="k", messages=(message("t"),))),
    (Note(kind="n", payload={"updated_at": 1}), Note(kind="n", payload={"updated_at": 2})),
]


def mutation_of(command: Command, **clock: Any) -> Mutation:
    decision = reduce(LaneHead(conversation_id="c"), command, NOW + timedelta(**clock))
    assert isinstance(decision, Transition)
    return decision.mutation


@pytest.mark.parametrize(("one", "two"), SAME)
def test_a_mutation_is_the_same_whatever_the_clocks_say(one: Command, two: Command) -> None:
    assert mutation_of(one).digest == mutation_of(two, days=1).digest


@pytest.mark.parametrize(("one", "two"), DIFFERENT)
def test_a_mutation_that_says_something_else_is_another(one: Command, two: Command) -> None:
    assert mutation_of(one).digest != mutation_of(two).digest


def test_a_mutation_at_another_place_is_another() -> None:
    desk = Desk()
    first = desk.do(Note(kind="n", payload={})).mutation
    second = desk.do(Note(kind="n", payload={})).mutation

    assert first.digest != second.digest


@pytest.mark.parametrize("command", [pair[0] for pair in SAME + DIFFERENT])
def test_a_mutation_keeps_its_digest_over_the_wire(command: Command) -> None:
    mutation = mutation_of(command)
    wire = TypeAdapter(Mutation).dump_json(mutation)

    assert mutation.digest == TypeAdapter(Mutation).validate_json(wire).digest
