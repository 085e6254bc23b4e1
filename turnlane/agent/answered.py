"""What a function of an application answers: functions may be synchronous or not."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def answered(given: T | Awaitable[T]) -> T:
    """Return what a function returned, or what comes of it if that is to be awaited."""
    return await given if inspect.isawaitable(given) else given
