"""How what is kept of a conversation looks to a person: messages part by part, and runs in a line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from turnlane.client.cli.output import Output
from turnlane.client.cli.wording import answer_words, brief, failure_words, moment, usage_words
from turnlane.records.ledger import LedgerEvent, observed
from turnlane.records.messages import (
    FilePart,
    Message,
    Part,
    RefusalPart,
    Role,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolResultPart,
)
from turnlane.records.runs import Run


def tell_messages(out: Output, said: Iterable[Message]) -> None:
    """Print messages: who said it, the text, and a line for each thing in it that is no text."""
    for message in said:
        out.say(f"{message.role.value} {message.id} ({message.status.value})", "bold")
        if message.text:
            out.say(message.text)
        for part in message.parts:
            line = part_words(part)
            if line is not None:
                out.say(f"[{line}]", "magenta")
        if message.role is Role.SUMMARY:
            out.say("[what it stands for is kept: `messages --compacted` lists it]", "dim")


def part_words(part: Part) -> str | None:
    """A part of a message in a line; None for text, and for what only its provider reads."""
    match part:
        case FilePart():
            return f"file {part.filename or part.reference[:40]} ({part.media_type})"
        case ToolCallPart():
            return f"{part.tool_name} {brief(part.input)}"
        case ToolResultPart():
            return f"{part.tool_name} {part.outcome.value} {brief(part.output)}"
        case ToolApprovalRequestPart():
            by = "decided by the agent's rules" if part.is_automatic else "asked for approval"
            until = f", until {moment(part.expires_at)}" if part.expires_at else ""
            return f"{by}: {part.approval_id}{f', {brief(part.reason)}' if part.reason else ''}{until}"
        case ToolApprovalResponsePart():
            return answer_words(part, None)
        case RefusalPart():
            return f"refused{f' ({part.category})' if part.category else ''}"
        case _:
            return None


def tell_run(out: Output, run: Run, model: str | None) -> None:
    """Print a run in a line: how it stands or ended, which model answered, and what it spent."""
    ending = f" ({run.terminal_reason.value})" if run.terminal_reason else ""
    policy = f" by {run.terminal_policy_name}" if run.terminal_policy_name else ""
    failure = f": {failure_words(run.failure)}" if run.failure else ""
    answered = f", answered by {model}" if model else ""
    spent = f", {usage_words(run.usage)}" if run.usage else ""
    out.say(
        f"run {run.id}: {run.state.value}{ending}{policy}{failure}, revision {run.revision}{answered}{spent}", "dim"
    )


def answering_models(responses: Iterable[LedgerEvent]) -> Mapping[str, str]:
    """Which model gave the latest answer of each run, as its provider named it."""
    found: dict[str, str] = {}
    for event in responses:
        _, said = observed(event.kind, event.payload)
        run_id, response = said.get("run_id"), said.get("response")
        if isinstance(run_id, str) and isinstance(response, dict) and isinstance(response.get("model"), str):
            found[run_id] = str(response["model"])
    return found
