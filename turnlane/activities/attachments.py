"""Attachments: the files of users' messages as a provider can have them, resolved before the prompt is made."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace

from turnlane.activities.asking import asked
from turnlane.activities.failing import ApplicationFailedError, failing_as
from turnlane.activities.kept_files import KeptFiles
from turnlane.activities.providers.wording import attachment_note
from turnlane.agent.history import (
    FileBytes,
    FileText,
    FileUrl,
    HistoryOptions,
    ProviderFile,
    ResolvedFile,
    resolve_reference,
)
from turnlane.records.base import clean_text
from turnlane.records.messages import FilePart, Message, Role, TextPart
from turnlane.records.prompt import PromptFile
from turnlane.store.payloads import HistoryMessage

FILE_UNRESOLVED = "FILE_UNRESOLVED"
RESOLVE_FILE_FAILED = "RESOLVE_FILE_FAILED"

Resolved = Mapping[tuple[str, int], ResolvedFile | None]
"""What became of files, by the id of their message and their place among its parts."""


class Attachments:
    """The files of one attempt of a step: each is had once, however often its prompt is made."""

    def __init__(self, options: HistoryOptions, kept: KeptFiles | None) -> None:
        self._options = options
        self._kept = kept
        self._had: dict[tuple[str, int], ResolvedFile | None] = {}

    async def resolve(self, history: Sequence[HistoryMessage]) -> Resolved:
        """Have every file of users' messages, in order: from the application, else from the store what is kept there.

        Raises ApplicationFailedError with the message's id for what the application's function does wrong.
        """
        for item in history:
            if item.message.role is Role.USER and _has_files(item.message):
                await self._resolve_message(item.message)
        return self._had

    async def _resolve_message(self, message: Message) -> None:
        for place, part in enumerate(message.parts):
            if isinstance(part, FilePart) and (message.id, place) not in self._had:
                found = await _resolve(part, message, self._options)
                if found is None and self._kept is not None:
                    found = await self._kept.read(part)
                self._had[message.id, place] = found


def _has_files(message: Message) -> bool:
    # A loop, and not a generator for each of many messages that are one text.
    for part in message.parts:
        if isinstance(part, FilePart):
            return True
    return False


async def _resolve(part: FilePart, message: Message, options: HistoryOptions) -> ResolvedFile | None:
    resolve = options.resolve_file
    if resolve is None:
        return resolve_reference(part)
    with failing_as(RESOLVE_FILE_FAILED, "resolving a file of message %s", message.id, record_id=message.id):
        resolved = await asked(lambda: resolve(part, message))
        if resolved is not None and not isinstance(resolved, ResolvedFile):
            raise TypeError("a file is resolved to a FileUrl, FileBytes, FileText or ProviderFile, or to None")
        return resolved


def without_files(options: HistoryOptions) -> HistoryOptions:
    """The options, but with every file told by its name."""
    return replace(options, resolve_file=_nothing, unresolved_file="text")


def _nothing(part: FilePart, message: Message) -> None:
    return None


def attached(message: Message, place: int, resolved: Resolved, options: HistoryOptions) -> PromptFile | TextPart | None:
    """Return the file at a place of a message as the prompt has it; None if nothing stands for it.

    Raises ApplicationFailedError for a file that cannot be had, where the options say so: its text names the
    reference, its code and record id do not.
    """
    part = message.parts[place]
    assert isinstance(part, FilePart)
    key = (message.id, place)
    match resolved[key] if key in resolved else resolve_reference(part):
        case FileUrl(url):
            return PromptFile(media_type=part.media_type, filename=part.filename, url=url)
        case FileBytes(data, media_type):
            return PromptFile(
                media_type=media_type or part.media_type,
                filename=part.filename,
                data=base64.b64encode(data).decode("ascii"),
            )
        case ProviderFile(provider, file_id):
            return PromptFile(media_type=part.media_type, filename=part.filename, file_id=file_id, provider=provider)
        case FileText(text):
            return TextPart(text=text) if clean_text(text).strip() else None
    return _unresolved(part, message.id, options)


def _unresolved(part: FilePart, message_id: str, options: HistoryOptions) -> TextPart | None:
    if options.unresolved_file == "error":
        text = f"the file {part.reference!r} of message {message_id} could not be resolved"
        raise ApplicationFailedError(FILE_UNRESOLVED, text, record_id=message_id)
    if options.unresolved_file == "omit":
        return None
    return TextPart(text=attachment_note(part.media_type, part.filename))
