"""Patience: how long an application's own functions may take, all that one activity asks of them together.

A function that never returns must not hold a lane up for ever. Only the time in the functions counts: a store
that is away meanwhile is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

PATIENCE_SECONDS = 20.0
"""Less than an activity of the lane may take, so that it can still say what happened."""

T = TypeVar("T")


class PatienceLostError(Exception):
    """The application's functions took too long."""


class Patience:
    """Time for the calls of one activity."""

    def __init__(self) -> None:
        self._left = PATIENCE_SECONDS

    async def wait(self, call: Awaitable[T]) -> T:
        """Return what the call returns. Raises what it raises, and `PatienceLostError` once the time is up."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        limit = asyncio.timeout(max(self._left, 0.0))
        try:
            async with limit:
                return await call
        except TimeoutError:
            if limit.expired():
                raise PatienceLostError from None
            raise
        finally:
            self._left -= loop.time() - begun
