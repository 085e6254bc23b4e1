"""Sibling calls: calls of one round that end at nearly the same time are told to their lane together.

A lane goes on when the last call of a round has ended. Of each that ends before it would hear in a workflow task of
its own: three history events and a trip through the server for nothing. So a call whose result is in the store waits
a moment for its siblings in this process. The last one never waits; no round takes longer for that, but where
siblings are with other workers, and then by `STRANGERS_SECONDS` at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from turnlane.records.steps import CallRequest

SIBLINGS_SECONDS = 0.05
"""How long a call that has ended waits for those that are at work in this process."""

STRANGERS_SECONDS = 0.01
"""How long it waits for those that are not here, or not yet."""

REMEMBERED_ROUNDS = 1024


@dataclass
class Round:
    """The calls of one round, as far as they came to this process."""

    calls: int
    working: int = 0
    ended: set[str] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, call_id: str) -> None:
        """Note that a call has ended, in whichever attempt."""
        self.ended.add(call_id)
        if self.is_over:
            # Not at once: the last call would be a step ahead of the others, and be told alone.
            asyncio.get_running_loop().call_soon(self.over.set)

    @property
    def is_over(self) -> bool:
        return len(self.ended) >= self.calls


class SiblingCalls:
    """Knows the rounds of this process, the latest ones."""

    def __init__(self) -> None:
        self._rounds: OrderedDict[tuple[object, ...], Round] = OrderedDict()

    @contextmanager
    def joined(self, request: CallRequest) -> Iterator[Round]:
        """Count a call among those of its round that are at work here, until the context ends."""
        fence = request.fence
        key = (fence.conversation_id, fence.epoch, fence.run_id, fence.token, fence.step, fence.attempt)
        found = self._rounds.setdefault(key, Round(request.siblings or 1))
        if len(self._rounds) > REMEMBERED_ROUNDS:
            self._rounds.popitem(last=False)
        found.working += 1
        try:
            yield found
        finally:
            found.working -= 1
            found.end(request.call_id)
            if found.is_over:
                self._rounds.pop(key, None)


async def together(siblings: Round) -> None:
    """Wait a moment for the siblings of a call that has ended. What cancels it meanwhile comes too late."""
    try:
        await _until(siblings.over, STRANGERS_SECONDS)
        if siblings.working > 0:
            await _until(siblings.over, SIBLINGS_SECONDS - STRANGERS_SECONDS)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
