"""Durable tool bodies, as a tool sees them: what it may record, and how its body is left and entered again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

Body = Callable[[], Any | Awaitable[Any]]
"""What is run once: a function without parameters, synchronous or not."""

RECONCILE_SECONDS = 30.0


class EffectStatus(StrEnum):
    """Whether an effect happened. `uncertain`: nobody knows, and nobody ever will; it is not made again."""

    ACCEPTED = "accepted"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True)
class EffectResult:
    """What is known of an effect; `proof` is what `run` or `reconcile` returned, None if it is uncertain."""

    status: EffectStatus
    proof: Any = None


class LeavesBody(BaseException):
    """Unwinds a tool body that is to be run again later, or not to go on. Not an error: let it pass."""


class DurableBody(Protocol):
    """What stands behind the durable methods of a `ToolContext`. See there for what each one does."""

    async def step(self, name: str, body: Body) -> Any: ...

    async def sleep(self, seconds: float, name: str | None) -> None: ...

    async def wait_for(self, event: str, event_id: str) -> Any: ...

    async def effect(self, name: str, run: Body, reconcile: Body, timeout: float) -> EffectResult: ...
