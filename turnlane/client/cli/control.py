"""`interrupt`, `stop`, `cancel`, `abandon`, `compact`, `purge`, `deliver`: what an operator does."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from typer import Argument, Option

from turnlane.client.cli.send import ConversationId
from turnlane.client.cli.verbs import Session, verb
from turnlane.client.cli.wording import code_mark
from turnlane.records.compaction import CompactionResult
from turnlane.records.errors import InvalidInputError

RunId = Annotated[str, Argument(metavar="RUN", help="The id of the run.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of this module."""
    for function in (interrupt, stop, cancel, abandon, compact, purge, deliver):
        verb(app)(function)


async def interrupt(
    session: Session,
    conversation_id: ConversationId,
    run_id: Annotated[str | None, Option("--run", help="Only this run; else whichever is active.")] = None,
) -> None:
    """Stop the answer in flight and keep what was said so far. Queued inputs go on."""
    async with session.lane_client() as client:
        await client.interrupt(conversation_id, run_id=run_id)
    _done(session, "stopping", conversation_id, run_id)


async def stop(session: Session, conversation_id: ConversationId) -> None:
    """Stop the answer in flight, if there is one. Unlike `interrupt`, it is fine when there is none."""
    async with session.lane_client() as client:
        was_running = await client.stop(conversation_id)
    _done(session, "stopping" if was_running else "nothing was running", conversation_id)


async def cancel(session: Session, conversation_id: ConversationId, run_id: RunId) -> None:
    """Take a queued run out of the queue."""
    async with session.lane_client() as client:
        await client.cancel(conversation_id, run_id)
    _done(session, "cancelled", conversation_id, run_id)


async def abandon(
    session: Session,
    conversation_id: ConversationId,
    run_id: RunId,
    expected_revision: Annotated[int, Option(help="The revision the run must still have.")],
    stale_owner: Annotated[bool, Option("--stale-owner", help="I know that nobody works on it.")] = False,
) -> None:
    """Give up on a run whose outcome will never be known."""
    if not stale_owner:
        raise InvalidInputError("abandon takes your word that nobody works on the run: say --stale-owner")
    async with session.lane_client() as client:
        await client.abandon(conversation_id, run_id, expected_revision=expected_revision, stale_owner=stale_owner)
    _done(session, "abandoned", conversation_id, run_id)


async def compact(
    session: Session,
    conversation_id: ConversationId,
    force: Annotated[bool, Option("--force", help="Whatever the agent's threshold says.")] = False,
) -> None:
    """Have the older part of a conversation replaced by a summary."""
    async with session.lane_client() as client:
        reply = await client.compact(conversation_id, force=force)
    session.out.record({"ok": True, "conversation_id": conversation_id, **reply.model_dump(mode="json")})
    outcome = (reply.outcome or CompactionResult.FAILED).value.replace("_", " ")
    session.out.say(f"{outcome}: {conversation_id}{code_mark(reply.failure)}")


async def purge(
    session: Session,
    conversation_id: ConversationId,
    expected_version: Annotated[int | None, Option(help="Only if the conversation still has this version.")] = None,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a conversation and all that was said in it, for ever. Its id stays reserved."""
    if not yes:
        _confirm(session, conversation_id)
    async with session.lane_client() as client:
        await client.purge(conversation_id, expected_version=expected_version)
    _done(session, "purged", conversation_id)


async def deliver(
    session: Session,
    conversation_id: ConversationId,
    event: Annotated[str, Argument(help="The event that a tool waits for.")],
    event_id: Annotated[str, Argument(metavar="ID", help="Which one of them.")],
    payload: Annotated[str | None, Option(help="JSON that the tool is given; null when left out.")] = None,
) -> None:
    """Bring an event to the tools that wait for it, or will. The first delivery stands."""
    async with session.lane_client() as client:
        accepted = await client.deliver(conversation_id, event, event_id, _json(payload))
    session.out.record({"ok": accepted is not False, "conversation_id": conversation_id, "accepted": accepted})
    told = {True: "delivered", False: "another delivery came first", None: "sent; it acts when a worker is up"}
    session.out.say(f"{told[accepted]}: {event} {event_id}")


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        raise InvalidInputError("the payload is not JSON", fields=["payload"]) from None


def _confirm(session: Session, conversation_id: str) -> None:
    if session.out.as_json or not session.out.console.is_terminal:
        raise InvalidInputError("purge deletes for ever: say --yes")
    typer.confirm(f"Delete conversation {conversation_id} for ever?", abort=True)


def _done(session: Session, what: str, conversation_id: str, run_id: str | None = None) -> None:
    session.out.record({"ok": True, "conversation_id": conversation_id, "run_id": run_id})
    session.out.say(f"{what}: {conversation_id}{f' {run_id}' if run_id else ''}")
