"""Waiting in a lane for something to be so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from temporalio import workflow


async def until(
    condition: Callable[[], bool], timeout: float | None = None, timeout_summary: str | None = None
) -> None:
    """Wait until a condition holds. Raises TimeoutError after `timeout` seconds without it.

    A lane that is cancelled goes on working until it is at rest: only its main coroutine is told. The SDK tells whoever
    waits for a condition at that moment, once it holds, if it carries out activations in one batch; here such a wait
    is over like any other.
    """
    try:
        await workflow.wait_condition(condition, timeout=timeout, timeout_summary=timeout_summary)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        if not condition():
            raise TimeoutError from None
