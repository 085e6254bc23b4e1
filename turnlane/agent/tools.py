"""Tools: a typed function as something a model may call, and what comes of one call."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, overload

from pydantic import ValidationError

from turnlane.agent.answered import answered
from turnlane.agent.approvals import ToolPolicy, check_tool_policy
from turnlane.agent.call_hooks import NO_HOOKS, CallHooks
from turnlane.agent.tool_arguments import bind_arguments
from turnlane.agent.tool_context import Cancellation, ToolCancelled, ToolContext
from turnlane.agent.tool_output import BytesOutputError, json_output
from turnlane.agent.tool_reply import ToolError, ToolReply, failed, misfit, told
from turnlane.agent.tool_signature import ToolSignature, field_errors, signature_of
from turnlane.records.base import Json, JsonObject, canonical_json, clean_json
from turnlane.records.messages import ToolOutcome
from turnlane.records.prompt import ToolSpec

__all__ = [
    "RESERVED_TOOL_NAMES",
    "Cancellation",
    "Tool",
    "ToolCancelled",
    "ToolContext",
    "ToolError",
    "ToolReply",
    "tool",
]

logger = logging.getLogger(__name__)

RESERVED_TOOL_NAMES = frozenset(
    {
        "commit",
        "prepare_admissions",
        "open_lane",
        "load_queue",
        "find_run",
        "provider_step",
        "check_model",
        "settle_calls",
        "open_answers",
        "judge_boundary",
        "compact",
        "deliver",
    }
)
"""Activities of turnlane. A tool is an activity under its own name, so it cannot have one of these."""

DEFAULT_SECONDS = 300.0
READ_ONLY_ATTEMPTS = 3
DURABLE_ATTEMPTS = 10
THREAD_GRACE_SECONDS = 2.0

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


ErrorHook = Callable[[BaseException], None]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function a model may call. Made by `tool`; the function itself is `function`."""

    name: str
    description: str
    parameters: JsonObject
    function: Callable[..., Any]
    signature: ToolSignature = field(repr=False)
    read_only: bool = False
    retries: int | None = None
    timeout: float = DEFAULT_SECONDS
    approval: ToolPolicy | None = None
    durable: bool = False
    coerce: bool = True

    def __post_init__(self) -> None:
        if not _TOOL_NAME.fullmatch(self.name):
            raise ValueError(f"a tool's name is 1 to 64 letters, digits, '_' and '-', not {self.name!r}")
        if self.retries is not None and self.retries < 1:
            raise ValueError(f"retries of tool {self.name!r} counts all tries, so it is at least 1")
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout of tool {self.name!r} is a positive number of seconds")
        if self.approval is not None:
            check_tool_policy(self.approval)
        if self.durable and not inspect.iscoroutinefunction(self.function):
            raise TypeError(f"tool {self.name!r} is durable, so it has to be an async function")

    @property
    def max_attempts(self) -> int:
        """How often a call may be tried when its worker is lost: once, unless that is known to be safe."""
        if self.retries is not None:
            return self.retries
        if self.durable:
            return DURABLE_ATTEMPTS
        return READ_ONLY_ATTEMPTS if self.read_only else 1

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)

    def accepts(self, arguments: Json) -> bool:
        """Whether the arguments fit the tool's parameters."""
        try:
            self.signature.arguments.model_validate_json(canonical_json(arguments))
        except ValidationError:
            return False
        return isinstance(arguments, dict)

    async def invoke(
        self, ctx: ToolContext, arguments: Json, *, hooks: CallHooks = NO_HOOKS, on_error: ErrorHook | None = None
    ) -> ToolReply:
        """Run the tool once and return what the model is to see; what the tool raises becomes an error reply.

        First `hooks` may refuse the call or replace its arguments; then those are validated. A synchronous
        function runs in a thread. `on_error` gets the cause of an INTERNAL_ERROR or INVALID_OUTPUT, which is
        kept off the reply and out of the log. Cancelling the task that awaits this raises the flag of `ctx`
        and is not swallowed, nor is a durable body that is left. `timeout` is the caller's to enforce.
        """
        try:
            return await self._answer(ctx, await hooks.arguments(ctx, self.name, arguments), hooks, on_error)
        except ToolError as error:
            return told(error)
        except ToolCancelled:
            return failed("CANCELLED", "the run was asked to stop", outcome=ToolOutcome.INTERRUPTED)
        except asyncio.CancelledError as error:
            if _being_cancelled():
                ctx.cancelled.set()
                raise
            return self._internal(error, on_error)
        except (Exception, SystemExit) as error:
            return self._internal(error, on_error)

    async def _answer(
        self, ctx: ToolContext, arguments: Json, hooks: CallHooks, on_error: ErrorHook | None
    ) -> ToolReply:
        bound = self._bound(ctx, arguments)
        if isinstance(bound, ToolReply):
            return bound
        await hooks.tell_started(ctx, self.name)
        result = await _call(self.function, bound, ctx.cancelled)
        await hooks.tell_returned(ctx, self.name, result)
        return self._reply(result, on_error)

    def _bound(self, ctx: ToolContext, arguments: Json) -> dict[str, Any] | ToolReply:
        """The arguments of the function, or the reply that says where they do not fit."""
        if not isinstance(arguments, dict):
            return misfit("the arguments of a tool call are a JSON object", [])
        try:
            given = clean_json(arguments)
            canonical_json(given)
        except (TypeError, ValueError, RecursionError):
            return misfit("the arguments are not JSON", [])
        try:
            return bind_arguments(self.signature, ctx, given, coerce=self.coerce)
        except ValidationError as error:
            return misfit("the arguments do not fit the tool's parameters", field_errors(error))

    def _reply(self, result: Any, on_error: ErrorHook | None) -> ToolReply:
        """What the model is shown of a result. One that is not what the tool declares is the tool's mistake."""
        try:
            output = json_output(result)
        except BytesOutputError as error:
            self._report(error, on_error)
            hint = "Return text, or base64 text, or store the bytes and return a reference."
            return failed("INVALID_OUTPUT", "the tool returned bytes, which are not JSON", hint=hint)
        except Exception as error:
            self._report(error, on_error)
            return failed("INVALID_OUTPUT", "the tool returned something that is not JSON")
        if self.signature.returns is not None:
            self.signature.returns.validate_python(result)
        elif result is None:
            output = {"status": "ok"}
        return ToolReply(ToolOutcome.SUCCESS, output)

    def _internal(self, error: BaseException, on_error: ErrorHook | None) -> ToolReply:
        self._report(error, on_error)
        return failed("INTERNAL_ERROR", "Tool execution failed")

    def _report(self, error: BaseException, on_error: ErrorHook | None) -> None:
        logger.warning("tool %s failed with %s", self.name, type(error).__qualname__)
        if on_error is not None:
            on_error(error)


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _call(function: Callable[..., Any], bound: dict[str, Any], cancelled: Cancellation) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**bound)
    return await answered(await _in_thread(function, bound, cancelled))


async def _in_thread(function: Callable[..., Any], bound: dict[str, Any], cancelled: Cancellation) -> Any:
    """Run in a thread. When cancelled, raise the flag and give the thread a moment to see it and end."""
    work = asyncio.ensure_future(asyncio.to_thread(_guarded, function, bound))
    work.add_done_callback(_seen)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait({work}, timeout=THREAD_GRACE_SECONDS)
        raise


def _guarded(function: Callable[..., Any], bound: dict[str, Any]) -> Any:
    try:
        return function(**bound)
    except (StopIteration, SystemExit) as error:
        # A future refuses StopIteration, and whoever awaits it would wait for ever (Python 3.11);
        # SystemExit out of a task ends the loop: a library that parses a command line would end the worker.
        raise RuntimeError(f"a tool raised {type(error).__name__}") from error


def _seen(work: asyncio.Future[Any]) -> None:
    """Look at the exception of a thread nobody awaits any more, so that asyncio does not log its text."""
    if not work.cancelled():
        work.exception()


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    read_only: bool = False,
    retries: int | None = None,
    timeout: float = DEFAULT_SECONDS,
    description: str | None = None,
    approval: ToolPolicy | None = None,
    durable: bool = False,
    coerce: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    read_only: bool = False,
    retries: int | None = None,
    timeout: float = DEFAULT_SECONDS,
    description: str | None = None,
    approval: ToolPolicy | None = None,
    durable: bool = False,
    coerce: bool = True,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, synchronous or not. Use it as `@tool` or `@tool(...)`.

    Parameters become a JSON schema; one annotated `ToolContext` is filled in. The description is the
    docstring unless given. A tool is run once, since a call whose worker died may have had its effect;
    `read_only` ones are tried up to three times, and `retries` states the number of tries outright. A
    `durable` one may be run any number of times, since its effects are in `ctx.step` and `ctx.effect`: it is
    run again after a sleep, an awaited event or a lost worker. `timeout` seconds is how long one try may
    take. `approval` says whether its calls wait for somebody's word: a status such as "user-approval", or a
    function of the call. With `coerce`, JSON in a string is taken for the value that a parameter asks for.
    Raises TypeError for a signature that cannot be called by name, ValueError for a name or number that
    cannot work.
    """

    def decorate(decorated: Callable[..., Any]) -> Tool:
        signature = signature_of(decorated)
        return Tool(
            name=name or decorated.__name__,
            description=(inspect.getdoc(decorated) or "") if description is None else description,
            parameters=signature.schema,
            function=decorated,
            signature=signature,
            read_only=read_only,
            retries=retries,
            timeout=timeout,
            approval=approval,
            durable=durable,
            coerce=coerce,
        )

    return decorate if function is None else decorate(function)
