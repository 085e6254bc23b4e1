"""Counting tokens with Anthropic: what a prompt, or a part of one, comes to, as the provider says itself."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from typing import Any, Final, NamedTuple

import anthropic

from turnlane.activities.providers.anthropic_fields import anthropic_fields
from turnlane.activities.providers.anthropic_prompt import anthropic_request
from turnlane.agent.models import Model
from turnlane.records.base import canonical_json
from turnlane.records.prompt import Prompt
from turnlane.records.tokens import UNKNOWN_COUNT, CountSource, TokenCount
from turnlane.records.usage import MAX_COUNT

logger = logging.getLogger(__name__)

COUNT_SECONDS: Final = 10.0
_COUNTED: Final = frozenset({"model", "messages", "system", "tools", "tool_choice"})
_REMEMBERED: Final = 1024
_STAND_IN: Final = [{"role": "user", "content": [{"type": "text", "text": "."}]}]
"""What is counted with instructions or tools that have no conversation, and taken off again."""


class _Countable(NamedTuple):
    """The part of a request that its count depends on, and the headers that it needs."""

    body: dict[str, Any]
    headers: dict[str, str]

    def with_stand_in(self) -> _Countable:
        return self._replace(body={**self.body, "messages": _STAND_IN})


class AnthropicCounts:
    """Counts prompts, and remembers by digest what the provider said: instructions seldom change."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    async def count(self, client: anthropic.AsyncAnthropic, model: Model, prompt: Prompt) -> TokenCount:
        """Return the count of a prompt. Unknown when the provider does not answer, or with no whole number."""
        asked, nothing = _countable(model, prompt), _countable(model, Prompt())
        if asked.body["messages"]:
            return _measured(await self._asked(client, asked))
        if len(asked.body) == len(nothing.body):
            return TokenCount(value=0, source=CountSource.COMPUTED)
        whole = await self._asked(client, asked.with_stand_in())
        stand_in = await self._asked(client, nothing.with_stand_in())
        if whole is None or stand_in is None or whole < stand_in:
            return UNKNOWN_COUNT
        return TokenCount(value=whole - stand_in, source=CountSource.COMPUTED)

    async def _asked(self, client: anthropic.AsyncAnthropic, asked: _Countable) -> int | None:
        name = hashlib.sha256(canonical_json(asked.body).encode()).hexdigest()
        if name not in self._known:
            count = await _ask(client, asked)
            if count is None:
                return None
            self._known[name] = count
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return self._known[name]


def _countable(model: Model, prompt: Prompt) -> _Countable:
    """What is asked of a prompt. Its thinking is that of the call: a wish that does not fit the messages is refused."""
    body = anthropic_request(model, prompt)
    extra, headers = anthropic_fields(model, prompt, body)
    thinking = extra.get("thinking")
    kept: dict[str, Any] = {name: value for name, value in body.items() if name in _COUNTED}
    return _Countable(kept if thinking is None else {**kept, "thinking": thinking}, headers)


async def _ask(client: anthropic.AsyncAnthropic, asked: _Countable) -> int | None:
    try:
        async with asyncio.timeout(COUNT_SECONDS):
            answer = await client.messages.count_tokens(
                **asked.body, extra_headers=asked.headers, timeout=COUNT_SECONDS
            )
    except Exception as error:
        # A count is a help, never a reason to fail; and the error holds the request with its key.
        logger.warning("tokens were not counted: the provider's client raised %s", type(error).__name__)
        return None
    count: object = answer.input_tokens
    is_whole = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_COUNT
    return count if is_whole and isinstance(count, int) else None


def _measured(count: int | None) -> TokenCount:
    return UNKNOWN_COUNT if count is None else TokenCount(value=count, source=CountSource.MEASURED)
