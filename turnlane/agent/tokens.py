"""Token counters: who is asked how many tokens a prompt has. What nobody can count is unknown, never guessed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from turnlane.agent.answered import answered
from turnlane.agent.models import Model
from turnlane.records.base import canonical_json
from turnlane.records.messages import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnlane.records.prompt import Prompt, PromptPart
from turnlane.records.tokens import UNKNOWN_COUNT, CountSource, TokenCount, add_counts

logger = logging.getLogger(__name__)

CountGiven = int | TokenCount
"""A count as an application gives it; a plain number is an estimate."""


def as_count(given: CountGiven) -> TokenCount:
    """Return a count. Raises TypeError for anything but a whole number or a count, ValueError for a negative one."""
    if isinstance(given, TokenCount):
        return given
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError("a token count is a whole number")
    return TokenCount(value=given, source=CountSource.ESTIMATED)


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of a prompt, or of a part of one.

    `counts_files` says whether the files of messages are in its counts. A count that it cannot make is
    `TokenCount()`, which is unknown; what it raises is a failure of the application.
    """

    @property
    def counts_files(self) -> bool: ...

    async def count(self, model: Model, prompt: Prompt) -> TokenCount:
        """Return how many tokens `prompt` has for `model`."""
        ...


class ProviderCounter:
    """Asks the model's own provider, where it has a way to count (Anthropic has); unknown for any other."""

    counts_files = True

    async def count(self, model: Model, prompt: Prompt) -> TokenCount:
        """Unknown here: a worker asks its provider in place of this."""
        return UNKNOWN_COUNT


class TextCounter:
    """Counts with a function of the application: a text to a number, synchronous or not. Files are not text."""

    counts_files = False

    def __init__(self, function: Callable[[str], CountGiven | Awaitable[CountGiven]]) -> None:
        self._function = function

    async def count(self, model: Model, prompt: Prompt) -> TokenCount:
        """Return the sum over the texts of the prompt; none at all is 0."""
        return add_counts([await self._one(text) for text in prompt_texts(prompt)])

    async def _one(self, text: str) -> TokenCount:
        return as_count(await answered(self._function(text)))


class TiktokenCounter:
    """Counts with OpenAI's tokenizer: an estimate, as a provider adds tokens of its own around the texts.

    `encoding` is one of `tiktoken`, its name, or None for the one of the model's name. tiktoken fetches an
    encoding when it is first used; where it cannot, and for a model that it does not know, counts are unknown.
    Raises ModuleNotFoundError when the extra `tokens` is not installed, ValueError for a name that there is not.
    """

    counts_files = False

    def __init__(self, encoding: Any = None) -> None:
        library = _tiktoken() if encoding is None or isinstance(encoding, str) else None
        if library is not None and encoding not in (None, *library.list_encoding_names()):
            raise ValueError(f"tiktoken has no encoding of the name {encoding!r}")
        self._tiktoken: Any = library
        self._encoding = encoding

    async def count(self, model: Model, prompt: Prompt) -> TokenCount:
        """Return the sum over the texts of the prompt."""
        return await asyncio.to_thread(self._count, model.name, list(prompt_texts(prompt)))

    def _count(self, model_name: str, texts: list[str]) -> TokenCount:
        encoding = self._encoding if self._tiktoken is None else self._loaded(model_name)
        if encoding is None:
            return UNKNOWN_COUNT
        total = sum(len(encoding.encode_ordinary(text)) for text in texts)
        return TokenCount(value=total, source=CountSource.ESTIMATED)

    def _loaded(self, model_name: str) -> Any:
        """The encoding, or None: that it cannot be fetched just now is no reason to fail a run."""
        try:
            if self._encoding is not None:
                return self._tiktoken.get_encoding(self._encoding)
            return self._tiktoken.encoding_for_model(model_name)
        except Exception as error:
            logger.warning("tokens were not counted: tiktoken has no encoding (%s)", type(error).__name__)
            return None


def _tiktoken() -> Any:
    try:
        import tiktoken
    except ModuleNotFoundError:
        raise ModuleNotFoundError("TiktokenCounter needs tiktoken: pip install 'turnlane[tokens]'") from None
    return tiktoken


def prompt_texts(prompt: Prompt) -> Iterator[str]:
    """Everything of a prompt that is text to a model: instructions, what was said, calls, results and tools."""
    for given in prompt.system_texts:
        yield given.text
    for message in prompt.messages:
        for part in message.parts:
            yield from part_texts(part)
    for tool in prompt.tools:
        yield from (tool.name, tool.description, canonical_json(tool.parameters))


def part_texts(part: PromptPart | Part) -> Iterator[str]:
    """What of a part is text to a model: of a file, or of what is for us alone, nothing."""
    if isinstance(part, ToolCallPart):
        yield from (part.tool_name, canonical_json(part.input))
    elif isinstance(part, ToolResultPart):
        yield part.output if isinstance(part.output, str) else canonical_json(part.output)
    elif isinstance(part, TextPart | ReasoningPart):
        yield part.text
