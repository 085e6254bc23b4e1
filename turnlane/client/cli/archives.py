"""`export`, `import` and `branch`: whole conversations, by the store alone."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from turnlane.client.cli.send import ConversationId
from turnlane.client.cli.verbs import Session, verb
from turnlane.records.errors import InvalidInputError

STANDARD = "-"
"""The file that stands for standard input or output."""


def register(app: typer.Typer) -> None:
    """Add the verbs of this module."""
    verb(app, "export")(export)
    verb(app, "import")(import_)
    verb(app, "branch")(branch)


async def export(
    session: Session,
    conversation_id: ConversationId,
    output: Annotated[str, Argument(metavar="FILE", help="Where to write the archive; - for standard output.")],
    force: Annotated[bool, Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write a conversation to a file: all that was said, and all that the store knows of it."""
    if not force:
        _refuse_existing(output)
    async with session.reader() as client:
        data = await client.export_conversation(conversation_id)
    if output == STANDARD:
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()
        return
    _write_whole(Path(output), data)
    session.out.record({"ok": True, "conversation_id": conversation_id, "file": output, "bytes": len(data)})
    session.out.say(f"{conversation_id}: {len(data)} bytes in {output}")


async def import_(
    session: Session,
    archive: Annotated[str, Argument(metavar="FILE", help="An archive; - for standard input.")],
) -> None:
    """Restore a conversation from a file, under its own id, into a store that has nothing of it."""
    data = _read(archive)
    async with session.reader() as client:
        done = await client.import_conversation(data)
    session.out.record({"ok": True, **done.model_dump(mode="json")})
    session.out.say(f"{done.conversation_id}: restored, {done.events} ledger events")


async def branch(
    session: Session,
    source: Annotated[str, Argument(help="The conversation to copy; with --archive, a file that holds it.")],
    destination: Annotated[str, Argument(help="The id of the new conversation.")],
    through: Annotated[str | None, Option(metavar="RUN", help="Copy up to the end of this run.")] = None,
    key: Annotated[str | None, Option(help="Makes a repeat of the call the same branch.")] = None,
    archive: Annotated[
        bool, Option("--archive", help="SOURCE is an archive: a file, or - for standard input.")
    ] = False,
) -> None:
    """Make a new conversation that begins with what was said in another one."""
    found: str | bytes = _read(source) if archive else source
    async with session.reader() as client:
        done = await client.branch(found, destination, through_run_id=through, key=key)
    session.out.record(done)
    receipt = done.receipt
    said = "branched from" if done.outcome == "created" else "was branched before, from"
    session.out.say(f"{destination}: {said} {receipt.source_conversation_id} at version {receipt.source_version}")


def _read(name: str) -> bytes:
    if name == STANDARD:
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot read {name}: {error.strerror}", fields=["FILE"]) from None


def _refuse_existing(name: str) -> None:
    if name != STANDARD and Path(name).exists():
        raise InvalidInputError("the file exists; --force replaces it", fields=["FILE"])


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is either as it was or whole, whatever happens meanwhile."""
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidInputError(f"cannot write {path}: {error.strerror}", fields=["FILE"]) from None
    beside = Path(name)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(f"cannot write {path}: {error.strerror}", fields=["FILE"]) from None
    finally:
        beside.unlink(missing_ok=True)
