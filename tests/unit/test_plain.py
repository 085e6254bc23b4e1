"""Plain records are told as any other record would be, and are known again."""

from __future__ import annotations

import pytest

from tests.unit.recorded import SIGNED, answer, call, prompt_of, record, result, step, text, told, user
from turnlane.activities import plain
from turnlane.activities.plain import plain_message
from turnlane.records.messages import FilePart, MessageStatus, ReasoningPart, Role
from turnlane.store.payloads import HistoryMessage

FILE = FilePart(media_type="image/png", reference="https://x/y.png")


@pytest.mark.parametrize(
    ("item", "is_plain"),
    [
        (user("u"), True),
        (answer("a", step(0, text("so"))), True),
        (user("u", "  "), False),
        (record("u", Role.USER, text("a"), text("b")), False),
        (record("u", Role.USER, text("a"), FILE), False),
        (record("u", Role.USER), False),
        (record("s", Role.SUMMARY, text("a")), False),
        (answer("a", step(0, text("so")), status=MessageStatus.INTERRUPTED), False),
        (answer("a", step(0, text("so")), status=MessageStatus.STREAMING), False),
        (answer("a", step(0, ReasoningPart(text="hm", provider=SIGNED), text("so"))), False),
        (answer("a", step(0, call("1"), results=[result("1")])), False),
        (answer("a", step(0, text("so")), step(1, text("on"))), False),
        (record("a", Role.ASSISTANT, text("so"), status=MessageStatus.COMPLETED), False),
    ],
)
def test_a_record_of_one_text_that_was_said_to_its_end_is_plain(item: HistoryMessage, is_plain: bool) -> None:
    assert is_plain is (plain_message(item) is not None)


def test_a_plain_record_is_made_once_and_another_one_like_it_is_another() -> None:
    one, like_it = user("u"), user("u")

    assert plain_message(one) is plain_message(one)
    assert plain_message(like_it) is not plain_message(one)


def test_no_more_records_are_remembered_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "REMEMBERED", 3)
    monkeypatch.setattr(plain, "_known", {})
    items = [user(f"u{number}") for number in range(5)]
    for item in items:
        plain_message(item)

    assert items[2:] == [known for known, _ in plain._known.values()]


def test_nothing_long_and_nothing_else_than_plain_records_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_known", {})
    short, long = user("u", "x" * plain.REMEMBERED_SIZE), user("v", "x" * (plain.REMEMBERED_SIZE + 1))
    called = answer("a", step(0, call("1"), results=[result("1")]))
    told_of = [plain_message(item) is not None for item in (short, long, called)]

    assert [True, True, False] == told_of
    assert [short] == [known for known, _ in plain._known.values()]


def test_answers_that_follow_each_other_are_parted_however_plain() -> None:
    said = prompt_of(user("u"), answer("a", step(0, text("so"))), answer("b", step(0, text("and"))), user("v"))

    assert ["user", "assistant", "user", "assistant", "user"] == [speaker for speaker, _ in told(said)]
