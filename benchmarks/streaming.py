"""Streaming: how long a delta is on its way from the provider to a watcher in the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

from benchmarks.agents import PLAIN
from benchmarks.pace import spread
from benchmarks.stage import PATIENCE_SECONDS, TEXT, Stage, fresh_id
from turnlane.activities.providers.base import Finish, ProviderRequest, StreamPart, TextDelta
from turnlane.activities.providers.registry import Providers
from turnlane.records.events import AssistantDeltaEvent, TerminalEvent
from turnlane.records.steps import FinishReason

TASK_QUEUE = "stream"
GAP_SECONDS = 0.005


class NumberedProvider:
    """Streams numbers, and notes when it sent each."""

    def __init__(self, pieces: int) -> None:
        self.sent: dict[str, float] = {}
        self._pieces = pieces

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        """Stream the numbers with a little time between them, as a model would."""
        for number in range(self._pieces):
            await asyncio.sleep(GAP_SECONDS)
            self.sent[str(number)] = perf_counter()
            yield TextDelta(str(number))
        yield Finish(FinishReason.STOP)

    async def aclose(self) -> None:
        """Nothing is open."""


async def delta_lag(stage: Stage, pieces: int) -> dict[str, Any]:
    """Milliseconds from the provider's yield to the watcher's loop."""
    provider = NumberedProvider(pieces)
    client, conversation = stage.client(TASK_QUEUE), fresh_id()
    lags: list[float] = []
    async with (
        stage.worker(TASK_QUEUE, PLAIN, providers=Providers({"scripted": lambda: provider})),
        stage.bus.subscribe(conversation) as news,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        await client.submit(conversation, TEXT, agent=PLAIN.name)
        async for event in news:
            if isinstance(event, AssistantDeltaEvent):
                lags.append((perf_counter() - provider.sent[event.text_delta]) * 1000)
            elif isinstance(event, TerminalEvent):
                break
    return {"deltas": len(lags), "lag_ms": spread(lags)}
