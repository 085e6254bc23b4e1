"""Beginnings: what is told from memory is what would be told anew, whatever becomes of the records."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recorded import NOW, answer, call, draft, record, result, step, text
from turnlane.activities import beginnings
from turnlane.activities.attachments import Attachments
from turnlane.activities.beginnings import begin, digest_of, found_in
from turnlane.activities.evidence import request_evidence
from turnlane.activities.hearing import hear
from turnlane.activities.plain import REMEMBERED_SIZE, plain_message
from turnlane.activities.projection import project
from turnlane.activities.prompt_check import check_prompt
from turnlane.agent import HistoryOptions, ScriptedModel
from turnlane.records.messages import FilePart, MessageStatus, Role
from turnlane.records.prompt import Prompt, PromptMessage
from turnlane.records.steps import Fence
from turnlane.store.payloads import HistoryMessage

OPTIONS = HistoryOptions()
FILE = FilePart(media_type="image/png", reference="https://x/y.png")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "_kept", {})


def _in(conversation_id: str, item: HistoryMessage) -> HistoryMessage:
    message = item.message.model_copy(update={"conversation_id": conversation_id})
    return item.model_copy(update={"message": message})


def user(number: int, words: str = "hi") -> HistoryMessage:
    return record(f"u{number}", Role.USER, text(f"{words} {number}"))


def said(number: int) -> HistoryMessage:
    return answer(f"a{number}", step(0, text(f"so {number}")))


KINDS: dict[str, Callable[[int], HistoryMessage]] = {
    "user": user,
    "answer": said,
    "long": lambda number: user(number, "x" * REMEMBERED_SIZE),
    "file": lambda number: record(f"f{number}", Role.USER, text("see"), FILE),
    "calls": lambda number: answer(
        f"c{number}", step(0, call(f"k{number}"), results=[result(f"k{number}")]), step(1, text("found"))
    ),
    "cut": lambda number: answer(f"i{number}", step(0, text("so")), status=MessageStatus.INTERRUPTED),
    "summary": lambda number: record(f"s{number}", Role.SUMMARY, text("before")),
    "silent": lambda number: record(f"e{number}", Role.USER),
}
CHANGES = ("again", "drop", "other", "nothing")


def exchanges(count: int) -> list[HistoryMessage]:
    return [item for number in range(count) for item in (user(number), said(number))]


async def heard(history: Sequence[HistoryMessage]) -> Prompt:
    return await hear(history, OPTIONS, taken=(), tools=(), step=0, now=NOW, files=Attachments(OPTIONS, None))


async def anew(history: Sequence[HistoryMessage]) -> Prompt:
    resolved = await Attachments(OPTIONS, None).resolve(history)
    return project(history, taken=(), instructions="", tools=(), step=0, now=NOW, resolved=resolved)


def kept_in(prompt: Prompt) -> int:
    return len(found_in("c", prompt.messages).messages)


def digest(messages: Sequence[PromptMessage]) -> str:
    whole = sha256()
    for message in messages:
        whole.update(message.model_dump_json(exclude={"record_id"}).encode() + b",")
    return whole.hexdigest()


@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12),
    changes=st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from(["again", "drop", "other", "nothing"])), max_size=12
    ),
)
async def test_it_is_told_as_if_for_the_first_time(kinds: list[str], changes: list[tuple[int, str]]) -> None:
    conversation = f"c-{uuid.uuid4().hex}"
    history: list[HistoryMessage] = []
    for number, kind in enumerate(kinds):
        history.append(_in(conversation, KINDS[kind](number)))
        place, change = changes[number] if number < len(changes) else (0, "nothing")
        if place < len(history) and change != "nothing":
            one = history.pop(place)
            others = {"again": [one.model_copy()], "other": [_in(conversation, user(number, "other"))], "drop": []}
            history[place:place] = others[change]
        now = [*history, _in(conversation, draft())]
        prompt, fresh = await heard(now), await anew(now)
        sound = len(found_in(conversation, prompt.messages).messages)

        assert fresh == prompt
        assert check_prompt(fresh) == check_prompt(prompt, sound)
        assert digest(fresh.messages) == digest_of(conversation, prompt.messages).hexdigest()


async def test_a_conversation_that_goes_on_is_told_from_its_last_answer_on(monkeypatch: pytest.MonkeyPatch) -> None:
    history = exchanges(3)
    await heard([*history, user(3), draft()])
    asked: list[str] = []

    def noting(item: HistoryMessage) -> PromptMessage | None:
        asked.append(item.message.id)
        return plain_message(item)

    monkeypatch.setattr(beginnings, "plain_message", noting)
    prompt = await heard([*history, user(3), said(3), user(4), draft()])

    assert ["u3", "a3", "u4", "draft"] == asked
    assert (9, 8) == (len(prompt.messages), kept_in(prompt))


@pytest.mark.parametrize("kind", ["long", "file", "calls", "cut", "summary"])
async def test_a_beginning_ends_at_the_answer_before_what_is_not_plain(kind: str) -> None:
    prompt = await heard([*exchanges(2), user(2), KINDS[kind](3), user(4), said(4), draft()])

    assert 4 == kept_in(prompt)


async def test_equal_records_are_not_the_same() -> None:
    history = exchanges(2)
    await heard([*history, draft()])
    first = found_in("c", (await heard([*history, draft()])).messages)
    again = begin([item.model_copy() for item in history])

    assert history == list(first.records) == list(again.records)
    assert first is not again
    assert first.digest.digest() == again.digest.digest()


async def test_what_an_application_changed_in_a_prompt_is_looked_at() -> None:
    prompt = await heard([*exchanges(2), draft()])
    changed = prompt.model_copy(update={"messages": (*prompt.messages[1:],)})

    assert (4, 0) == (kept_in(prompt), kept_in(changed))
    assert 0 == len(found_in("another", prompt.messages).messages)


async def test_the_digest_is_of_all_that_is_sent_and_of_nothing_else() -> None:
    fence = Fence(conversation_id="c", epoch=1, run_id="r", token=1, step=0, attempt=1)
    model = ScriptedModel(script=lambda request: [])
    prompt = await heard([*exchanges(2), user(2), draft()])

    def of(prompt: Prompt) -> object:
        return request_evidence(fence, model, prompt)["body_sha256"]

    unnamed = tuple(message.model_copy(update={"record_id": None}) for message in prompt.messages)
    others = [
        prompt.model_copy(update={"messages": prompt.messages[:-1]}),
        prompt.model_copy(update={"messages": (*prompt.messages[:-1], prompt.messages[0])}),
        prompt.model_copy(update={"messages": (prompt.messages[1], *prompt.messages[1:])}),
        prompt.model_copy(update={"system": ("be kind",)}),
        prompt.model_copy(update={"options": {"openai": {"user": "u"}}}),
    ]

    assert of(prompt) == of(prompt.model_copy(update={"messages": unnamed}))
    assert len(others) + 1 == len({of(prompt), *(of(other) for other in others)})


def test_no_more_records_are_kept_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "KEPT_RECORDS", 10)
    histories = {name: [_in(name, item) for item in exchanges(2)] for name in ("a", "b", "c")}
    for name in ("a", "b", "a", "c"):
        begin(histories[name])
    begin([*histories["a"], *(_in("a", item) for item in exchanges(1))])
    begin(histories["c"])
    kept = {name: len(beginning.records) for name, beginning in beginnings._kept.items()}

    assert {"a": 6, "c": 4} == kept
