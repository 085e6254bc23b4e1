"""How records are told to a person in one line: endings, failures, retries, questions, what was spent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from pydantic import JsonValue

from turnlane.records.approvals import PendingApproval
from turnlane.records.messages import (
    FilePart,
    Message,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolResultPart,
)
from turnlane.records.runs import Failure, FailureClass, Operation, TerminalReason
from turnlane.records.spending import ConversationSpend
from turnlane.records.usage import CostValue, Usage

LONGEST_VALUE = 200
SHORT_ID = 12
"""How much of an id is enough to name one of a few."""

_ENDINGS = {
    TerminalReason.TIMEOUT: "timeout: the model was silent for too long",
    TerminalReason.CONTEXT_OVERFLOW: "context_overflow: the conversation is too long for the model",
    TerminalReason.OUTPUT_REJECTED: "output_rejected: the agent did not accept this answer",
    TerminalReason.SHUTDOWN: "shutdown: the conversation's workflow was ended",
}
_POLICIES = {
    "max-steps": "stopped at the agent's step limit (max-steps)",
    "budget-run": "stopped: this answer has spent its budget (budget-run)",
    "budget-conversation": "stopped: the conversation has spent its budget (budget-conversation)",
    "budget-unenforceable": "stopped: nobody knows what was spent, so the budget cannot be kept (budget-unenforceable)",
}
_CUTS = {
    FailureClass.TRUNCATED: "cut short: the answer reached its output limit",
    FailureClass.REFUSED: "the provider refused to answer, or to go on",
}
OTHERS_WAIT = "goes on when the other approvals are answered"


def brief(value: JsonValue) -> str:
    """A value as one line that fits a page: a text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.splitlines())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def moment(at: datetime) -> str:
    """A time, to the second."""
    return f"{at:%F %TZ}"


def failure_words(failure: Failure) -> str:
    """What went wrong: its class, and what else is known."""
    known = [str(fact) for fact in (failure.status, failure.code) if fact is not None]
    facts = f" ({', '.join(known)})" if known else ""
    after = failure.retry_after_seconds
    return f"{failure.failure_class.value}{facts}{'' if after is None else f', not again before {after:g} s'}"


def code_mark(failure: Failure | None) -> str:
    """What is put behind the name of an outcome: the code of what went wrong, else its class; nothing without one."""
    return "" if failure is None else f" ({failure.code or failure.failure_class.value})"


def ending_words(
    reason: TerminalReason, policy_name: str | None, failure: Failure | None, message: Message | None
) -> str | None:
    """How a run ended; None for one that succeeded, or whose answer ends with a question."""
    if reason is TerminalReason.SUCCESS or (message is not None and open_questions(message)):
        return None
    if reason is TerminalReason.POLICY_STOP:
        return _POLICIES.get(policy_name or "", f"stopped by {policy_name}")
    if reason is TerminalReason.PROVIDER_STOP and failure is None:
        return "the provider stopped" if message is not None and message.parts else OTHERS_WAIT
    if failure is not None and failure.failure_class in _CUTS:
        return f"{_CUTS[failure.failure_class]}{f' ({failure.code})' if failure.code else ''}"
    words = _ENDINGS.get(reason, reason.value)
    if failure is None or failure.failure_class.value == reason.value:
        return f"{words}{f' ({failure.code})' if failure is not None and failure.code else ''}"
    return f"{words}: {failure_words(failure)}"


def retry_words(entry: Mapping[str, JsonValue]) -> str:
    """What follows a model call that failed, as the ledger has it: another try, another model, or no files."""
    reason, delay = entry.get("reason"), entry.get("delay_ms")
    if "model" in entry:
        return f"{reason}: the model {entry['model']} takes over"
    if "files" in entry:
        return f"{reason}: asked again, with files told by their names alone"
    seconds = delay / 1000 if isinstance(delay, int | float) else 0
    return f"{reason}: tried again in {seconds:.1f} s"


def operation_words(operation: Operation | None) -> str | None:
    """What a run does at its provider, or did last."""
    if operation is None:
        return None
    step = "" if operation.step is None else f" of step {operation.step + 1}"
    return f"{operation.kind.value}{step}: {operation.phase.value}"


# --- approvals ----------------------------------------------------------------------------------


def open_questions(message: Message) -> list[PendingApproval]:
    """The approvals that an answer asks for and that nobody answered before it ended."""
    calls = {part.call_id: part for part in message.parts if isinstance(part, ToolCallPart)}
    done = {part.call_id for part in message.parts if isinstance(part, ToolResultPart)}
    return [
        PendingApproval(
            conversation_id=message.conversation_id,
            run_id=message.run_id or "",
            message_id=message.id,
            approval_id=part.approval_id,
            call_id=part.call_id,
            tool_name=calls[part.call_id].tool_name,
            input=calls[part.call_id].input,
            reason=part.reason,
            expires_at=part.expires_at,
        )
        for part in message.parts
        if isinstance(part, ToolApprovalRequestPart) and not part.is_automatic and part.call_id in calls.keys() - done
    ]


def call_words(question: PendingApproval) -> str:
    """The call that a question is about."""
    return f"{question.tool_name} {brief(question.input)}"


def question_words(question: PendingApproval) -> str:
    """What is asked, why, and until when."""
    reason = f": {brief(question.reason)}" if question.reason else ""
    until = f"; until {moment(question.expires_at)}" if question.expires_at else ""
    return f"{call_words(question)} waits for approval{reason}{until}"


def answer_words(part: ToolApprovalResponsePart, question: PendingApproval | None) -> str:
    """An answer, and the call that it is about, if that is known."""
    verb = "approved" if part.approved else "denied"
    about = call_words(question) if question is not None else short_id(part.approval_id)
    return f"{verb} {about}{f': {brief(part.reason)}' if part.reason else ''}"


def short_id(name: str) -> str:
    """The beginning of an id, enough to name it."""
    return name[:SHORT_ID]


# --- what was said ------------------------------------------------------------------------------


def said_words(message: Message) -> str:
    """What somebody said: its text, and a mark for each file."""
    files = [f"[file {part.filename or part.media_type}]" for part in message.parts if isinstance(part, FilePart)]
    return " ".join([message.text, *files] if message.text else files)


# --- what was spent -----------------------------------------------------------------------------


def usage_words(usage: Usage) -> str:
    """Tokens and cost; what nobody knows is a question mark."""
    read, written = (_count(figure.value) for figure in (usage.input_tokens, usage.output_tokens))
    cost = "unknown cost" if usage.cost is None or usage.cost.value is None else cost_words((usage.cost,))
    return f"{read} tokens in, {written} out, {cost}"


def unknown_words(spent: ConversationSpend) -> str:
    """What of a conversation's cost nobody knows, and what is known all the same."""
    return f"of {spent.missing} nobody knows the cost; known: {cost_words(spent.costs)}"


def cost_words(costs: Iterable[CostValue]) -> str:
    """Amounts with their currencies, without an exponent."""
    known = (f"{Decimal(repr(cost.value)):f} {cost.currency or ''}".strip() for cost in costs)
    return ", ".join(known) or "nothing"


def _count(value: int | None) -> str:
    return "?" if value is None else str(value)
