"""Hooks around tool calls: an application may refuse a call or replace its arguments, and watch what is run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from turnlane.agent.answered import answered
from turnlane.agent.tool_context import ToolContext
from turnlane.records.base import Json, JsonObject

BeforeCall = Callable[[ToolContext, str, JsonObject], JsonObject | Awaitable[JsonObject | None] | None]
"""Given a call's tool name and arguments: arguments to use instead, or None. Raises `ToolError` to refuse it."""

CallStarted = Callable[[ToolContext, str], Awaitable[None] | None]
"""Told when the arguments fit, just before the tool is run."""

CallReturned = Callable[[ToolContext, str, Any], Awaitable[None] | None]
"""Told what the tool returned, before that is checked and shown to the model."""


@dataclass(frozen=True, kw_only=True)
class CallHooks:
    """What an agent wants to be asked and told about its tool calls. Whatever a hook raises, the call fails with it."""

    before: BeforeCall | None = None
    started: CallStarted | None = None
    returned: CallReturned | None = None

    async def arguments(self, ctx: ToolContext, tool_name: str, given: Json) -> Json:
        """Return the arguments to go by. Raises TypeError for a replacement that is no object."""
        if self.before is None or not isinstance(given, dict):
            return given
        found = await answered(self.before(ctx, tool_name, given))
        if found is not None and not isinstance(found, dict):
            raise TypeError("before_call returned something other than an object or None")
        return given if found is None else found

    async def tell_started(self, ctx: ToolContext, tool_name: str) -> None:
        """Tell that the tool is about to run."""
        if self.started is not None:
            await answered(self.started(ctx, tool_name))

    async def tell_returned(self, ctx: ToolContext, tool_name: str, result: Any) -> None:
        """Tell what the tool returned."""
        if self.returned is not None:
            await answered(self.returned(ctx, tool_name, result))


NO_HOOKS = CallHooks()
