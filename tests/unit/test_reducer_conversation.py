"""What happens to a whole conversation in the reducer: summaries, seeds, notes, and the purge."""

from __future__ import annotations

import pytest

from tests.unit.reducer_desk import Desk, accept, message, summary
from turnlane.records.commands import (
    Accept,
    Acquire,
    Cancel,
    Command,
    Compact,
    Interrupt,
    Note,
    Purge,
    Recover,
    RefusalCode,
    Seed,
    Settle,
)
from turnlane.records.messages import Message, MessageStatus, Role
from turnlane.records.mutations import AppendEvent, CompactRange, MutationKind, PurgeConversation, SeedInputs
from turnlane.records.runs import TerminalReason


def talked() -> Desk:
    """A conversation with one finished turn and one that waits, at version 4."""
    desk = Desk()
    desk.admit("a")
    desk.start("a")
    desk.settle("a")
    desk.admit("b")
    return desk


# --- summaries ----------------------------------------------------------------------------------


def test_messages_are_compacted_into_a_summary() -> None:
    desk = talked()

    made = desk.do(Compact(expected_version=4, message_ids=("in-a", "out-a"), summary=summary("s")))

    assert (MutationKind.COMPACT, CompactRange(message_ids=("in-a", "out-a"), summary=summary("s")), 5) == (
        made.mutation.kind,
        made.mutation.effect,
        desk.head.version,
    )


def test_the_input_of_a_waiting_run_may_be_compacted() -> None:
    assert 5 == talked().do(Compact(expected_version=4, message_ids=("in-b",), summary=summary("s"))).head.version


def test_a_compaction_for_an_older_version_is_a_conflict() -> None:
    refusal = talked().refused(Compact(expected_version=3, message_ids=("in-a",), summary=summary("s")))

    assert (RefusalCode.CONFLICT, 4) == (refusal.code, refusal.head_version)


@pytest.mark.parametrize("ids", [(), ("in-a", "out-b")])
def test_no_message_and_an_answer_in_the_making_are_not_compacted(ids: tuple[str, ...]) -> None:
    command = Compact(expected_version=4, message_ids=ids, summary=summary("s"))

    assert RefusalCode.INVALID is talked().refused(command).code


@pytest.mark.parametrize(
    "wrong",
    [
        summary("s", role=Role.USER),
        summary("s", role=Role.ASSISTANT, status=MessageStatus.STREAMING),
        summary("s", conversation_id="elsewhere"),
        summary("out-b"),
        summary("in-b"),
        summary("in-a"),
    ],
)
def test_a_summary_is_a_summary_of_this_conversation_with_an_id_of_its_own(wrong: Message) -> None:
    command = Compact(expected_version=4, message_ids=("in-a", "out-a"), summary=wrong)

    assert RefusalCode.INVALID is talked().refused(command).code


# --- seeds --------------------------------------------------------------------------------------


def test_a_seed_is_planted() -> None:
    desk = Desk()
    seeds = (message("s1"), message("s2"))

    made = desk.do(Seed(seed_key="k", messages=seeds))

    assert (MutationKind.SEED, SeedInputs(seed_key="k", messages=seeds)) == (made.mutation.kind, made.mutation.effect)


@pytest.mark.parametrize(
    "seeds",
    [
        (),
        (message("s", role=Role.TOOL),),
        (summary("s"),),
        (message("s", conversation_id="elsewhere"),),
        (message("s", role=Role.ASSISTANT, status=MessageStatus.COMPLETED, run_id="r"),),
        (message("s"), message("s")),
        (message("out-b"),),
    ],
)
def test_a_seed_is_made_of_unowned_user_messages_with_ids_of_their_own(seeds: tuple[Message, ...]) -> None:
    assert RefusalCode.INVALID is talked().refused(Seed(seed_key="k", messages=seeds)).code


# --- notes --------------------------------------------------------------------------------------


def test_a_note_moves_the_sequence_and_not_the_version() -> None:
    desk = talked()

    made = desk.do(Note(kind="retry/started", payload={"attempt": 2}))

    assert (4, 5) == (desk.head.version, desk.head.seq)
    assert (MutationKind.NOTE, 5, AppendEvent(kind="retry/started", payload={"attempt": 2})) == (
        made.mutation.kind,
        made.mutation.seq,
        made.mutation.effect,
    )


# --- the purge ----------------------------------------------------------------------------------


def test_a_quiet_conversation_is_purged_and_forgets_its_receipts() -> None:
    desk = talked()
    desk.do(Cancel(run_id="run-b"))

    made = desk.do(Purge(expected_version=5))

    assert (MutationKind.PURGE, PurgeConversation()) == (made.mutation.kind, made.mutation.effect)
    assert (True, (), 6) == (desk.head.purged, desk.head.receipts, desk.head.version)


@pytest.mark.parametrize("live", [False, True])
def test_an_active_run_stands_in_the_way_of_a_purge(live: bool) -> None:
    desk = talked()
    if live:
        desk.start("b")

    refusal = desk.refused(Purge())

    assert (RefusalCode.ACTIVE, ("run-b",)) == (refusal.code, refusal.run_ids)


def test_a_purge_for_an_older_version_is_a_conflict() -> None:
    assert RefusalCode.CONFLICT is talked().refused(Purge(expected_version=3)).code


COMMANDS: list[Command] = [
    accept("a"),
    accept("z"),
    Acquire(run_id="run-a", owner_id="w"),
    Interrupt(run_id="run-a"),
    Cancel(run_id="run-a"),
    Recover(run_id="run-a", action="abandon"),
    Settle(run_id="run-a", token=1, reason=TerminalReason.SUCCESS),
    Compact(expected_version=1, message_ids=("in-a",), summary=summary("s")),
    Seed(seed_key="k", messages=(message("s1"),)),
    Purge(),
    Purge(expected_version=1),
    Note(kind="retry/started", payload={}),
]


def name_of(command: Command) -> str:
    return f"{type(command).__name__}-{command.key}" if isinstance(command, Accept) else type(command).__name__


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
def test_a_purged_conversation_refuses_everything(command: Command) -> None:
    desk = talked()
    desk.do(Cancel(run_id="run-b"))
    desk.do(Purge())
    before = desk.head

    assert RefusalCode.PURGED is desk.refused(command).code
    assert before == desk.head
