"""Where lanes decide: on the worker's event loop, unless the sandbox or an executor of the caller's says otherwise."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from tests.conftest import Bench, Serve
from tests.integration.play import at_rest
from tests.integration.stage import BOUND
from turnlane import worker
from turnlane.agent import Agent, ScriptedModel
from turnlane.agent.models import Say
from turnlane.client.requests import lane_id

pytestmark = pytest.mark.server

ECHO = Agent(name="echo", model=ScriptedModel(script=lambda request: [Say("So it is.")]))
BROKEN = "this task fails"
CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


class Witness(Interceptor):
    """Sees which thread lanes decide on and with whose context, and once fails the task that brings a certain input."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.callers: set[str] = set()
        self.fails_at: str | None = None

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        witness = self

        class Seen(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> object:
                witness.see()
                return await super().execute_workflow(input)

            async def handle_update_handler(self, input: HandleUpdateInput) -> object:
                witness.see()
                if witness.fails_at is not None and witness.fails_at in repr(input.args):
                    witness.fails_at = None
                    raise RuntimeError(BROKEN)
                return await super().handle_update_handler(input)

        return Seen

    def see(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.callers.add(CALLER.get())


async def answers(bench: Bench, conversation: str, *inputs: str) -> list[str]:
    """What is answered to `inputs`, one after the other."""
    client = bench.client()
    return [(await (await client.submit(conversation, text, agent="echo")).result(BOUND)).text for text in inputs]


async def test_lanes_decide_on_the_loop_and_in_no_context_of_the_callers(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    witness = Witness()
    CALLER.set("an application")
    await serve(ECHO, sandboxed=False, interceptors=[witness])

    assert ["So it is."] * 2 == await answers(bench, conversation, "A", "B")
    assert {threading.current_thread().name} == witness.threads
    assert {"nobody"} == witness.callers


async def test_lanes_decide_where_the_caller_wants_them_to(bench: Bench, conversation: str) -> None:
    witness = Witness()
    with ThreadPoolExecutor(thread_name_prefix="lanes") as threads:
        async with bench.worker(ECHO, sandboxed=False, interceptors=[witness], workflow_task_executor=threads):
            said = await answers(bench, conversation, "A")

    assert ["So it is."] == said
    assert {"lanes"} == {name.partition("_")[0] for name in witness.threads}


async def test_a_decision_that_fails_is_made_again(
    bench: Bench, serve: Serve, conversation: str, caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness()
    await serve(ECHO, sandboxed=False, interceptors=[witness])
    first = await answers(bench, conversation, "A")
    witness.fails_at = "stumble here"

    assert ["So it is."] * 2 == first + await answers(bench, conversation, "stumble here")
    assert witness.fails_at is None
    assert 1 == sum(BROKEN in record.exc_text for record in caplog.records if record.exc_text)


async def test_a_worker_that_is_stopped_right_behind_an_answer_lets_the_lane_hear_of_it(
    bench: Bench, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_HEARS_ON_SECONDS", 2.0)
    serving = asyncio.create_task(
        worker.run_worker(bench.temporal, store=bench.store, agents=[ECHO], bus=bench.bus, task_queue=bench.task_queue)
    )
    said = await answers(bench, conversation, "A")
    serving.cancel()
    await asyncio.wait({serving})

    assert ["So it is."] == said
    assert serving.cancelled()
    assert await at_rest(bench.temporal.get_workflow_handle(lane_id(conversation)))
