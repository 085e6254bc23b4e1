"""`dev` and `worker`: the whole stack on this machine, or a worker for a deployment elsewhere."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from temporalio.client import Client
from typer import Option

from turnlane.agent import Agent, ScriptedModel
from turnlane.client.cli.verbs import Session, unreachable, verb
from turnlane.client.client import connect_temporal
from turnlane.client.dev_file import DevFile
from turnlane.client.settings import Settings
from turnlane.records.errors import InvalidInputError, TemporalUnavailableError
from turnlane.store.bus import EventBus, InProcessBus

if TYPE_CHECKING:
    from turnlane.activities.operator_sink import OperatorSink

NO_MODEL = "No model key was found: the agent plays an offline script, it is not a model."
WHAT_NEXT = "In another terminal: turnlane chat, or in a checkout ./run chat. Ctrl-C stops everything."

Agents = Annotated[
    list[str] | None, Option("--agent", metavar="MODULE:NAME", help="An agent, or a list of them; may be repeated.")
]
OperatorEvents = Annotated[
    str | None, Option("--operator-events", metavar="MODULE:NAME", help="A function, or a sink, to tell of runs.")
]


def register(app: typer.Typer) -> None:
    """Add the verbs of this module."""
    verb(app)(dev)
    verb(app)(worker)


async def dev(
    session: Session,
    agent: Agents = None,
    config: Annotated[Path | None, Option(help="Another file than temporal-dev.yaml.")] = None,
    port: Annotated[int | None, Option(min=0, max=65535, help="Temporal's port; 0 for any free one.")] = None,
    ui_port: Annotated[int | None, Option(min=0, max=65535, help="The UI's port; 0 for any free one.")] = None,
    workers: Annotated[int, Option(min=1, help="How many workers.")] = 1,
    operator_events: OperatorEvents = None,
) -> None:
    """Run everything here: Temporal with its UI, store, event bus and workers, until Ctrl-C."""
    # Imported here: only this verb needs the whole stack, and it takes long to load.
    from turnlane.client.dev_config import load_config
    from turnlane.client.stack import Stack

    agents, sink = _agents(agent), load_sink(operator_events)
    settings = load_config(config)
    given = {"port": port, "ui_port": ui_port}
    settings = settings.model_copy(update={name: value for name, value in given.items() if value is not None})
    async with until_signalled() as signalled, sink or nullcontext():
        async with Stack(settings, agents=agents, workers=workers, operator_events=sink) as stack:
            _tell_stack(session, stack.dev_file, agents)
            if not agent and isinstance(agents[0].own_model, ScriptedModel):
                session.out.say(NO_MODEL, "yellow")
            session.out.say(WHAT_NEXT, "dim")
            await _first(signalled.wait(), stack.serve())
            session.out.say("stopping: answers in flight go on at the next start", "dim")


async def worker(session: Session, agent: Agents = None, operator_events: OperatorEvents = None) -> None:
    """Run a worker against the Temporal, store and event bus that the settings name, until Ctrl-C."""
    # Imported here: only this verb needs a store and a worker whatever is set, and they take long to load.
    from turnlane.store.bus_socket import SocketBus
    from turnlane.store.sql import open_store
    from turnlane.worker import run_worker

    agents, sink = _agents(agent), load_sink(operator_events)
    settings = session.settings
    if settings.store is None:
        raise InvalidInputError("a worker needs a store: --store, TURNLANE_STORE, or a running stack", fields=["store"])
    store = await open_store(settings.store)
    bus: EventBus = SocketBus(settings.bus) if settings.bus is not None else InProcessBus()
    try:
        client = await _connect(settings)
        async with until_signalled() as signalled, sink or nullcontext():
            session.out.record({"address": settings.address, "task_queue": settings.task_queue})
            session.out.say(f"serving {_names(agents)} on task queue {settings.task_queue} at {settings.address}")
            queue = settings.task_queue
            serving = run_worker(client, store=store, agents=agents, bus=bus, task_queue=queue, operator_events=sink)
            await _first(signalled.wait(), serving)
    finally:
        await bus.close()
        await store.close()


async def _connect(settings: Settings) -> Client:
    try:
        return await connect_temporal(settings.target, namespace=settings.namespace)
    except TemporalUnavailableError as error:
        raise unreachable(settings.address) from error


def _agents(names: list[str] | None) -> tuple[Agent, ...]:
    """The agents that were named; with no name, the one that comes with the program."""
    if names:
        return load_agents(names)
    from turnlane.client.demo_agent import demo_agent

    return (demo_agent(),)


def load_agents(names: Sequence[str]) -> tuple[Agent, ...]:
    """Import agents by `module:name`, from the current folder too. A name may stand for a list of agents.

    Raises `InvalidInputError` naming what cannot be loaded; of an error inside the module only the kind is told.
    """
    return tuple(agent for name in names for agent in _load(name))


def load_sink(name: str | None) -> OperatorSink | None:
    """The operator sink that `module:name` stands for, or one around the function.

    Raises `InvalidInputError` naming what cannot be loaded.
    """
    from turnlane.activities.operator_sink import OperatorSink

    if name is None:
        return None
    found = _found(name, "a handler of operator events")
    if not isinstance(found, OperatorSink) and not callable(found):
        raise InvalidInputError(f"{name!r} is neither a function nor an OperatorSink")
    return found if isinstance(found, OperatorSink) else OperatorSink(found)


def _found(name: str, kind: str) -> Any:
    """What `module:name` stands for."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidInputError(f"{kind} is named as module:name, not {name!r}")
    module = _import(module_name)
    if not hasattr(module, attribute):
        raise InvalidInputError(f"module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


def _load(name: str) -> Iterable[Agent]:
    found = _found(name, "an agent")
    agents = [found] if isinstance(found, Agent) else list(found) if isinstance(found, list | tuple) else []
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        raise InvalidInputError(f"{name!r} is neither an agent nor a list of agents")
    return agents


def _import(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise InvalidInputError(f"there is no module {name!r} here") from error
        kind = type(error).__name__
        raise InvalidInputError(f"module {name!r} fails with {kind}; TURNLANE_TRACEBACK=1 shows where") from error


@asynccontextmanager
async def until_signalled() -> AsyncIterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set, instead of what they else would do. A second one ends the program."""
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()

    def note() -> None:
        signalled.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note)
    try:
        yield signalled
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _first(signalled: Any, serving: Any) -> None:
    """Return when the signal came, or raise what the serving ended with; what still runs is cancelled."""
    tasks = {asyncio.ensure_future(signalled), asyncio.ensure_future(serving)}
    done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for task in done:
        task.result()


def _names(agents: Sequence[Agent]) -> str:
    return ", ".join(agent.name for agent in agents)


def _tell_stack(session: Session, dev_file: DevFile, agents: Sequence[Agent]) -> None:
    session.out.record(dev_file)
    rows = [
        ("Temporal", f"{dev_file.address} (namespace {dev_file.namespace})"),
        ("Temporal UI", dev_file.ui_url),
        ("store", dev_file.store),
        ("event bus", dev_file.bus),
        (
            "agents",
            ", ".join(
                f"{agent.name} ({agent.own_model.reported_provider}: {agent.own_model.name})" for agent in agents
            ),
        ),
    ]
    session.out.table(("turnlane is running", ""), rows)
