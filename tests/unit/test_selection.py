"""Selecting history: whole turns go, the oldest first; what is protected stays whatever it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlane.agent import CountSource, Selection, SelectionOutcome, SelectionReason, TokenCount, select_history
from turnlane.agent.selection import cut_history
from turnlane.agent.turns import group_turns
from turnlane.records.messages import (
    Message,
    MessageStatus,
    Part,
    Role,
    TextPart,
    ToolApprovalRequestPart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.tokens import UNKNOWN_COUNT

AT = datetime(2026, 1, 2, tzinfo=UTC)
RECENT, WITHIN = SelectionReason.PROTECTED_RECENT_TURN, SelectionReason.WITHIN_BUDGET
OLDEST, INCOMPLETE = SelectionReason.OLDEST_ELIGIBLE_TURN, SelectionReason.PROTECTED_INCOMPLETE_TURN
SYSTEM, UNHEARD = SelectionReason.PROTECTED_SYSTEM, SelectionReason.UNSPEAKABLE


def message(name: str, *parts: Part, status: MessageStatus | None = None) -> Message:
    """A message whose name begins with its role: `user-1`, `assistant-1`, `tool-1`, `system`, `summary`."""
    role = Role(name.split("-")[0])
    usual = MessageStatus.COMPLETED if role is Role.ASSISTANT else MessageStatus.COMMITTED
    said = parts or (TextPart(text=name),)
    return Message(
        id=name, conversation_id="c", role=role, status=status or usual, parts=said, created_at=AT, updated_at=AT
    )


def history(*names: str) -> list[Message]:
    return [message(name) for name in names]


def call(call_id: str) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, tool_name="look", input={})


def result(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, tool_name="look", outcome=ToolOutcome.SUCCESS, output="seen")


def one_each(message: Message) -> TokenCount:
    return TokenCount(value=1, source=CountSource.MEASURED)


def select(messages: Sequence[Message], available: int, keep: int = 1, **options: Any) -> Selection:
    options.setdefault("estimate_message", one_each)
    return select_history(messages, available_tokens=available, keep_recent_turns=keep, **options)


def ids(messages: Iterable[Message]) -> list[str]:
    return [each.id for each in messages]


def reasons(selection: Selection) -> dict[str, SelectionReason]:
    return {decision.message_id: decision.reason for decision in selection.decisions}


def test_the_oldest_turn_goes_whole_and_the_system_text_stays() -> None:
    selection = select(history("system", "user-1", "assistant-1", "user-2", "assistant-2"), 3)

    assert ["system", "user-2", "assistant-2"] == ids(selection.messages)
    assert SelectionOutcome.TRUNCATED is selection.outcome
    assert {
        "system": SYSTEM,
        "user-1": OLDEST,
        "assistant-1": OLDEST,
        "user-2": RECENT,
        "assistant-2": RECENT,
    } == reasons(selection)
    assert TokenCount(value=3, source=CountSource.COMPUTED) == selection.total_tokens


def test_nothing_goes_where_everything_fits() -> None:
    selection = select(history("user-1", "assistant-1", "user-2", "assistant-2", "user-3"), 5)

    assert SelectionOutcome.FITS is selection.outcome
    assert [WITHIN, WITHIN, RECENT, RECENT, INCOMPLETE] == list(reasons(selection).values())


def test_eviction_stops_as_soon_as_the_rest_fits() -> None:
    turns = [f"{role}-{number}" for number in range(1, 5) for role in ("user", "assistant")]

    selection = select(history(*turns), 5, keep=1)

    assert ["user-3", "assistant-3", "user-4", "assistant-4"] == ids(selection.messages)


@pytest.mark.parametrize(("keep", "left"), [(0, []), (1, ["2"]), (2, ["1", "2"]), (9, ["1", "2"])])
def test_as_many_answered_turns_stay_as_are_kept(keep: int, left: list[str]) -> None:
    selection = select(history("user-1", "assistant-1", "user-2", "assistant-2"), 0, keep)

    assert [f"{role}-{number}" for number in left for role in ("user", "assistant")] == ids(selection.messages)
    assert (SelectionOutcome.OVERSIZED if left else SelectionOutcome.TRUNCATED) is selection.outcome


def test_answers_that_nobody_hears_cost_nothing_and_are_not_returned() -> None:
    failed = [message(f"assistant-{number}", status=MessageStatus.FAILED) for number in range(3)]
    messages = [each for number in range(3) for each in (message(f"user-{number}"), failed[number])]

    selection = select([*messages, message("user-9"), message("assistant-9")], 5)

    assert ["user-0", "user-1", "user-2", "user-9", "assistant-9"] == ids(selection.messages)
    assert SelectionOutcome.FITS is selection.outcome
    assert {UNHEARD} == {reasons(selection)[f"assistant-{number}"] for number in range(3)}
    assert UNKNOWN_COUNT == selection.decisions[1].tokens


def test_a_turn_that_failed_does_not_stay_for_ever() -> None:
    failed = message("assistant-1", status=MessageStatus.FAILED)

    selection = select([message("user-1"), failed, message("user-2"), message("assistant-2")], 2)

    assert ["user-2", "assistant-2"] == ids(selection.messages)
    assert OLDEST is reasons(selection)["user-1"]


def test_failed_answers_count_where_they_are_told() -> None:
    failed = message("assistant-1", status=MessageStatus.FAILED)

    selection = select([message("user-1"), failed], 2, failed_assistant="marked")

    assert ["user-1", "assistant-1"] == ids(selection.messages)


def test_a_turn_that_went_on_after_an_approval_goes_as_one() -> None:
    asked = message("assistant-1", call("a"))
    answered = message("assistant-2", result("a"), TextPart(text="done"))
    messages = [message("user-1"), asked, message("tool-1"), answered, message("user-2"), message("assistant-3")]

    selection = select(messages, 2)

    assert ["user-2", "assistant-3"] == ids(selection.messages)


def test_a_call_without_its_result_protects_its_turn() -> None:
    messages = [message("user-1"), message("assistant-1", call("a")), message("user-2"), message("assistant-2")]

    selection = select(messages, 0, keep=0)

    assert ["user-1", "assistant-1"] == ids(selection.messages)
    assert INCOMPLETE is reasons(selection)["assistant-1"]


def test_all_inputs_of_a_run_and_what_was_planted_before_them_are_one_turn() -> None:
    turns = group_turns(history("user-seed", "user-1", "user-2", "assistant-1", "user-3", "assistant-2"))

    assert [["user-seed", "user-1", "user-2", "assistant-1"], ["user-3", "assistant-2"]] == [
        ids(turn.messages) for turn in turns
    ]


def test_a_summary_inside_a_turn_does_not_end_it() -> None:
    turns = group_turns(history("user-1", "summary", "assistant-1", "user-2"))

    assert [["user-1", "assistant-1"], ["summary"], ["user-2"]] == [ids(turn.messages) for turn in turns]


def test_what_was_said_before_any_user_stays() -> None:
    selection = select(history("assistant-0", "user-1", "assistant-1"), 0, keep=0)

    assert SelectionOutcome.OVERSIZED is selection.outcome
    assert ["assistant-0"] == ids(selection.messages)


def test_an_unknown_count_removes_nothing_but_the_unheard() -> None:
    messages = [
        message("user-1"),
        message("assistant-1", status=MessageStatus.SUPERSEDED),
        message("user-2"),
        message("assistant-2"),
    ]

    selection = select(
        messages, 0, estimate_message=lambda each: UNKNOWN_COUNT if each.id == "user-2" else one_each(each)
    )

    assert SelectionOutcome.UNAVAILABLE is selection.outcome
    assert ["user-1", "user-2", "assistant-2"] == ids(selection.messages)
    assert UNKNOWN_COUNT == selection.total_tokens
    assert [one_each(messages[0]), UNKNOWN_COUNT, UNKNOWN_COUNT, UNKNOWN_COUNT] == [
        decision.tokens for decision in selection.decisions
    ]
    assert SelectionReason.TOKEN_COUNT_UNAVAILABLE is reasons(selection)["assistant-2"]


def test_one_estimate_makes_the_total_one() -> None:
    selection = select(history("user-1", "user-2"), 9, estimate_message=lambda each: 2)

    assert TokenCount(value=4, source=CountSource.ESTIMATED) == selection.total_tokens


@pytest.mark.parametrize("name", ["available_tokens", "keep_recent_turns"])
@pytest.mark.parametrize(
    ("wrong", "error"), [(1.5, TypeError), (float("nan"), TypeError), (True, TypeError), (-1, ValueError)]
)
def test_numbers_that_are_not_whole_are_refused(name: str, wrong: Any, error: type[Exception]) -> None:
    given: dict[str, Any] = {"available_tokens": 1, "keep_recent_turns": 1, name: wrong}
    with pytest.raises(error):
        select_history(history("user-1"), estimate_message=one_each, **given)


def test_an_estimate_that_is_no_count_is_refused() -> None:
    wrong: Any = 3.5
    with pytest.raises(TypeError):
        select(history("user-1"), 1, estimate_message=lambda each: wrong)


_KINDS = st.sampled_from(["answered", "failed", "open", "unanswered", "system"])


def _turn(number: int, kind: str) -> list[Message]:
    if kind == "system":
        return [message(f"system-{number}")]
    answers = {
        "answered": [message(f"assistant-{number}")],
        "failed": [message(f"assistant-{number}", status=MessageStatus.FAILED)],
        "open": [message(f"assistant-{number}", call(f"call-{number}"))],
        "unanswered": [],
    }
    return [message(f"user-{number}"), *answers[kind]]


@given(st.lists(_KINDS, max_size=12), st.integers(0, 30), st.integers(0, 4), st.booleans())
def test_a_cut_is_the_same_whatever_becomes_of_the_open_turns(
    kinds: list[str], available: int, keep: int, are_closed: bool
) -> None:
    messages = [each for number, kind in enumerate(kinds) for each in _turn(number, kind)]
    selection = select(messages, available, keep)
    evicted = [decision.message_id for decision in selection.decisions if decision.reason is OLDEST]
    kept = ids(selection.messages)
    later = [_closed(each) for each in messages] if are_closed else messages

    assert len(messages) == len(selection.decisions)
    assert kept == [each.id for each in messages if each.id in kept]
    assert (len(kept) > available) is (selection.outcome is SelectionOutcome.OVERSIZED)
    if evicted:
        removed = cut_history(
            later, evicted[-1], [name for name, why in reasons(selection).items() if why is INCOMPLETE]
        )
        assert kept == [
            each.id for each in messages if each.id not in removed and reasons(selection)[each.id] is not UNHEARD
        ]


def _closed(each: Message) -> Message:
    """The message as it is once its calls have their results."""
    results = [result(part.call_id) for part in each.parts if isinstance(part, ToolCallPart)]
    return each.model_copy(update={"parts": (*each.parts, *results)})


def test_a_cut_whose_last_message_is_gone_cuts_nothing() -> None:
    assert frozenset() == cut_history(history("user-1", "assistant-1"), "user-0")


@pytest.mark.parametrize(("now", "kept"), [(AT, 3), (AT + timedelta(minutes=2), 1)])
def test_a_turn_whose_question_lapsed_may_go(now: datetime, kept: int) -> None:
    asked = ToolApprovalRequestPart(approval_id="a", call_id="1", expires_at=AT + timedelta(minutes=1))
    messages = [message("user-1"), message("assistant-1", call("1"), asked), message("user-2")]

    selection = select(messages, available=1, keep=0, now=now)

    assert kept == len(selection.messages)
