"""Cursors: each event is told once, a loss is noticed, and a watcher never shows a withdrawn attempt."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlane.records.cursors import REMEMBERED_ENDS, Cursor, LiveText, Shown, Verdict, advance, follow
from turnlane.records.events import (
    AssistantCheckpointEvent,
    AssistantDeltaEvent,
    AttemptResetEvent,
    Event,
    ReasoningDeltaEvent,
    RunStateEvent,
    TerminalEvent,
)
from turnlane.records.messages import Message, MessageStatus, ReasoningPart, Role, TextPart
from turnlane.records.runs import RunState, TerminalReason

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ONE, TWO = "run:1:0:model:1", "run:1:0:model:2"
ACCEPTED, DUPLICATE, GAP = Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.GAP


def common(run: str, conversation: str) -> dict[str, Any]:
    return {"conversation_id": conversation, "run_id": run, "emitted_at": NOW}


def answer(text: str, reasoning: str = "") -> Message:
    parts = (ReasoningPart(text=reasoning), TextPart(text=text)) if reasoning else (TextPart(text=text),)
    return Message(
        id="out",
        conversation_id="c",
        run_id="run",
        role=Role.ASSISTANT,
        status=MessageStatus.STREAMING,
        parts=parts,
        created_at=NOW,
        updated_at=NOW,
    )


def delta(text: str, sequence: int, epoch: str = ONE, run: str = "run", conversation: str = "c") -> Event:
    return AssistantDeltaEvent(epoch=epoch, sequence=sequence, text_delta=text, **common(run, conversation))


def thought(text: str, sequence: int) -> Event:
    return ReasoningDeltaEvent(epoch=ONE, sequence=sequence, text_delta=text, **common("run", "c"))


def reset(withdrawn: str, epoch: str = TWO) -> Event:
    return AttemptResetEvent(epoch=epoch, sequence=1, step=0, attempt=2, withdrawn=withdrawn, **common("run", "c"))


def checkpoint(text: str, version: int = 3, reasoning: str = "") -> Event:
    return AssistantCheckpointEvent(snapshot_version=version, message=answer(text, reasoning), **common("run", "c"))


def state(value: RunState, version: int, run: str = "run", conversation: str = "c") -> Event:
    return RunStateEvent(snapshot_version=version, state=value, **common(run, conversation))


def terminal(text: str, version: int = 9) -> Event:
    return TerminalEvent(
        snapshot_version=version, reason=TerminalReason.SUCCESS, message=answer(text), **common("run", "c")
    )


def verdicts(events: Iterable[Event], cursor: Cursor | None = None) -> tuple[Cursor, list[Verdict]]:
    cursor, told = cursor or Cursor(), []
    for event in events:
        cursor, verdict = advance(cursor, event)
        told.append(verdict)
    return cursor, told


def shown(events: Iterable[Event]) -> Shown:
    """What a watcher shows after these events, as it should: through a cursor."""
    cursor, live = Cursor(), LiveText("run")
    for event in events:
        cursor, verdict = advance(cursor, event)
        live = follow(live, event) if verdict is not DUPLICATE else live
    return live.shown


def test_events_read_again_are_duplicates_every_time() -> None:
    events = [state(RunState.RUNNING, 2), *(delta("x", number) for number in range(1, 19)), checkpoint("x", 3)]

    cursor, first = verdicts(events)
    after, second = verdicts(events, cursor)

    assert [ACCEPTED] * 20 == first
    assert [DUPLICATE] * 20 == second
    assert after is cursor


def test_a_durable_event_is_never_a_gap() -> None:
    assert [ACCEPTED, ACCEPTED] == verdicts([state(RunState.RUNNING, 2), checkpoint("x", 900)])[1]


def test_durable_events_may_share_a_version() -> None:
    events = [state(RunState.SUPERSEDED, 5, run="other"), terminal("x", 5)]

    assert [ACCEPTED, ACCEPTED] == verdicts(events)[1]


def test_a_lower_version_is_old_news() -> None:
    assert [ACCEPTED, DUPLICATE] == verdicts([checkpoint("x", 5), state(RunState.RUNNING, 4)])[1]


def test_the_ids_of_an_earlier_version_are_forgotten() -> None:
    cursor, _ = verdicts([state(RunState.QUEUED, version) for version in range(1, 50)])

    assert ("run:run-state:49",) == cursor.place("c").event_ids


@pytest.mark.parametrize("first", [2, 7])
def test_an_epoch_starts_at_1(first: int) -> None:
    assert [GAP, ACCEPTED] == verdicts([delta("x", first), delta("y", first + 1)])[1]


def test_a_hole_is_told_once() -> None:
    events = [delta("a", 1), delta("d", 4), delta("e", 5), delta("b", 2)]

    assert [ACCEPTED, GAP, ACCEPTED, DUPLICATE] == verdicts(events)[1]


def test_parallel_publishers_count_for_themselves() -> None:
    tool = "run:1:0:call-1:1"
    events = [delta("a", 1), delta("x", 1, tool), delta("b", 2), delta("y", 2, tool), delta("y", 2, tool)]

    assert [ACCEPTED] * 4 + [DUPLICATE] == verdicts(events)[1]


def test_conversations_and_runs_do_not_alias() -> None:
    events = [
        delta("x", 1),
        delta("x", 1, run="run2"),
        delta("x", 1, conversation="c2"),
        state(RunState.RUNNING, 9),
        state(RunState.RUNNING, 2, conversation="c2"),
    ]

    assert [ACCEPTED] * 5 == verdicts(events)[1]


def test_what_a_withdrawn_epoch_still_says_is_old_news() -> None:
    events = [delta("a", 1), reset(ONE), delta("b", 2), delta("c", 2, TWO), reset(ONE)]

    assert [ACCEPTED, ACCEPTED, DUPLICATE, ACCEPTED, DUPLICATE] == verdicts(events)[1]


@pytest.mark.parametrize("end", [terminal("x"), state(RunState.SUPERSEDED, 9)])
def test_late_deltas_of_an_ended_run_are_old_news_and_its_epochs_are_let_go(end: Event) -> None:
    cursor, told = verdicts([delta("x", 1), end, delta("y", 2), delta("z", 1, TWO)])

    assert [ACCEPTED, ACCEPTED, DUPLICATE, DUPLICATE] == told
    assert {} == cursor.place("c").runs


def test_a_run_put_back_into_the_queue_has_not_ended() -> None:
    events = [delta("x", 1), state(RunState.QUEUED, 4), delta("y", 1, "run:2:0:model:1")]

    assert [ACCEPTED] * 3 == verdicts(events)[1]


def test_the_memory_of_ended_runs_is_bounded() -> None:
    ends = [state(RunState.COMPLETED, number, run=f"run-{number}") for number in range(1, 200)]

    cursor, _ = verdicts(ends)

    assert REMEMBERED_ENDS == len(cursor.place("c").ended)
    assert "run-199" == cursor.place("c").ended[-1]


def test_a_loaded_snapshot_sets_the_version_and_keeps_places_in_live_runs() -> None:
    cursor, _ = verdicts([state(RunState.RUNNING, 2), delta("x", 3)])

    after = cursor.resynced("c", 8)

    assert [DUPLICATE, ACCEPTED, ACCEPTED] == verdicts([checkpoint("x", 7), checkpoint("x", 8), delta("y", 4)], after)[
        1
    ]


def test_a_cursor_survives_its_json() -> None:
    cursor, _ = verdicts([state(RunState.RUNNING, 2), delta("a", 1), reset(ONE), delta("b", 2, TWO), terminal("b")])

    assert cursor == Cursor.model_validate_json(cursor.model_dump_json())


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.integers(1, 6)), max_size=40))
def test_no_transient_event_is_accepted_twice_and_a_gap_is_exactly_a_jump(steps: list[tuple[str, int]]) -> None:
    last = {ONE: 0, TWO: 0}
    cursor = Cursor()
    for epoch, sequence in steps:
        cursor, verdict = advance(cursor, delta("x", sequence, epoch))
        expected = GAP if sequence > last[epoch] + 1 else ACCEPTED if sequence > last[epoch] else DUPLICATE

        assert expected == verdict
        last[epoch] = max(last[epoch], sequence)


@pytest.mark.parametrize(("deltas", "text"), [(("150", "0"), "1500"), (("ha", "ha"), "haha")])
def test_only_ids_tell_a_resend_from_a_repetition(deltas: tuple[str, str], text: str) -> None:
    events = [delta(deltas[0], 1), delta(deltas[1], 2), delta(deltas[1], 2)]

    assert text == shown(events).text


def test_a_checkpoint_is_a_barrier() -> None:
    events = [checkpoint("a", 3), delta("b", 1), checkpoint("ab", 4), delta("c", 2)]

    assert "abc" == shown(events).text


def test_a_checkpoint_of_an_earlier_answer_is_not_part_of_this_one() -> None:
    live = follow(LiveText("next"), delta("It is ", 1, run="next"))
    asked = AssistantCheckpointEvent(snapshot_version=9, message=answer("May I?"), **common("next", "c"))

    assert "It is " == follow(live, asked).shown.text


def test_a_withdrawn_attempt_is_taken_back() -> None:
    events = [delta("Here is the pl", 1), thought("hm", 2), reset(ONE), delta("Here is the plan.", 2, TWO)]

    assert Shown("Here is the plan.", "") == shown(events)


def test_a_withdrawn_attempt_is_taken_back_although_a_checkpoint_stored_some_of_it() -> None:
    events = [checkpoint("Step 0. ", 3), delta("Part", 1), checkpoint("Step 0. Part", 4), delta("ial", 2), reset(ONE)]

    assert "Step 0. " == shown(events).text


def test_taking_an_attempt_back_keeps_earlier_steps_that_no_checkpoint_stored() -> None:
    second = "run:1:1:model:1"
    events = [delta("Step 0. ", 1), delta("Step 1", 1, second), reset(second, "run:1:1:model:2")]

    assert "Step 0. " == shown(events).text


def test_a_watcher_that_came_late_goes_back_to_the_rewritten_draft() -> None:
    live = LiveText("run", shown=Shown("Step 0. Part"), stored=Shown("Step 0. Part"))
    for event in (delta("ial", 5), checkpoint("Step 0. ", 4), reset(ONE), delta("Whole", 2, TWO)):
        live = follow(live, event)

    assert "Step 0. Whole" == live.shown.text


def test_the_terminal_replaces_everything_and_is_the_last_word() -> None:
    live = LiveText("run")
    for event in (delta("dra", 1), thought("hm", 2), terminal("final"), delta("late", 3), checkpoint("late", 12)):
        live = follow(live, event)

    assert (Shown("final"), True) == (live.shown, live.has_ended)


def test_reasoning_is_shown_beside_the_text() -> None:
    events = [thought("a", 1), thought("b", 2), delta("x", 3), checkpoint("x", 3, reasoning="ab"), thought("c", 4)]

    assert Shown("x", "abc") == shown(events)


def test_another_runs_events_change_nothing() -> None:
    live = LiveText("run", shown=Shown("x"))

    assert live is follow(live, delta("y", 1, run="other"))
    assert live is follow(live, state(RunState.RUNNING, 3))
