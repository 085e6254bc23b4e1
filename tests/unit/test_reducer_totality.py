"""The reducer is total: every command gets an answer from every head, and a head is never changed in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.reducer_desk import NOW, Desk, accept, claim, derived, message, summary
from turnlane.records.admissions import Policy
from turnlane.records.commands import (
    Acquire,
    Cancel,
    Command,
    Compact,
    Duplicate,
    Interrupt,
    Note,
    Purge,
    Recover,
    Refusal,
    Seed,
    SetModel,
    Settle,
)
from turnlane.records.lane import AbortReason, HeadReceipt
from turnlane.records.messages import Role
from turnlane.records.mutations import Mutation
from turnlane.records.runs import TerminalReason
from turnlane.workflows.decisions import Transition
from turnlane.workflows.reducer import reduce


def empty() -> Desk:
    return Desk()


def waiting() -> Desk:
    desk = Desk()
    desk.admit("a", "b", coalesce=True)
    return desk


def running() -> Desk:
    desk = Desk()
    desk.admit("a")
    desk.start("a")
    desk.admit("b", policy=Policy.INJECT)
    desk.admit("c", policy=Policy.INTERRUPT_NEXT)
    return desk


def asked_to_stop() -> Desk:
    desk = running()
    desk.interrupt("a")
    return desk


def put_back() -> Desk:
    desk = running()
    desk.requeue("a")
    return desk


def at_rest() -> Desk:
    desk = Desk()
    desk.admit("a", "b", recent_receipts=1)
    desk.do(Cancel(run_id="run-a"))
    desk.do(Cancel(run_id="run-b"))
    return desk


def purged() -> Desk:
    desk = at_rest()
    desk.do(Purge())
    return desk


HEADS = [empty, waiting, running, asked_to_stop, put_back, at_rest, purged]
RUNS = ("run-a", "run-b", "run-nobody")

COMMANDS: list[Command] = [
    *(accept("a", policy=policy) for policy in Policy),
    *(accept("z", policy=policy, coalesce=True) for policy in Policy),
    accept("z", queued_runs=0, recent_receipts=1),
    accept("z", known=HeadReceipt("z", "digest-z", "queue", 1)),
    accept("z", expected_version=-1),
    accept("z", message=message("in-a", role=Role.TOOL)),
    derived("a"),
    *(Acquire(run_id=run_id, owner_id="", resumes=True) for run_id in RUNS),
    *(Interrupt(run_id=run_id, reason=reason) for run_id in RUNS for reason in AbortReason),
    *(Interrupt(run_id=run_id, expected_revision=-1) for run_id in RUNS),
    *(Cancel(run_id=run_id) for run_id in RUNS),
    *(Recover(run_id=run_id, action="requeue", replay_safe=safe) for run_id in RUNS for safe in (True, False)),
    *(Recover(run_id=run_id, action="abandon") for run_id in RUNS),
    *(Settle(run_id=run_id, token=1, reason=reason) for run_id in RUNS for reason in TerminalReason),
    Settle(run_id="run-a", token=1, reason=TerminalReason.POLICY_STOP, policy_name="max-steps"),
    Settle(run_id="run-a", token=1, reason=TerminalReason.SUCCESS, absorb=(claim("run-b", "in-b"),)),
    Settle(run_id="run-a", token=1, reason=TerminalReason.SUCCESS, absorb=(claim("run-nobody", "in-x"),) * 2),
    Compact(expected_version=0, message_ids=(), summary=summary("s")),
    Compact(expected_version=2, message_ids=("in-a",), summary=message("s")),
    Seed(seed_key="k", messages=()),
    Seed(seed_key="k", messages=(message("s"),)),
    SetModel(model="deep"),
    SetModel(model=None),
    Purge(),
    Purge(expected_version=-1),
    Note(kind="retry/started", payload={"any": [None, 1.5, "x"]}),
]


@pytest.mark.parametrize("make", HEADS, ids=lambda make: make.__name__)
def test_every_command_is_answered_and_leaves_the_head_as_it_was(make: Callable[[], Desk]) -> None:
    head = make().head
    before = head.model_dump_json()

    answers = [reduce(head, command, NOW) for command in COMMANDS]

    assert [] == [answer for answer in answers if not isinstance(answer, Transition | Refusal | Duplicate)]
    assert before == head.model_dump_json()


@pytest.mark.parametrize("make", HEADS, ids=lambda make: make.__name__)
def test_the_same_question_gets_the_same_answer(make: Callable[[], Desk]) -> None:
    head = make().head

    assert [reduce(head, command, NOW) for command in COMMANDS] == [reduce(head, command, NOW) for command in COMMANDS]


@pytest.mark.parametrize("make", HEADS, ids=lambda make: make.__name__)
def test_every_decision_survives_its_json(make: Callable[[], Desk]) -> None:
    head = make().head
    decided = [answer for command in COMMANDS if isinstance(answer := reduce(head, command, NOW), Transition)]

    assert [(made.head, made.mutation) for made in decided] == [
        (
            type(made.head).model_validate_json(made.head.model_dump_json()),
            Mutation.model_validate_json(made.mutation.model_dump_json()),
        )
        for made in decided
    ]
