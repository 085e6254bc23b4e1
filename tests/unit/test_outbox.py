"""What a lane decided leaves it once, or everyone who waits for it hears that it is lost."""

from datetime import UTC, datetime

import pytest

from turnlane.records.errors import ConversationPurgedError, LaneSupersededError, TurnlaneError
from turnlane.records.mutations import AppendEvent, Landing, Mutation, MutationKind
from turnlane.workflows.calls import Outage
from turnlane.workflows.outbox import Outbox

SUPERSEDED = LaneSupersededError("another incarnation of the lane has the conversation")


def a_note(seq: int) -> Mutation:
    effect = AppendEvent(kind="note", payload={})
    return Mutation(seq=seq, kind=MutationKind.NOTE, at=datetime(2026, 1, 1, tzinfo=UTC), effect=effect)


def fail_if_committed(_: Landing) -> None:
    pytest.fail("nothing was committed")


@pytest.fixture
def outbox() -> Outbox:
    return Outbox("c", Outage(lambda: None))


def test_whoever_waits_for_what_is_lost_is_told_once(outbox: Outbox) -> None:
    told: list[TurnlaneError] = []
    outbox.put(a_note(1), None, fail_if_committed, told.append)
    outbox.put(a_note(2), None, fail_if_committed, told.append)
    outbox.after(lambda: pytest.fail("nothing was committed"), told.append)

    outbox.lose(SUPERSEDED)
    outbox.lose(SUPERSEDED)

    assert ([SUPERSEDED] * 3, True) == (told, outbox.is_empty)


def test_what_is_decided_behind_a_loss_is_lost_at_once(outbox: Outbox) -> None:
    told: list[TurnlaneError] = []
    outbox.lose(SUPERSEDED)

    outbox.put(a_note(1), None, fail_if_committed, told.append)

    assert ([SUPERSEDED], True) == (told, outbox.is_empty)


def test_the_first_reason_of_a_loss_stands(outbox: Outbox) -> None:
    outbox.lose(SUPERSEDED)
    outbox.lose(ConversationPurgedError("the conversation was purged"))

    assert outbox.lost is SUPERSEDED
