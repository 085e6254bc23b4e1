"""How the history is told to the model: an application's choices where more than one way is right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnlane.agent.given import one_of
from turnlane.records.messages import FailedAssistant, FilePart, Message
from turnlane.records.prompt import PromptMessage

UnresolvedFile = Literal["omit", "text", "error"]
InterruptedAssistant = Literal["marker", "omit", "system-note"]
LeadingAssistant = Literal["omit", "allow", "error"]
IncompleteToolTurn = Literal["omit", "error"]


@dataclass(frozen=True)
class FileUrl:
    """A file that the provider fetches from this address, or a `data:` URL that holds it."""

    url: str


@dataclass(frozen=True)
class FileBytes:
    """A file's content. `media_type` is that of the part unless given."""

    data: bytes
    media_type: str | None = None


@dataclass(frozen=True)
class FileText:
    """What stands for a file in words: its text, a transcript, a description."""

    text: str


@dataclass(frozen=True)
class ProviderFile:
    """A file that was uploaded to a provider before, under the id it gave out there.

    `provider` is that of the model (`openai`, `openai-chat`, `anthropic`); any other model is told the name only.
    """

    provider: str
    file_id: str


ResolvedFile = FileUrl | FileBytes | FileText | ProviderFile
FileResolver = Callable[[FilePart, Message], ResolvedFile | Awaitable[ResolvedFile | None] | None]


@dataclass(frozen=True, kw_only=True)
class OwnProjection:
    """What an application's own projection makes of the history: the conversation, and system texts beside it."""

    messages: Sequence[PromptMessage]
    system: Sequence[str] = ()


Projector = Callable[[Sequence[Message]], OwnProjection | Awaitable[OwnProjection]]


def resolve_reference(part: FilePart) -> ResolvedFile | None:
    """Return the file of a reference that is a web address or a `data:` URL; None for any other reference.

    This is how files are resolved where an application says nothing.
    """
    is_address = part.reference.startswith(("https://", "http://", "data:"))
    return FileUrl(part.reference) if is_address else None


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """What of a conversation's history the model hears, and how. The defaults are what most chats want.

    * `resolve_file(part, message)`, async or not, gives a user's file as the provider can take it; None if it
      cannot be had. It is asked for every file of the history at every attempt of a step. Without it,
      `resolve_reference` is what is done.
    * `unresolved_file`: a file that cannot be had is told by its name (`text`), left out (`omit`), or ends the
      run (`error`, code `FILE_UNRESOLVED`). Its reference never reaches the model.
    * `interrupted_assistant`: an answer that was stopped is told as far as it came, with a marker behind it; or
      left out (`omit`); or its text becomes a line among the instructions (`system-note`).
    * `failed_assistant`: an answer that failed is left out, or told with a marker (`marked`).
    * `leading_assistant`: what the assistant said before any user did is left out, told, or ends the run.
    * `incomplete_tool_turn`: an imported answer whose calls and results do not fit is left out, or ends the run.
    * `project(messages)`, async or not, replaces all of this with the application's own projection.

    Raises ValueError for a value that is none of these.
    """

    resolve_file: FileResolver | None = None
    unresolved_file: UnresolvedFile = "text"
    interrupted_assistant: InterruptedAssistant = "marker"
    failed_assistant: FailedAssistant = "omit"
    leading_assistant: LeadingAssistant = "omit"
    incomplete_tool_turn: IncompleteToolTurn = "omit"
    project: Projector | None = None

    def __post_init__(self) -> None:
        choices: dict[str, Any] = {
            "unresolved_file": UnresolvedFile,
            "interrupted_assistant": InterruptedAssistant,
            "failed_assistant": FailedAssistant,
            "leading_assistant": LeadingAssistant,
            "incomplete_tool_turn": IncompleteToolTurn,
        }
        for name, choice in choices.items():
            one_of(name, getattr(self, name), choice)
