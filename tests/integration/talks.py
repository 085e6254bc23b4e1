"""Talks: conversations with an agent whose provider is a fault server, spoken to by the real SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from temporalio.worker import Worker

from tests.conftest import Bench, Serve
from tests.integration.stage import BOUND
from turnlane.activities.operator_sink import OperatorSink
from turnlane.activities.providers.registry import Providers
from turnlane.agent import Agent, tool
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel
from turnlane.client import Result, Ticket, Turnlane
from turnlane.records.lane import RetryFacts
from turnlane.records.messages import InputPart
from turnlane.testing.fault_plan import Step
from turnlane.testing.fault_server import FaultServer, Plan

KEY_NAME = "FAULTS_TEST_KEY"
WIRES: dict[str, type[Model]] = {"responses": OpenAIModel, "chat": OpenAIChatModel, "anthropic": AnthropicModel}


@tool(read_only=True)
def look(at: str) -> str:
    """Look at something."""
    return f"{at} was seen"


@dataclass
class Talk:
    """A conversation with an agent behind a faulty provider."""

    client: Turnlane
    conversation: str
    server: FaultServer

    async def submit(self, text: str | Sequence[InputPart], *, policy: str | None = None) -> Ticket:
        return await self.client.submit(self.conversation, text, policy=policy)

    async def turn(self, text: str | Sequence[InputPart] = "hi", *, policy: str | None = None) -> Result:
        return await (await self.submit(text, policy=policy)).result(BOUND)

    @property
    def bodies(self) -> list[Any]:
        """The requests, none of which broke a rule."""
        assert [] == [request.refusal for request in self.server.refusals]
        return [request.body for request in self.server.requests]


class Talks:
    """Opens conversations, and closes what belongs to them when the test ends. `sink` is told of their runs."""

    def __init__(self, bench: Bench, serve: Serve, conversation: str, stack: AsyncExitStack) -> None:
        self._bench = bench
        self._serve = serve
        self._conversation = conversation
        self._stack = stack
        self._agent: Agent | None = None
        self._worker: Worker | None = None
        self.sink: OperatorSink | None = None

    async def open(
        self,
        kind: type[Model],
        *plan: Step,
        tools: Sequence[Any] = (look,),
        agent: Mapping[str, Any] | None = None,
        fallback: type[Model] | None = None,
        **model: Any,
    ) -> Talk:
        """A conversation whose model answers by this plan; `agent` are further options of its agent.

        A `fallback` is a model of this kind, called `second-model`, on the same server.
        """
        return await self.planned(kind, plan, tools=tools, agent=agent, fallback=fallback, **model)

    def _providers(self) -> Providers:
        providers = Providers()
        self._stack.push_async_callback(providers.aclose)
        return providers

    @asynccontextmanager
    async def another_worker(self) -> AsyncIterator[None]:
        """Have the worker of the last conversation stopped, and another one in its place while the context is open."""
        assert self._worker is not None and self._agent is not None
        await self._worker.shutdown()
        options: dict[str, Any] = {"providers": self._providers(), "operator_events": self.sink}
        async with self._bench.worker(self._agent, **options):
            yield

    def worker_on(self, bench: Bench) -> Worker:
        """Another worker for the agent of the last conversation, on another store; use it as a context manager."""
        assert self._agent is not None
        return bench.worker(self._agent, providers=self._providers())

    async def planned(
        self,
        kind: type[Model],
        plan: Plan,
        *,
        tools: Sequence[Any] = (look,),
        agent: Mapping[str, Any] | None = None,
        fallback: type[Model] | None = None,
        **model: Any,
    ) -> Talk:
        """The same for a plan that may be a function of the request."""
        server = await self._stack.enter_async_context(FaultServer(plan))
        options: dict[str, Any] = {"retry": RetryFacts(initial_seconds=0.01), "checkpoint_every": 4, **(agent or {})}
        if fallback is not None:
            options["fallbacks"] = [_model(fallback, server, name="second-model")]
        made = Agent(
            name="faulty",
            model=_model(kind, server, name="test-model", **model),
            instructions="Be brief.",
            tools=tools,
            **options,
        )
        self._worker = await self._serve(made, providers=self._providers(), operator_events=self.sink)
        self._agent = made
        return Talk(self._bench.client(), self._conversation, server)


def _model(kind: type[Model], server: FaultServer, **options: Any) -> Model:
    base_url = server.anthropic_url if kind is AnthropicModel else server.openai_url
    return kind(base_url=base_url, api_key_env=KEY_NAME, **options)
