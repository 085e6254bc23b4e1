"""The worker: the one place that knows every room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar, cast

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner, _workflow_instance
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from turnlane.activities.answers import Answers
from turnlane.activities.auditing import Auditor
from turnlane.activities.compaction import Compactions
from turnlane.activities.deliveries import DeliveryWork
from turnlane.activities.judging import Judging
from turnlane.activities.lane_work import LaneWork
from turnlane.activities.operator_sink import OperatorSink
from turnlane.activities.provider_step import ProviderSteps
from turnlane.activities.providers.registry import Providers
from turnlane.activities.signal_pages import SignalPages
from turnlane.activities.tool_calls import ToolCalls
from turnlane.agent import Agent, ApprovalKeys
from turnlane.records.lane import LaneSettings
from turnlane.store.bus import EventBus
from turnlane.store.protocol import Store
from turnlane.workflows.lane import ConversationLane

logger = logging.getLogger(__name__)

_Given = TypeVar("_Given")

TASK_QUEUE = "turnlane"
SEARCH_ATTRIBUTES = ("TurnlaneAgent", "TurnlaneState")
_HEARS_ON_SECONDS = 0.2


def build_worker(
    client: Client,
    *,
    store: Store,
    agents: Sequence[Agent],
    bus: EventBus,
    task_queue: str = TASK_QUEUE,
    settings: LaneSettings | None = None,
    providers: Providers | None = None,
    approval_keys: ApprovalKeys | None = None,
    invocations: Auditor | None = None,
    operator_events: OperatorSink | None = None,
    graceful_seconds: float = 10.0,
    sandboxed: bool = False,
    **options: Any,
) -> Worker:
    """Make a worker that runs lanes and their activities for `agents`. `options` go to Temporal's Worker.

    The client must use the pydantic data converter (`turnlane.client.connect` sees to that). Heartbeats
    are sent at most a second late, so that an interrupt is heard soon on any server; a lane whose worker
    died is offered to the others after two seconds. Give a `build_id` (or a `deployment_config`) to tell
    releases of an application apart in Temporal; without one it is turnlane's version. With `sandboxed`, lanes
    run in the SDK's sandbox, which finds out what a workflow must not do, and costs a fifth of a turn's work; the
    lane is turnlane's own code, and is replayed in the sandbox by turnlane's tests. Without it they decide on the
    worker's event loop, which spares each decision a change of threads and goes without the SDK's deadlock detection;
    a `workflow_task_executor` of your own brings both back. `approval_keys` sign what
    people are asked to approve; without them those of `TURNLANE_APPROVAL_KEYS` do, if there are any. With
    `invocations` (a `ModelInvocations`), runs leave receipts. `operator_events` are told of runs and their steps; the
    sink stays open when the worker ends. Raises ValueError for two agents of one name, and for
    keys that cannot work, TypeError for invocations of another store and what is no sink.
    """
    by_name = _by_name(agents)
    keys = approval_keys or ApprovalKeys.from_environment()
    if invocations is not None:
        if invocations.store is not store:
            raise TypeError("the invocations are those of another store")
        settings = (settings or LaneSettings()).model_copy(update={"invocations": True})
    if operator_events is not None and not isinstance(operator_events, OperatorSink):
        raise TypeError("operator_events is an OperatorSink: make one of your function")
    if not sandboxed:
        options.setdefault("workflow_task_executor", _OnTheLoop(max_workers=1))
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=[ConversationLane],
        activities=_activities(
            store, by_name, bus, settings, providers or Providers(), keys, invocations, operator_events
        ),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        default_heartbeat_throttle_interval=timedelta(seconds=1),
        graceful_shutdown_timeout=timedelta(seconds=graceful_seconds),
        workflow_runner=_runner(sandboxed),
        **_release(options),
        **options,
    )
    _hear_all_first(worker)
    return worker


class _OnTheLoop(ThreadPoolExecutor):
    """Runs what it is given on the event loop that gives it, as soon as the loop comes to it. It starts no thread.

    A lane's decision is tenths of a millisecond of pure code, and a change to a thread and back costs as much. The
    future is the loop's own, which `run_in_executor` takes as it is.
    """

    def submit(self, fn: Callable[..., _Given], /, *args: Any, **kwargs: Any) -> Future[_Given]:
        loop = asyncio.get_running_loop()
        given: asyncio.Future[_Given] = loop.create_future()

        def run() -> None:
            if given.cancelled():
                return
            try:
                tell = partial(given.set_result, fn(*args, **kwargs))
            except BaseException as error:  # whoever waits is told, as a thread would tell them
                tell = partial(given.set_exception, error)
            asyncio._set_running_loop(loop)  # a workflow is a loop of its own, and leaves none behind it
            tell()

        loop.call_soon(run, context=Context())  # a thread would not see the caller's context either
        return cast("Future[_Given]", given)


def _hear_all_first(worker: Worker) -> None:
    """Let lanes hear all that a task brings before they act on any of it: an input and the end of the run before it
    make one commit then, not two.

    The SDK can do so, writes down in the history for which tasks it did, and has it off until older releases that
    cannot are gone. One that has no such switch goes by its default.
    """
    switch = getattr(worker, "_set_default_workflow_logic_flag", None)
    flags = getattr(_workflow_instance, "_WorkflowLogicFlag", None)
    flag = getattr(flags, "PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH", None)
    if switch is not None and flag is not None:
        switch(flag, enabled=True)


def _by_name(agents: Sequence[Agent]) -> dict[str, Agent]:
    by_name = {agent.name: agent for agent in agents}
    if len(by_name) != len(agents):
        raise ValueError("two agents have one name")
    return by_name


def _activities(
    store: Store,
    agents: Mapping[str, Agent],
    bus: EventBus,
    settings: LaneSettings | None,
    providers: Providers,
    keys: ApprovalKeys | None,
    invocations: Auditor | None,
    sink: OperatorSink | None,
) -> list[Callable[..., Any]]:
    """Everything that lanes have done by a worker."""
    work = LaneWork(store, agents, bus, settings, sink)
    pages = SignalPages(store)
    return [
        work.open_lane,
        work.load_queue,
        work.commit,
        work.find_run,
        work.settle_calls,
        work.prepare_admissions,
        work.check_model,
        ProviderSteps(store, agents, bus, providers, keys, invocations, sink).provider_step,
        Compactions(store, agents, bus, providers).compact,
        ToolCalls(store, agents, bus).tool_call,
        Answers(store, agents, bus, keys).open_answers,
        Judging(store, agents).judge_boundary,
        DeliveryWork(store).deliver,
        pages.keep,
        pages.load,
    ]


def _runner(sandboxed: bool) -> WorkflowRunner:
    return SandboxedWorkflowRunner() if sandboxed else UnsandboxedWorkflowRunner()


def _release(given: Mapping[str, Any]) -> dict[str, Any]:
    """A build id, unless the caller tells its releases apart. The SDK's own one hashes the bytecode of every
    loaded module, which is half of a worker's start."""
    if "build_id" in given or "deployment_config" in given:
        return {}
    return {"build_id": f"turnlane-{version('turnlane')}"}


async def _serve(worker: Worker) -> None:
    """Run a worker until cancelled; then let it hear on for a moment before it shuts down.

    A worker is often stopped right behind an answer, just when the server hands it the task that tells the lane so. One
    that polls no more would never answer, and the lane's next turn would wait until the server has missed it.
    """
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running}, timeout=_HEARS_ON_SECONDS)
        raise
    finally:
        running.cancel()
        await asyncio.wait({running})


async def has_search_attributes(client: Client, *, register: bool = True) -> bool:
    """Whether the namespace knows turnlane's search attributes; with `register`, add them if it may.

    A lane sets them only where this is true: a server refuses attributes that it does not know.
    """
    try:
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
        missing = [name for name in SEARCH_ATTRIBUTES if name not in known.custom_attributes]
        if missing and register:
            keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=client.namespace, search_attributes=dict.fromkeys(missing, keyword)
                )
            )
        return register or not missing
    except RPCError as error:
        logger.info("lanes go without search attributes: the server answered %s", error.status.name)
        return False


async def run_worker(
    client: Client,
    *,
    store: Store,
    agents: Sequence[Agent],
    bus: EventBus,
    task_queue: str = TASK_QUEUE,
    settings: LaneSettings | None = None,
    operator_events: OperatorSink | None = None,
    graceful_seconds: float = 10.0,
    **options: Any,
) -> None:
    """Serve until cancelled; then finish what is under way within the grace time, flush `operator_events`, return."""
    shown = await has_search_attributes(client)
    settings = (settings or LaneSettings()).model_copy(update={"search_attributes": shown})
    providers = Providers()
    worker = build_worker(
        client,
        store=store,
        agents=agents,
        bus=bus,
        task_queue=task_queue,
        settings=settings,
        providers=providers,
        operator_events=operator_events,
        graceful_seconds=graceful_seconds,
        **options,
    )
    try:
        await _serve(worker)
    finally:
        await providers.aclose()
        if operator_events is not None and not await operator_events.flush():
            logger.warning("operator events wait still: their handler is not done")
