"""How things are told in one line, and which approval a line of a chat means."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from turnlane.client.cli.chat_commands import chosen
from turnlane.client.cli.wording import (
    brief,
    cost_words,
    ending_words,
    failure_words,
    open_questions,
    question_words,
    retry_words,
    said_words,
    usage_words,
)
from turnlane.records.approvals import PendingApproval
from turnlane.records.base import JsonObject
from turnlane.records.errors import ApprovalNotPendingError
from turnlane.records.messages import (
    FilePart,
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
from turnlane.records.runs import Failure, FailureClass, TerminalReason
from turnlane.records.usage import CostValue, Provenance, Usage, UsageValue

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def message(*parts: Part, role: Role = Role.ASSISTANT) -> Message:
    return Message(
        id="out",
        conversation_id="c",
        run_id="run" if role is Role.ASSISTANT else None,
        role=role,
        status=MessageStatus.COMPLETED if role is Role.ASSISTANT else MessageStatus.COMMITTED,
        parts=parts,
        created_at=AT,
        updated_at=AT,
    )


def call(name: str) -> ToolCallPart:
    return ToolCallPart(call_id=name, tool_name="pay", input={"sum": 5})


def question(approval_id: str, *, reason: str | None = None, until: datetime | None = None) -> PendingApproval:
    return PendingApproval(
        conversation_id="c",
        run_id="run",
        message_id="out",
        approval_id=approval_id,
        call_id="1",
        tool_name="pay",
        input={"sum": 5},
        reason=reason,
        expires_at=until,
    )


@pytest.mark.parametrize(
    ("reason", "policy", "failure", "told"),
    [
        (TerminalReason.SUCCESS, None, None, None),
        (TerminalReason.INTERRUPTED, None, None, "interrupted"),
        (TerminalReason.POLICY_STOP, "max-steps", None, "stopped at the agent's step limit (max-steps)"),
        (TerminalReason.POLICY_STOP, "reported", None, "stopped by reported"),
        (
            TerminalReason.POLICY_STOP,
            "budget-run",
            None,
            "stopped: this answer has spent its budget (budget-run)",
        ),
        (
            TerminalReason.PROVIDER_STOP,
            None,
            Failure(failure_class=FailureClass.TRUNCATED, code="max_tokens"),
            "cut short: the answer reached its output limit (max_tokens)",
        ),
        (
            TerminalReason.PROVIDER_STOP,
            None,
            Failure(failure_class=FailureClass.REFUSED),
            "the provider refused to answer, or to go on",
        ),
        (
            TerminalReason.PROVIDER_FAILURE,
            None,
            Failure(failure_class=FailureClass.RATE_LIMITED, status=429, retry_after_seconds=120),
            "provider_failure: rate_limited (429), not again before 120 s",
        ),
        (
            TerminalReason.RUNTIME_FAILURE,
            None,
            Failure(failure_class=FailureClass.APPLICATION, code="PINS_FAILED"),
            "runtime_failure: application (PINS_FAILED)",
        ),
        (
            TerminalReason.CONTEXT_OVERFLOW,
            None,
            Failure(failure_class=FailureClass.CONTEXT_OVERFLOW),
            "context_overflow: the conversation is too long for the model",
        ),
        (TerminalReason.OUTPUT_REJECTED, None, None, "output_rejected: the agent did not accept this answer"),
    ],
)
def test_an_ending_is_told_in_one_line(
    reason: TerminalReason, policy: str | None, failure: Failure | None, told: str | None
) -> None:
    assert told == ending_words(reason, policy, failure, None)


def test_an_answer_that_ends_with_a_question_has_no_other_ending() -> None:
    asks = message(call("1"), ToolApprovalRequestPart(approval_id="apr-1", call_id="1"))

    assert ending_words(TerminalReason.PROVIDER_STOP, None, None, asks) is None


def test_an_answer_without_a_word_that_stopped_waits_for_the_other_approvals() -> None:
    told = ending_words(TerminalReason.PROVIDER_STOP, None, None, message())

    assert "goes on when the other approvals are answered" == told


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"reason": "rate_limited", "delay_ms": 1500}, "rate_limited: tried again in 1.5 s"),
        ({"reason": "timeout", "delay_ms": 0, "model": "large"}, "timeout: the model large takes over"),
        (
            {"reason": "file_refused", "delay_ms": 0, "files": "as notes"},
            "file_refused: asked again, with files told by their names alone",
        ),
    ],
)
def test_what_follows_a_failed_call_is_told(entry: JsonObject, told: str) -> None:
    assert told == retry_words(entry)


def test_only_questions_that_nobody_answered_are_open() -> None:
    asks = message(
        *(call(name) for name in ("asked", "ruled", "done")),
        ToolApprovalRequestPart(approval_id="apr-1", call_id="asked", reason="large", expires_at=AT),
        ToolApprovalRequestPart(approval_id="apr-2", call_id="ruled", is_automatic=True),
        ToolApprovalRequestPart(approval_id="apr-3", call_id="done"),
        ToolResultPart(call_id="done", tool_name="pay", outcome=ToolOutcome.SUCCESS),
    )

    [found] = open_questions(asks)
    assert ("apr-1", "pay", {"sum": 5}, "large", AT) == (
        found.approval_id,
        found.tool_name,
        found.input,
        found.reason,
        found.expires_at,
    )


def test_a_question_says_what_why_and_until_when() -> None:
    told = question_words(question("apr-1", reason="it is much", until=AT))

    assert 'pay {"sum": 5} waits for approval: it is much; until 2026-01-02 03:04:05Z' == told


def test_what_was_said_names_its_files() -> None:
    file = FilePart(media_type="text/plain", reference="blob:1", filename="notes.txt")

    assert "look [file notes.txt]" == said_words(message(TextPart(text="look"), file, role=Role.USER))
    assert "[file notes.txt]" == said_words(message(file, role=Role.USER))


def test_a_value_is_one_line_that_fits() -> None:
    assert "one two" == brief("one\ntwo")
    assert 200 == len(brief(["x"] * 1000))


def test_what_is_not_known_of_spending_is_never_told_as_nothing() -> None:
    known = UsageValue(value=3, provenance=Provenance.COMPUTED)
    cost = CostValue(value=0.0000015, currency="USD", provenance=Provenance.COMPUTED)

    assert "3 tokens in, ? out, unknown cost" == usage_words(Usage(input_tokens=known, output_tokens=UsageValue()))
    assert "0.0000015 USD" == cost_words((cost,))
    assert "overloaded (529)" == failure_words(Failure(failure_class=FailureClass.OVERLOADED, status=529))


ONE, TWO = question("apr-11aa"), question("apr-22bb")


@pytest.mark.parametrize(
    ("pending", "given", "meant"),
    [
        ((ONE,), "", (ONE, "")),
        ((ONE,), "yes, do it", (ONE, "yes, do it")),
        ((ONE,), "apr-11aa because", (ONE, "because")),
        ((ONE, TWO), "apr-2", (TWO, "")),
        ((ONE, TWO), "apr-11 too much", (ONE, "too much")),
    ],
)
def test_a_line_means_the_approval_that_it_names_or_the_only_one(
    pending: tuple[PendingApproval, ...], given: str, meant: tuple[PendingApproval, str]
) -> None:
    assert meant == chosen(pending, given)


@pytest.mark.parametrize(
    ("pending", "given"),
    [((), ""), ((), "apr-11aa"), ((ONE, TWO), ""), ((ONE, TWO), "yes"), ((ONE,), "apr-22bb"), ((ONE, TWO), "apr-")],
)
def test_a_line_that_may_mean_another_approval_answers_none(pending: tuple[PendingApproval, ...], given: str) -> None:
    with pytest.raises(ApprovalNotPendingError):
        chosen(pending, given)
