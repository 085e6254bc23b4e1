"""Silence: how long a model may say nothing. Only waiting for it counts, not what is done with what it said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from turnlane.activities.providers.base import Heartbeat, StreamPart


class SilenceError(Exception):
    """The model said nothing for too long."""


class Silence:
    """The clock of one stream. `limit` is in seconds, None for no limit."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._waited = 0.0

    async def next_of(self, stream: AsyncIterator[StreamPart]) -> StreamPart | None:
        """Return the next part, None at the end. Raises SilenceError; a heartbeat is waited for, and says nothing."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        clock = asyncio.timeout(None if self._limit is None else max(0.0, self._limit - self._waited))
        try:
            async with clock:
                part = await anext(stream, None)
        except TimeoutError:
            if clock.expired():
                raise SilenceError from None
            raise
        self._waited = self._waited + loop.time() - began if isinstance(part, Heartbeat) else 0.0
        return part
