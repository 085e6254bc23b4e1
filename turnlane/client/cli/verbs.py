"""How a verb becomes a command: the options every verb has, a connection, and an error as one line and a code."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from temporalio.service import RPCError
from typer import Option

from turnlane.client.cli.output import Output, error_record
from turnlane.client.client import Turnlane
from turnlane.client.settings import Settings, resolve
from turnlane.records.errors import CallerError, InvalidInputError, TemporalUnavailableError, TurnlaneError
from turnlane.records.misfits import misfits
from turnlane.store.bus import EventBus
from turnlane.store.protocol import Store

CALLER_EXIT, RETRYABLE_EXIT, FINAL_EXIT, INTERRUPTED_EXIT = 2, 75, 1, 130


@dataclass(frozen=True)
class Shared:
    """The options that every verb has."""

    as_json: bool = False
    address: str | None = None
    namespace: str | None = None
    task_queue: str | None = None
    store: str | None = None
    bus: str | None = None


def _shared(name: str, kind: object, flag: str, text: str, default: object = None) -> inspect.Parameter:
    panel = "Output" if name == "as_json" else "Where"
    annotation = Annotated[kind, Option(flag, help=text, rich_help_panel=panel)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_SHARED = (
    _shared("as_json", bool, "--json", "Print JSON: an object, or one a line. Errors too.", default=False),
    _shared("address", str | None, "--address", "Temporal's host:port. Else TEMPORAL_ADDRESS, or the running stack."),
    _shared("namespace", str | None, "--namespace", "Temporal's namespace. Else TEMPORAL_NAMESPACE."),
    _shared("task_queue", str | None, "--task-queue", "Where the workers are. Else TURNLANE_TASK_QUEUE."),
    _shared("store", str | None, "--store", "The store: a database URL or a path. Else TURNLANE_STORE."),
    _shared("bus", str | None, "--bus", "The socket of the event bus. Else TURNLANE_BUS."),
)


class Session:
    """One run of a verb: its output, and how it reaches turnlane."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.out = Output(as_json=shared.as_json)

    @property
    def settings(self) -> Settings:
        """The settings: flags, then the environment, then a running stack, then defaults."""
        shared = self.shared
        return resolve(
            address=shared.address,
            namespace=shared.namespace,
            task_queue=shared.task_queue,
            store=shared.store,
            bus=shared.bus,
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Turnlane]:
        """A connected client with whatever store and bus the settings name."""
        settings = self.settings
        async with AsyncExitStack() as opened:
            store = await _opened_store(settings, opened)
            bus = _opened_bus(settings, opened)
            yield await _connected(settings, store, bus, opened)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Turnlane]:
        """A client for what the store alone answers: Temporal is not asked, and need not be there."""
        settings = self.settings
        async with AsyncExitStack() as opened:
            store = await _opened_store(settings, opened)
            yield await _connected(settings, store, None, opened, lazy=True)

    @asynccontextmanager
    async def lane_client(self) -> AsyncIterator[Turnlane]:
        """A connected client that has only Temporal: all that control takes, also while the store is down."""
        async with AsyncExitStack() as opened:
            yield await _connected(self.settings, None, None, opened)


async def _opened_store(settings: Settings, opened: AsyncExitStack) -> Store | None:
    if settings.store is None:
        return None
    # Imported here: only a verb that has a store needs it, and it takes long to load.
    from turnlane.store.sql import open_store

    store = await open_store(settings.store)
    opened.push_async_callback(store.close)
    return store


def _opened_bus(settings: Settings, opened: AsyncExitStack) -> EventBus | None:
    if settings.bus is None:
        return None
    from turnlane.store.bus_socket import SocketBus

    bus = SocketBus(settings.bus)
    opened.push_async_callback(bus.close)
    return bus


async def _connected(
    settings: Settings, store: Store | None, bus: EventBus | None, opened: AsyncExitStack, *, lazy: bool = False
) -> Turnlane:
    """Connect, or with `lazy` be ready to, once Temporal is needed."""
    try:
        client = await Turnlane.connect(
            settings.target,
            namespace=settings.namespace,
            store=store,
            bus=bus,
            task_queue=settings.task_queue,
            lazy=lazy,
        )
    except TemporalUnavailableError as error:
        raise unreachable(settings.address) from error
    opened.push_async_callback(client.close)
    return client


def unreachable(address: str) -> TemporalUnavailableError:
    """The error for a Temporal server that does not answer."""
    return TemporalUnavailableError(
        f"no Temporal server answers at {address}: start one with `turnlane dev`, or name another with --address",
        address=address,
    )


Verb = Callable[..., Awaitable[None]]


def verb(app: typer.Typer, name: str | None = None) -> Callable[[Verb], Verb]:
    """Register an async function as a command. It gets a `Session` first; the shared options are added to its own."""

    def register(function: Verb) -> Verb:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def command(**values: Any) -> None:
            shared = Shared(**{parameter.name: values.pop(parameter.name) for parameter in _SHARED})
            run_verb(Session(shared), lambda session: function(session, **values))

        parameters = [*own, *_SHARED]
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        )
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__doc__ = function.__doc__
        app.command(name or function.__name__)(command)
        return function

    return register


def run_verb(session: Session, body: Callable[[Session], Awaitable[None]]) -> None:
    """Run a verb to its end, or leave the process with one line and the error's exit code."""

    async def work() -> None:
        await body(session)

    try:
        asyncio.run(work())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(INTERRUPTED_EXIT) from None
    except (BrokenPipeError, typer.Exit):
        raise
    except Exception as error:
        _leave(session.out, as_turnlane_error(error), error)


def as_turnlane_error(error: Exception) -> TurnlaneError:
    """What an error is to the caller. Of one that nobody foresaw only the kind is told, since it may quote content."""
    if isinstance(error, TurnlaneError):
        return error
    if isinstance(error, ValidationError):
        fields = misfits(error)
        return InvalidInputError(f"does not fit: {', '.join(fields)}", fields=fields)
    if isinstance(error, RPCError):
        return TemporalUnavailableError(f"Temporal answered {error.status.name}", status=error.status.name)
    return TurnlaneError(f"unexpected {type(error).__name__}; TURNLANE_TRACEBACK=1 shows where", kind="internal")


def exit_code(error: TurnlaneError) -> int:
    """2: the call is wrong. 75: make it again. 1: neither helps."""
    if isinstance(error, CallerError):
        return CALLER_EXIT
    return RETRYABLE_EXIT if error.retryable else FINAL_EXIT


def _leave(out: Output, error: TurnlaneError, cause: Exception) -> NoReturn:
    if os.environ.get("TURNLANE_TRACEBACK"):
        traceback.print_exception(cause, file=sys.stderr)
    out.record(error_record(error))
    if not out.as_json:
        print(f"turnlane: {error.message} ({error.code})", file=sys.stderr)
    raise typer.Exit(exit_code(error)) from None
