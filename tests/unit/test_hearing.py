"""Hearing: what an application's own functions make of the history, and what becomes of their failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.recorded import NOW, answer, call, draft, record, result, step, text, told, user
from turnlane.activities.attachments import Attachments
from turnlane.activities.failing import ApplicationFailedError
from turnlane.activities.hearing import hear
from turnlane.agent import FileBytes, FileText, FileUrl, HistoryOptions, OwnProjection, ProviderFile, resolve_reference
from turnlane.records.lane import Taken
from turnlane.records.messages import FilePart, Message, Role, TextPart
from turnlane.records.prompt import Prompt, PromptFile, PromptMessage, Speaker
from turnlane.store.payloads import HistoryMessage

FILE = FilePart(media_type="image/png", reference="blob:secret", filename="b.png")
SEEN = record("u", Role.USER, text("see"), FILE)


async def heard(*history: HistoryMessage, taken: Sequence[Taken] = (), at: int = 0, **options: Any) -> Prompt:
    given = HistoryOptions(**options)
    return await hear(history, given, taken=taken, tools=(), step=at, now=NOW, files=Attachments(given, None))


@pytest.mark.parametrize(
    ("found", "becomes"),
    [
        (FileUrl("https://x/y"), PromptFile(media_type="image/png", filename="b.png", url="https://x/y")),
        (FileBytes(b"hi"), PromptFile(media_type="image/png", filename="b.png", data="aGk=")),
        (FileBytes(b"hi", "image/gif"), PromptFile(media_type="image/gif", filename="b.png", data="aGk=")),
        (
            ProviderFile("openai", "file_1"),
            PromptFile(media_type="image/png", filename="b.png", file_id="file_1", provider="openai"),
        ),
        (FileText("a cat"), TextPart(text="a cat")),
        (None, TextPart(text="[attachment: b.png]")),
    ],
)
async def test_a_file_is_what_the_application_resolves_it_to(found: Any, becomes: Any) -> None:
    async def resolve(part: FilePart, message: Message) -> Any:
        assert (FILE, "u") == (part, message.id)
        return found

    for resolver in (resolve, lambda part, message: found):
        prompt = await heard(SEEN, resolve_file=resolver)

        assert (TextPart(text="see"), becomes) == prompt.messages[0].parts


@pytest.mark.parametrize(
    ("reference", "found"),
    [("https://x", FileUrl("https://x")), ("data:,hi", FileUrl("data:,hi")), ("blob:1", None), ("file:///x", None)],
)
def test_a_reference_that_a_provider_can_follow_needs_no_resolver(reference: str, found: FileUrl | None) -> None:
    assert found == resolve_reference(FilePart(media_type="a/b", reference=reference))


def broken(*arguments: Any) -> Any:
    raise RuntimeError("the secret text of an error")


def wrong(*arguments: Any) -> Any:
    return "neither"


@pytest.mark.parametrize("function", [broken, wrong])
@pytest.mark.parametrize(
    ("name", "code", "record_id"),
    [("resolve_file", "RESOLVE_FILE_FAILED", "u"), ("project", "PROJECTION_FAILED", None)],
)
async def test_a_function_that_fails_is_named_and_what_it_said_is_not(
    function: Callable[..., Any], name: str, code: str, record_id: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(ApplicationFailedError) as caught:
        chosen: dict[str, Any] = {name: function}
        options = HistoryOptions(**chosen)
        await hear([SEEN], options, taken=(), tools=(), step=0, now=NOW, files=Attachments(options, None))

    assert (code, record_id) == (caught.value.code, caught.value.record_id)
    assert ("test_hearing.py" in caplog.text) is (function is broken)
    assert "secret" not in caplog.text


async def test_an_own_projection_replaces_everything() -> None:
    given: list[Message] = []

    async def project(messages: Sequence[Message]) -> OwnProjection:
        given.extend(messages)
        return OwnProjection(messages=[PromptMessage(speaker=Speaker.USER, parts=(text("in short"),))], system=["mine"])

    summary = record("s", Role.SUMMARY, text("before"))
    prompt = await heard(summary, user("u"), draft(), project=project)

    assert ["s", "u"] == [message.id for message in given]
    assert (("mine",), [("user", ["in short"])]) == (prompt.system, told(prompt))


async def test_an_own_projection_is_given_what_is_finished_in_the_order_in_which_it_was_said() -> None:
    given: list[Message] = []

    def project(messages: Sequence[Message]) -> OwnProjection:
        given.extend(messages)
        return OwnProjection(messages=())

    own = draft(step(0, call("1"), results=[result("1")]), step(1, text("so")), step(2, text("not yet")))
    taken = [Taken(run_id="r", input_id="late", step=1)]
    await heard(user("u"), answer("a", step(0, text("well"))), own, user("late"), taken=taken, at=2, project=project)

    assert ["u", "a", "draft", "late", "draft"] == [message.id for message in given]
    assert [(call("1"), result("1")), (text("so"),)] == [given[2].parts, given[4].parts]


async def test_a_file_is_resolved_once_however_often_a_prompt_is_made() -> None:
    asked_for: list[str] = []

    def resolve(part: FilePart, message: Message) -> None:
        asked_for.append(message.id)

    files = Attachments(HistoryOptions(resolve_file=resolve), None)
    later = record("v", Role.USER, text("and"), FILE)
    await files.resolve([SEEN])
    found = await files.resolve([SEEN, later])

    assert ["u", "v"] == asked_for
    assert {("u", 1): None, ("v", 1): None} == found
