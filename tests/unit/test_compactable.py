"""What may be compacted: whole turns, the oldest first, and nothing behind one that is open."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlane.agent import select_compactable_history
from turnlane.records.messages import (
    Message,
    MessageStatus,
    Part,
    Role,
    TextPart,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.runs import ENDINGS, Run, RunState, TerminalReason

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CALL = ToolCallPart(call_id="call-1", tool_name="look", input={})
RESULT = ToolResultPart(call_id="call-1", tool_name="look", outcome=ToolOutcome.SUCCESS, output=1)
ASKED = ToolApprovalRequestPart(approval_id="approval-1", call_id="call-1")


def message(name: str, role: Role, *parts: Part, status: MessageStatus | None = None) -> Message:
    usual = MessageStatus.COMPLETED if role is Role.ASSISTANT else MessageStatus.COMMITTED
    return Message(
        id=name,
        conversation_id="c",
        role=role,
        status=status or usual,
        parts=parts or (TextPart(text=name),),
        created_at=NOW,
        updated_at=NOW,
    )


def user(name: str) -> Message:
    return message(name, Role.USER)


def answer(name: str, *parts: Part, status: MessageStatus | None = None) -> Message:
    return message(name, Role.ASSISTANT, *parts, status=status)


def turn(number: int, *parts: Part, status: MessageStatus | None = None) -> list[Message]:
    return [user(f"in-{number}"), answer(f"out-{number}", *parts, status=status)]


def run(number: int, *inputs: str, state: RunState = RunState.COMPLETED) -> Run:
    reasons = {ENDINGS[reason].state: reason for reason in (TerminalReason.SUCCESS, TerminalReason.PROVIDER_FAILURE)}
    return Run(
        id=f"run-{number}",
        conversation_id="c",
        input_message_ids=inputs or (f"in-{number}",),
        assistant_message_id=f"out-{number}",
        state=state,
        revision=1,
        admission_order=number,
        terminal_reason=reasons.get(state),
        created_at=NOW,
        updated_at=NOW,
    )


def chosen(messages: Sequence[Message], keep: int, **options: Any) -> list[str]:
    found = select_compactable_history(messages, keep_recent_turns=keep, **options)
    return [item.id for item in found.compactable]


THREE_TURNS = [*turn(1), *turn(2), *turn(3)]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (0, ["in-1", "out-1", "in-2", "out-2", "in-3", "out-3"]),
        (1, ["in-1", "out-1", "in-2", "out-2"]),
        (2, ["in-1", "out-1"]),
        (3, []),
        (99, []),
    ],
)
def test_the_last_turns_are_kept(keep: int, expected: list[str]) -> None:
    assert expected == chosen(THREE_TURNS, keep)


def test_an_empty_history_has_nothing_to_compact() -> None:
    assert (None, (), (), 0) == select_compactable_history([], keep_recent_turns=0)


@pytest.mark.parametrize("keep", [1.5, float("nan"), "1", None, True])
def test_how_many_turns_to_keep_is_an_integer(keep: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        select_compactable_history(THREE_TURNS, keep_recent_turns=keep)


def test_no_fewer_than_no_turns_can_be_kept() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        select_compactable_history(THREE_TURNS, keep_recent_turns=-1)


@pytest.mark.parametrize("parts", [(CALL,), (CALL, ASKED)], ids=["unanswered", "waits for approval"])
def test_an_open_call_blocks_its_turn_and_all_that_follow(parts: tuple[Part, ...]) -> None:
    history = [*turn(1), *turn(2, *parts), *turn(3)]

    assert ["in-1", "out-1"] == chosen(history, 0)


def test_the_turns_to_keep_count_back_from_the_open_one() -> None:
    history = [*turn(1), *turn(2), *turn(3, CALL), *turn(4)]

    assert ["in-1", "out-1"] == chosen(history, 1)


def test_a_call_that_was_answered_late_is_closed() -> None:
    answered = [user("in-1"), answer("out-1", CALL, ASKED, RESULT), user("in-2"), answer("out-2")]

    assert ["in-1", "out-1", "in-2", "out-2"] == chosen(answered, 0)


@pytest.mark.parametrize("status", [MessageStatus.FAILED, MessageStatus.SUPERSEDED])
@pytest.mark.parametrize("parts", [(), (CALL,)], ids=["text", "open call"])
def test_a_turn_that_failed_or_was_superseded_blocks_nothing(status: MessageStatus, parts: tuple[Part, ...]) -> None:
    history = [*turn(1), *turn(2, *parts, status=status), *turn(3)]

    assert [item.id for item in history] == chosen(history, 0)


def test_an_open_call_of_a_failed_answer_blocks_where_failed_answers_are_told() -> None:
    history = [*turn(1), *turn(2, CALL, status=MessageStatus.FAILED)]

    assert ["in-1", "out-1"] == chosen(history, 0, failed_assistant="marked")


def test_a_run_with_several_inputs_is_one_turn() -> None:
    history = [user("in-1"), user("in-1b"), answer("out-1"), *turn(2)]

    assert ["in-1", "in-1b", "out-1"] == chosen(history, 1, runs=[run(1, "in-1", "in-1b"), run(2)])


def test_inputs_that_a_run_took_on_its_way_are_its_own() -> None:
    history = [user("in-1"), user("in-2"), answer("out-1"), *turn(3)]

    assert ["in-1", "in-2", "out-1"] == chosen(history, 1, runs=[run(1, "in-1", "in-2"), run(3)])


def test_an_approval_and_what_followed_from_it_belong_to_the_turn_of_the_call() -> None:
    said_yes = message("in-2", Role.TOOL, ToolApprovalResponsePart(approval_id="approval-1", approved=True))
    history = [user("in-1"), answer("out-1", CALL, ASKED, RESULT), said_yes, answer("out-2"), *turn(3)]
    runs = [run(1), run(2), run(3)]

    assert ["in-1", "out-1", "in-2", "out-2"] == chosen(history, 1, runs=runs)
    assert [] == chosen(history, 2, runs=runs)


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING, RunState.INTERRUPT_REQUESTED])
def test_a_run_that_has_not_ended_blocks(state: RunState) -> None:
    history = [*turn(1), user("in-2"), *turn(3)]

    assert ["in-1", "out-1"] == chosen(history, 0, runs=[run(1), run(2, state=state), run(3)])


def test_a_draft_blocks_without_a_word_of_its_run() -> None:
    history = [*turn(1), *turn(2, status=MessageStatus.STREAMING)]

    assert ["in-1", "out-1"] == chosen(history, 0)


def test_what_nobody_answered_yet_blocks() -> None:
    assert ["in-1", "out-1"] == chosen([*turn(1), user("in-2")], 0)


def test_the_leading_summary_stands_apart() -> None:
    summary = message("summary", Role.SUMMARY)
    found = select_compactable_history([summary, *THREE_TURNS], keep_recent_turns=2)

    assert (summary, tuple(turn(1)), tuple(THREE_TURNS[2:])) == found[:3]


def test_an_id_that_is_used_again_in_a_turn_owes_a_result_again() -> None:
    assert [] == chosen(turn(1, CALL, RESULT, CALL), 0)
    assert ["in-1", "out-1"] == chosen(turn(1, CALL, RESULT, CALL, RESULT), 0)


def test_what_the_assistant_opened_with_blocks_nothing() -> None:
    assert ["out-0", "in-1", "out-1"] == chosen([answer("out-0"), *turn(1), *turn(2)], 1)


def test_a_system_text_between_two_turns_stays_with_the_later_one() -> None:
    history = [*turn(1), message("rules", Role.SYSTEM), *turn(2), *turn(3)]

    assert ["in-1", "out-1"] == chosen(history, 2)
    assert ["in-1", "out-1", "rules", "in-2", "out-2"] == chosen(history, 1)


def test_a_seed_goes_with_the_first_turn() -> None:
    history = [message("seed", Role.USER), message("rules", Role.SYSTEM), *turn(1), *turn(2)]

    assert ["seed", "rules", "in-1", "out-1"] == chosen(history, 1, runs=[run(1), run(2)])


def test_a_seed_before_a_summary_is_compacted_with_it() -> None:
    history = [message("seed", Role.USER), message("summary", Role.SUMMARY), *turn(1), *turn(2)]

    assert ["seed", "summary", "in-1", "out-1"] == chosen(history, 1, runs=[run(1), run(2)])


STEPS = [
    user("asked"),
    *(
        item
        for number in (1, 2, 3)
        for item in (
            answer(f"call-{number}", ToolCallPart(call_id=f"c{number}", tool_name="look", input={})),
            answer(f"result-{number}", RESULT.model_copy(update={"call_id": f"c{number}"})),
        )
    ),
    answer("said"),
]


@pytest.mark.parametrize("keep", range(9))
def test_no_cut_parts_a_call_from_its_result(keep: int) -> None:
    history = [*turn(0), *STEPS, *turn(9)]
    found = select_compactable_history(history, keep_recent_turns=keep)

    assert [] == torn(found.compactable, found.retained)


def torn(before: Sequence[Message], after: Sequence[Message]) -> list[str]:
    """The calls that have their result on the other side of a cut."""

    def ids(messages: Sequence[Message], kind: type[Any]) -> set[str]:
        return {part.call_id for item in messages for part in item.parts if isinstance(part, kind)}

    crossing = ids(before, ToolCallPart) & ids(after, ToolResultPart)
    return sorted(crossing | (ids(after, ToolCallPart) & ids(before, ToolResultPart)))


# --- any history --------------------------------------------------------------------------------

STATUSES = [MessageStatus.COMPLETED, MessageStatus.INTERRUPTED, MessageStatus.FAILED, MessageStatus.SUPERSEDED]
KINDS = ["text", "answered", "open", "approval", "apart"]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Message], list[Run]]:
    """A history of runs in any state, with seeds, coalesced inputs, calls open and answered, and a summary or not."""
    messages = [message("summary", Role.SUMMARY)] if draw(st.booleans()) else []
    messages += [message(f"seed-{number}", Role.USER) for number in range(draw(st.integers(0, 2)))]
    runs: list[Run] = []
    for number in range(1, draw(st.integers(0, 6)) + 1):
        inputs = [user(f"in-{number}-{place}") for place in range(draw(st.integers(1, 3)))]
        state = draw(st.sampled_from([RunState.COMPLETED, RunState.COMPLETED, RunState.FAILED, RunState.RUNNING]))
        messages += [*inputs, *_answers(draw, number)]
        if draw(st.booleans()):
            runs.append(run(number, *(item.id for item in inputs), state=state))
    return messages, runs


def _answers(draw: st.DrawFn, number: int) -> list[Message]:
    call = ToolCallPart(call_id=f"call-{number}", tool_name="look", input={})
    asked = ToolApprovalRequestPart(approval_id=f"approval-{number}", call_id=f"call-{number}")
    result = ToolResultPart(call_id=f"call-{number}", tool_name="look", outcome=ToolOutcome.SUCCESS)
    status = draw(st.sampled_from(STATUSES))
    kind = draw(st.sampled_from(KINDS))
    parts: dict[str, tuple[Part, ...]] = {"answered": (call, result), "open": (call,), "approval": (call, asked)}
    if kind == "apart":
        return [answer(f"mid-{number}", call, status=status), answer(f"out-{number}", result, status=status)]
    return [answer(f"out-{number}", *parts.get(kind, ()), status=status)]


@given(histories(), st.integers(0, 8))
def test_nothing_is_lost_torn_or_out_of_order(history: tuple[list[Message], list[Run]], keep: int) -> None:
    messages, runs = history
    found = select_compactable_history(messages, keep_recent_turns=keep, runs=runs)
    rest = messages[1:] if found.leading_summary is not None else messages
    active = {name for item in runs if item.state.is_active for name in item.input_message_ids}

    assert rest == [*found.compactable, *found.retained]
    assert [] == torn(found.compactable, found.retained)
    assert set() == active & {item.id for item in found.compactable}


@given(histories(), st.integers(0, 8))
def test_keeping_more_compacts_no_more(history: tuple[list[Message], list[Run]], keep: int) -> None:
    messages, runs = history
    more = select_compactable_history(messages, keep_recent_turns=keep + 1, runs=runs)
    fewer = select_compactable_history(messages, keep_recent_turns=keep, runs=runs)

    assert more.compactable == fewer.compactable[: len(more.compactable)]


@pytest.mark.parametrize(
    ("expires_at", "now", "expected"),
    [
        (NOW, NOW, True),
        (NOW, NOW - timedelta(microseconds=1), False),
        (NOW, None, False),
        (None, NOW, False),
    ],
)
def test_a_question_that_lapsed_leaves_nothing_open(
    expires_at: datetime | None, now: datetime | None, expected: bool
) -> None:
    question = ASKED.model_copy(update={"expires_at": expires_at})
    history = [*turn(1, CALL, question), *turn(2)]

    selected = select_compactable_history(history, keep_recent_turns=0, now=now)

    assert (4 if expected else 0) == len(selected.compactable)


def test_a_question_that_was_answered_in_time_is_open_until_its_call_is_made() -> None:
    question = ASKED.model_copy(update={"expires_at": NOW})
    answered = message("answer", Role.TOOL, ToolApprovalResponsePart(approval_id="approval-1", approved=True))

    between = turn(2)

    selected = select_compactable_history([*turn(1, CALL, question), *between, answered], keep_recent_turns=0, now=NOW)

    assert () == selected.compactable
