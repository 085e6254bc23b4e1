"""The silence of a model: only waiting for it counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from turnlane.activities.providers.base import Heartbeat, StreamPart, TextDelta
from turnlane.activities.silence import Silence, SilenceError


async def stream(*parts: StreamPart | float) -> AsyncIterator[StreamPart]:
    """Yield parts; a number is a wait in seconds."""
    for part in parts:
        if isinstance(part, float):
            await asyncio.sleep(part)
        else:
            yield part


async def heard(silence: Silence, source: AsyncIterator[StreamPart], busy: float = 0.0) -> list[StreamPart]:
    parts: list[StreamPart] = []
    while (part := await silence.next_of(source)) is not None:
        parts.append(part)
        await asyncio.sleep(busy)
    return parts


async def test_what_is_done_with_a_part_is_no_silence_of_the_model() -> None:
    parts = await heard(Silence(0.1), stream(TextDelta("a"), 0.001, TextDelta("b"), 0.001), busy=0.15)

    assert [TextDelta("a"), TextDelta("b")] == parts


async def test_heartbeats_say_nothing_so_their_waits_add_up() -> None:
    beats = [part for _ in range(40) for part in (0.02, Heartbeat())]

    with pytest.raises(SilenceError):
        await heard(Silence(0.2), stream(*beats))


async def test_every_word_starts_the_clock_anew() -> None:
    words = [part for _ in range(8) for part in (0.05, TextDelta("a"))]

    assert 8 == len(await heard(Silence(0.2), stream(*words)))


async def test_a_stream_that_itself_timed_out_is_not_taken_for_a_silent_model() -> None:
    async def failing() -> AsyncIterator[StreamPart]:
        yield TextDelta("a")
        raise TimeoutError("not the clock's")

    with pytest.raises(TimeoutError, match="not the clock's"):
        await heard(Silence(None), failing())
