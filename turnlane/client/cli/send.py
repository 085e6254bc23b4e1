"""`submit` and `tail`: say something in a conversation, and watch one."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from turnlane.agent.files import Upload
from turnlane.client.cli.live_transcript import LiveTranscript
from turnlane.client.cli.verbs import Session, verb
from turnlane.client.client import Turnlane
from turnlane.client.ticket import Ticket
from turnlane.records.admissions import Policy
from turnlane.records.errors import InvalidInputError, RunFailedError
from turnlane.records.messages import InputPart, TextPart
from turnlane.records.runs import RunState

ConversationId = Annotated[str, Argument(metavar="CONVERSATION", help="The id of the conversation.")]


class Via(StrEnum):
    """How an input travels: an update is answered with its admission, a signal is safe without a worker."""

    UPDATE = "update"
    SIGNAL = "signal"


def register(app: typer.Typer) -> None:
    """Add the verbs of this module."""
    verb(app)(submit)
    verb(app)(tail)


async def submit(
    session: Session,
    conversation_id: ConversationId,
    text: Annotated[str | None, Argument(help="What to say; read from stdin when left out, or '-'.")] = None,
    agent: Annotated[str | None, Option(help="The agent of a new conversation.")] = None,
    key: Annotated[str | None, Option(help="The idempotency key: the same key again is the same input.")] = None,
    policy: Annotated[Policy | None, Option(help="What the input does to the run in flight.")] = None,
    context: Annotated[str | None, Option(help="JSON object for tools and instructions.")] = None,
    metadata: Annotated[str | None, Option(help="JSON object kept with the message.")] = None,
    tenant: Annotated[str | None, Option(help="The tenant of a new conversation.")] = None,
    file: Annotated[list[Path] | None, Option(help="A file to send along; may be given again.")] = None,
    via: Annotated[Via, Option(help="How the input travels.")] = Via.UPDATE,
    wait: Annotated[bool, Option("--wait", help="Wait for the answer and print it as it streams.")] = False,
) -> None:
    """Submit an input. Prints the admission, and with --wait the events and the result of its run."""
    files = [await asyncio.to_thread(read_upload, path) for path in file or ()]
    said = await asyncio.to_thread(sys.stdin.read) if text == "-" or (text is None and not files) else text
    async with session.client() as client:
        ticket = await client.submit(
            conversation_id,
            with_files(said, files),
            agent=agent,
            key=key,
            policy=policy,
            context=_json_object(context, "context"),
            metadata=_json_object(metadata, "metadata"),
            tenant=tenant,
            via=via.value,
        )
        tell_admission(session, ticket)
        if wait:
            await _follow(session, client, ticket)


def read_upload(path: Path) -> Upload:
    """The file at a path, its type guessed by its name. Raises `InvalidInputError` for one that cannot be read."""
    guessed, _ = mimetypes.guess_type(path.name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}", fields=["file"]) from None
    return Upload(data=data, media_type=guessed or "application/octet-stream", filename=path.name)


def with_files(text: str | None, files: list[Upload]) -> str | list[InputPart | Upload]:
    """What is sent: the text, and the files behind it."""
    if not files:
        return text or ""
    return [TextPart(text=text), *files] if text is not None else [*files]


async def tail(
    session: Session,
    conversation_id: ConversationId,
    from_seq: Annotated[
        int | None, Option(min=0, help="Begin after this ledger entry; 0 is everything. Else: what comes now.")
    ] = None,
    reasoning: Annotated[bool, Option("--reasoning", help="Show what the model thinks, too.")] = False,
) -> None:
    """Watch a conversation until Ctrl-C."""
    async with (
        session.client() as client,
        LiveTranscript(session.out, client, conversation_id, show_reasoning=reasoning) as transcript,
    ):
        async for event in client.events(conversation_id, from_seq=from_seq):
            await transcript.show(event)


def _json_object(text: str | None, name: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"--{name} is not JSON", fields=[name]) from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"--{name} is not a JSON object", fields=[name])
    return value


def tell_admission(session: Session, ticket: Ticket) -> None:
    """Say that an input was admitted, or that it will be."""
    admission = ticket.admission
    if admission is None:
        session.out.record({"conversation_id": ticket.conversation_id, "idempotency_key": ticket.key})
        session.out.say(f"sent under key {ticket.key}; it is admitted once a worker takes it", "dim")
        return
    session.out.record(admission)
    state = "admitted before" if admission.duplicate else "admitted"
    session.out.say(f"{state}: run {admission.run_id}, {admission.run_state.value}, key {ticket.key}", "dim")


async def _follow(session: Session, client: Turnlane, ticket: Ticket) -> None:
    """Show the run's events to its end, and leave with an error unless it completed."""
    async with LiveTranscript(session.out, client, ticket.conversation_id, show_inputs=False) as transcript:
        async for event in ticket.events():
            await transcript.show(event)
    result = await ticket.result()
    session.out.record(result)
    if result.state is not RunState.COMPLETED:
        raise RunFailedError(f"the run ended {result.state.value} ({result.reason.value})", run_id=result.run_id)
