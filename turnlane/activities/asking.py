"""Asking: one call of a function of the application's own, which holds up nothing for ever and breaks nothing.

What is asked runs in a task of its own. So a cancellation is ours alone to answer: a function that swallows it, or
never ends, is left behind, and whoever asked goes on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast, overload

ASK_SECONDS = 120.0
"""How long a function may take that is asked while a step is made."""

GRACE_SECONDS = 1.0
"""How long a function that is cancelled may take to clean up, before it is left behind."""

T = TypeVar("T")


class PatienceLostError(Exception):
    """The application's functions took too long."""


class BrokeOutError(Exception):
    """A function raised what is no `Exception`: SystemExit, or a cancellation that nobody asked for.

    Let through, the one would end the worker, and the other would look like a request to stop.
    """


@overload
async def asked(ask: Callable[[], Awaitable[T]], seconds: float | None = ASK_SECONDS) -> T: ...


@overload
async def asked(ask: Callable[[], T | Awaitable[T]], seconds: float | None = ASK_SECONDS) -> T: ...


async def asked(ask: Callable[[], T | Awaitable[T]], seconds: float | None = ASK_SECONDS) -> T:
    """Return what a function answers, itself or by what it returns to be awaited.

    Raises what it raises, if that is an `Exception`, and `BrokeOutError` for anything else; `PatienceLostError` when
    it is not done within `seconds` (None: however long it takes). Cancelling this cancels it, and ends after
    `GRACE_SECONDS` whatever it does. A synchronous function runs in the event loop and cannot be left behind.
    """
    answer = _called(ask)
    if not inspect.isawaitable(answer):
        return cast(T, answer)
    task: asyncio.Task[T] = asyncio.ensure_future(_answer_of(answer))
    task.add_done_callback(_seen)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise PatienceLostError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_SECONDS)


def _called(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise BrokeOutError(type(error).__name__) from None


async def _answer_of(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise BrokeOutError(type(error).__name__) from None


def _seen(task: asyncio.Task[Any]) -> None:
    """Look at the exception of a task that was left behind, so that asyncio does not log its text."""
    if not task.cancelled():
        task.exception()
