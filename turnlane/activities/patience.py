"""Patience: how long an application's own functions may take, all that one activity asks of them together.

A function that never returns must not hold a lane up for ever. Only the time in the functions counts: a store
that is away meanwhile is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnlane.activities.asking import PatienceLostError, asked

__all__ = ["PATIENCE_SECONDS", "Patience", "PatienceLostError"]

PATIENCE_SECONDS = 20.0
"""Less than an activity of the lane may take, so that it can still say what happened."""

T = TypeVar("T")


class Patience:
    """Time for the calls of one activity."""

    def __init__(self) -> None:
        self._left = PATIENCE_SECONDS

    async def ask(self, function: Callable[[], T | Awaitable[T]]) -> T:
        """Return what a function answers. Raises as `asked` does, `PatienceLostError` once the time is up."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return await asked(function, max(self._left, 0.0))
        finally:
            self._left -= loop.time() - begun

    async def wait(self, call: Awaitable[T]) -> T:
        """The same for a call that was begun."""
        return await self.ask(lambda: call)
