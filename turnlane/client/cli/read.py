"""`runs`, `show`, `messages`, `conversations`, `spend` and `schema`: what is known, without changing it."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from typer import Argument, Option

import turnlane.records
from turnlane.client.cli.send import ConversationId
from turnlane.client.cli.telling import answering_models, tell_messages, tell_run
from turnlane.client.cli.verbs import Session, verb
from turnlane.client.cli.wording import cost_words, moment, operation_words, question_words, unknown_words, usage_words
from turnlane.client.client import Turnlane
from turnlane.records.approvals import PendingApproval
from turnlane.records.base import canonical_json
from turnlane.records.errors import InvalidInputError, RunNotFoundError
from turnlane.records.events import EVENT_ADAPTER
from turnlane.records.ledger import LedgerKind
from turnlane.records.operator_events import OPERATOR_EVENT_ADAPTER
from turnlane.records.runs import RunView
from turnlane.records.usage import Usage

if TYPE_CHECKING:
    from turnlane.records.archives import BranchReceipt

Limit = Annotated[int, Option(min=1, max=1000, help="How many at most.")]
Cursor = Annotated[str | None, Option(help="Continue where an earlier answer ended.")]

NOTHING_SAID = "nothing was said in this conversation"
DEFS = "#/$defs/"
_REFERENCE = re.compile(r'"#/\$defs/([^"]+)"')


def register(app: typer.Typer) -> None:
    """Add the verbs of this module."""
    for function in (runs, show, messages, conversations, spend, schema):
        verb(app)(function)


async def runs(session: Session, conversation_id: ConversationId) -> None:
    """List the active runs of a conversation, in queue order."""
    async with session.reader() as client:
        lines = await client.runs(conversation_id)
    for line in lines:
        session.out.record(line)
    if not lines:
        session.out.say("no run is active", "dim")
        return
    session.out.table(
        ("run", "state", "revision", "doing"),
        ((line.id, line.state.value, line.revision, operation_words(line.last_operation)) for line in lines),
    )


async def show(
    session: Session,
    conversation_id: ConversationId,
    run_id: Annotated[str | None, Option("--run", help="Show this run of it.")] = None,
) -> None:
    """Show a conversation as it stands, or one run of it."""
    async with session.reader() as client:
        answered_by = await _answering_models(client, conversation_id)
        pending = await client.pending_approvals(conversation_id, limit=1000)
        if run_id is not None:
            view = await client.run(conversation_id, run_id)
            if view is None:
                raise RunNotFoundError("the conversation has no such run", run_id=run_id)
            waiting = [question for question in pending if question.run_id == run_id]
            _show_run(session, view, waiting, answered_by.get(run_id))
            return
        snapshot = await client.snapshot(conversation_id)
        spent = await client.spend(conversation_id)
        model = await client.chosen_model(conversation_id)
        origin = await _origin(client, conversation_id)
    known = {"approvals": pending, "model": model, "spend": spent, "answered_by": answered_by, "branched_from": origin}
    session.out.record({**snapshot.model_dump(mode="json"), **known})
    if snapshot.version == 0:
        session.out.say(NOTHING_SAID, "dim")
        return
    chosen = f", model {model}" if model else ""
    session.out.say(f"{conversation_id}: agent {snapshot.agent or '-'}{chosen}, version {snapshot.version}", "bold")
    if origin is not None:
        session.out.say(f"branched from {origin.source_conversation_id} at version {origin.source_version}", "dim")
    tell_messages(session.out, snapshot.messages)
    for run in snapshot.runs:
        tell_run(session.out, run, answered_by.get(run.id))
    _tell_pending(session, pending)
    if spent.runs:
        session.out.say(f"spent by {spent.runs} ended runs: {usage_words(spent.total)}", "dim")
    if spent.inherited is not None:
        session.out.say(f"spent before, elsewhere: {usage_words(spent.inherited.total)}", "dim")


def _show_run(session: Session, view: RunView, waiting: Sequence[PendingApproval], model: str | None) -> None:
    session.out.record({**view.model_dump(mode="json"), "approvals": waiting, "answered_by": model})
    tell_run(session.out, view.run, model)
    tell_messages(session.out, (view.assistant,) if view.assistant else ())
    _tell_pending(session, waiting)


def _tell_pending(session: Session, waiting: Sequence[PendingApproval]) -> None:
    for question in waiting:
        session.out.say(f"{question_words(question)}; approval {question.approval_id}", "bold yellow")


async def _answering_models(client: Turnlane, conversation_id: str) -> dict[str, str]:
    """Which model gave the latest answer of each run."""
    found: dict[str, str] = {}
    kinds, seq = (LedgerKind.PROVIDER_RESPONSE.value, LedgerKind.BRANCH_OBSERVATION.value), 1
    while True:
        page = await client.ledger(conversation_id, from_seq=seq, kinds=kinds)
        found.update(answering_models(page.items))
        if page.next_seq is None:
            return found
        seq = page.next_seq


async def _origin(client: Turnlane, conversation_id: str) -> BranchReceipt | None:
    """What a branch was made of; None for any other conversation."""
    from turnlane.records.archives import BranchReceipt

    page = await client.ledger(conversation_id, kinds=(LedgerKind.BRANCHED.value,), limit=1)
    return next((BranchReceipt.model_validate_json(canonical_json(event.payload)) for event in page.items), None)


async def messages(
    session: Session,
    conversation_id: ConversationId,
    limit: Limit = 100,
    cursor: Cursor = None,
    compacted: Annotated[bool, Option("--compacted", help="Those too that a summary stands for.")] = False,
) -> None:
    """List what was said, oldest first."""
    async with session.reader() as client:
        page = await client.messages(conversation_id, limit=limit, cursor=cursor, include_compacted=compacted)
    session.out.record(page)
    if not page.items and cursor is None:
        session.out.say(NOTHING_SAID, "dim")
    tell_messages(session.out, page.items)
    _tell_cursor(session, page.next_cursor)


async def conversations(session: Session, limit: Limit = 100, cursor: Cursor = None) -> None:
    """List the conversations of the store."""
    async with session.reader() as client:
        page = await client.conversations(limit=limit, cursor=cursor)
    session.out.record(page)
    session.out.table(
        ("conversation", "agent", "tenant", "version", "active", "updated"),
        (
            (line.conversation_id, line.agent, line.tenant, line.version, line.active_runs, moment(line.updated_at))
            for line in page.items
        ),
    )
    _tell_cursor(session, page.next_cursor)


async def spend(session: Session, conversation_id: ConversationId) -> None:
    """Show what a conversation spent: its ended runs in all, and the run in flight."""
    async with session.reader() as client:
        spent = await client.spend(conversation_id)
    session.out.record(spent)
    rows = [(f"{spent.runs} ended runs", spent.total)]
    if spent.active is not None:
        rows.append((f"run {spent.active_run_id}", spent.active))
    if spent.inherited is not None:
        rows.append((f"{spent.inherited.runs} runs, before it was branched", spent.inherited.total))
    session.out.table(("what", "input", "output", "cost"), (_spend_row(*row) for row in rows))
    if spent.missing:
        session.out.say(unknown_words(spent), "dim")


def _spend_row(name: str, usage: Usage) -> tuple[str, int | None, int | None, str | None]:
    cost = None if usage.cost is None or usage.cost.value is None else cost_words((usage.cost,))
    return name, usage.input_tokens.value, usage.output_tokens.value, cost


async def schema(
    session: Session, name: Annotated[str | None, Argument(help="One record; all of them when left out.")] = None
) -> None:
    """Print the JSON schema of every public record, or of one."""
    definitions = record_schemas()
    if name is not None and name not in definitions:
        raise InvalidInputError(f"there is no record {name}; there are: {', '.join(sorted(definitions))}")
    # A schema is for programs, whoever asked: both get the same JSON.
    session.out.as_json = True
    if name is None:
        session.out.record({"$defs": definitions})
        return
    needed = _needed(name, definitions)
    session.out.record({"$ref": f"{DEFS}{name}", "$defs": {each: definitions[each] for each in sorted(needed)}})


def record_schemas() -> dict[str, Any]:
    """The JSON schemas of all records, and of `Event` and `OperatorEvent`, by name; they refer to each other as
    `#/$defs/NAME`."""
    _, combined = models_json_schema([(model, "validation") for model in _records()])
    definitions: dict[str, Any] = combined["$defs"]
    for name, adapter in (("Event", EVENT_ADAPTER), ("OperatorEvent", OPERATOR_EVENT_ADAPTER)):
        schema = adapter.json_schema(ref_template=f"{DEFS}{{model}}")
        definitions |= {**schema.pop("$defs", {}), name: schema}
    return definitions


def _needed(name: str, definitions: dict[str, Any]) -> set[str]:
    """The name, and all names that its definition refers to, directly or not."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in needed:
            needed.add(current)
            waiting += _REFERENCE.findall(json.dumps(definitions[current]))
    return needed


def _records() -> Iterator[type[BaseModel]]:
    for module in pkgutil.iter_modules(turnlane.records.__path__, "turnlane.records."):
        for name, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(found, BaseModel) and found.__module__ == module.name and not name.startswith("_"):
                yield found


def _tell_cursor(session: Session, cursor: str | None) -> None:
    if cursor is not None:
        session.out.say(f"there is more: --cursor {cursor}", "dim")
