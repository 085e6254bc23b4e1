"""Messages and inputs: who may say what, what an input must carry, and what makes two inputs the same."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from turnlane.records.admissions import BlobRef, Input, parts_digest
from turnlane.records.lane import ids_for_key
from turnlane.records.messages import (
    FilePart,
    InputPart,
    Message,
    MessageStatus,
    ReasoningPart,
    Role,
    TextPart,
    ToolApprovalResponsePart,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ANSWER = ToolApprovalResponsePart(approval_id="a", approved=True)
FILE = FilePart(media_type="image/png", reference="blob:1")
BLOB = BlobRef(id="b", digest="0" * 32, size=10)


def message(role: Role, status: MessageStatus, **given: Any) -> Message:
    facts: dict[str, Any] = {"id": "m", "conversation_id": "c", "parts": (), "created_at": NOW, "updated_at": NOW}
    return Message(role=role, status=status, **(facts | given))


@pytest.mark.parametrize("role", [Role.USER, Role.TOOL, Role.SUMMARY])
@pytest.mark.parametrize("status", MessageStatus)
def test_inputs_and_summaries_are_always_committed(role: Role, status: MessageStatus) -> None:
    if status is MessageStatus.COMMITTED:
        assert status is message(role, status).status
        return
    with pytest.raises(ValidationError, match="always committed"):
        message(role, status)


@pytest.mark.parametrize("role", Role)
def test_only_an_assistant_message_names_its_run(role: Role) -> None:
    if role is Role.ASSISTANT:
        assert "r" == message(role, MessageStatus.STREAMING, run_id="r").run_id
        return
    with pytest.raises(ValidationError, match="only an assistant message"):
        message(role, MessageStatus.COMMITTED, run_id="r")


def test_the_text_of_a_message_is_its_text_parts_joined() -> None:
    parts = (TextPart(text="a"), ReasoningPart(text="no"), TextPart(text="b"), FILE)

    assert "ab" == message(Role.ASSISTANT, MessageStatus.COMPLETED, parts=parts).text


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"text": "x", "parts": (TextPart(text="x"),)},
        {"text": "x", "blob": BLOB},
        {"parts": (FILE,), "blob": BLOB},
    ],
)
def test_an_input_carries_its_content_once(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="exactly one of parts, text and blob"):
        Input(key="k", **given)


@pytest.mark.parametrize(
    "given",
    [{"text": ""}, {"text": "   "}, {"text": "\n\t\u3000"}, {"parts": (TextPart(text=" "), TextPart(text=""))}],
)
def test_a_blank_input_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="empty or blank"):
        Input(key="k", **given)


def test_a_file_speaks_without_words() -> None:
    assert (FILE,) == Input(key="k", parts=(FILE,)).content
    assert 2 == len(Input(key="k", parts=(TextPart(text=" "), FILE)).content)


def test_an_approval_answer_is_a_tool_input_and_nothing_else_is() -> None:
    assert (ANSWER,) == Input(key="k", role=Role.TOOL, parts=(ANSWER,)).content
    with pytest.raises(ValidationError, match="approval answers only"):
        Input(key="k", role=Role.TOOL, text="yes")
    with pytest.raises(ValidationError, match="approval answers only"):
        Input(key="k", role=Role.TOOL, parts=(ANSWER, TextPart(text="yes")))
    with pytest.raises(ValidationError, match="is a tool-role input"):
        Input(key="k", parts=(TextPart(text="yes"), ANSWER))


@pytest.mark.parametrize("key", ["", "x" * 257, "a\x00b", "a\nb", "\ud83d", "\x7f", "\x85"])
def test_a_key_no_record_can_have_is_refused(key: str) -> None:
    with pytest.raises(ValidationError):
        Input(key=key, text="x")


@pytest.mark.parametrize("key", ["x" * 256, " ", "é/:\\ \N{PILE OF POO}", "../../etc"])
def test_any_other_key_is_kept_exactly(key: str) -> None:
    assert key == Input(key=key, text="x").key


def test_the_same_words_are_the_same_content_in_whatever_form() -> None:
    short = Input(key="k", text="a\x00b", metadata={"x": 1})
    long = Input(key="other", parts=(TextPart(text="a\N{REPLACEMENT CHARACTER}b"),))
    blob = Input(key="k", blob=BLOB.model_copy(update={"digest": parts_digest(Role.USER, long.content)}))

    assert short.content_digest == long.content_digest == blob.content_digest
    assert () == blob.content


def test_other_words_order_or_role_are_other_content() -> None:
    contents: list[tuple[Role, tuple[InputPart, ...]]] = [
        (Role.USER, (TextPart(text="a"), TextPart(text="b"))),
        (Role.USER, (TextPart(text="b"), TextPart(text="a"))),
        (Role.USER, (TextPart(text="ab"),)),
        (Role.TOOL, (ANSWER,)),
        (Role.TOOL, (ANSWER.model_copy(update={"approved": False}),)),
        (Role.USER, (FILE,)),
    ]

    assert len(contents) == len({parts_digest(role, parts) for role, parts in contents})


@pytest.mark.parametrize("digest", ["0" * 31, "0" * 33, "G" * 32, "0" * 32 + "\n"])
def test_a_blob_is_named_by_a_digest(digest: str) -> None:
    with pytest.raises(ValidationError):
        BlobRef(id="b", digest=digest, size=1)


def test_ids_follow_from_conversation_and_key_and_never_meet() -> None:
    assert ids_for_key("c", "k") == ids_for_key("c", "k")
    named = [*ids_for_key("a,b", "c"), *ids_for_key("a", "b,c"), *ids_for_key('a","b', "c"), *ids_for_key("c", "k")]

    assert len(named) == len(set(named))
