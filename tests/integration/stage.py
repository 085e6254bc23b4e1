"""A model whose calls the test plays by hand: it hears what was asked, and says when and how it is answered.

    stage = Stage()
    await serve(stage.agent(), providers=stage.providers)
    ...
    call = await stage.call(1)      # the first model call has begun, and is held
    call.answer("Yes.")             # it ends
    stage.play()                    # from now on every call answers by itself, those held included

Every wait ends when its condition holds, or fails after `BOUND` seconds. Only `until` has to ask again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from turnlane.activities.providers.base import Finish, ProviderFailure, ProviderRequest, StreamPart, TextDelta, ToolCall
from turnlane.activities.providers.registry import Providers
from turnlane.agent import Agent
from turnlane.agent.models import Action, ScriptedModel, ScriptedRequest
from turnlane.records.messages import TextPart, ToolCallPart, ToolResultPart
from turnlane.records.prompt import PromptMessage, Speaker
from turnlane.records.runs import Failure
from turnlane.records.steps import FinishReason
from turnlane.testing.races import Barrier

BOUND = 30.0

MANY_LANES = 100
"""How many lanes a worker keeps in a test that runs several at once.

Also where the suite replays every task: with no place for them, the SDK turns lanes out whose local activities
are under way, and their tasks are lost until they time out.
"""


class ModelCall:
    """One call of the model. What the test says is streamed at once; nothing ends until the test ends it."""

    def __init__(self, request: ProviderRequest) -> None:
        self.request = request
        self.closed = asyncio.Event()
        self._parts: asyncio.Queue[StreamPart | Failure] = asyncio.Queue()

    @property
    def heard(self) -> list[tuple[str, str]]:
        """The prompt as (speaker, what was said); calls and results are named by their call ids."""
        return [(message.speaker.value, _said(message)) for message in self.request.prompt.messages]

    @property
    def asked(self) -> str:
        """The last thing that the user said."""
        users = [message for message in self.request.prompt.messages if message.speaker is Speaker.USER]
        return _said(users[-1])

    def say(self, text: str) -> None:
        """Stream a piece of text."""
        self._parts.put_nowait(TextDelta(text))

    def use(self, *calls: tuple[str, str, str]) -> None:
        """Ask for tool calls, each (call id, tool name, JSON arguments), and end."""
        for call_id, name, arguments in calls:
            self._parts.put_nowait(ToolCall(call_id, name, arguments))
        self._parts.put_nowait(Finish(FinishReason.TOOL_CALLS))

    def ask(self, call_id: str, name: str, arguments: str = "{}") -> None:
        """Ask for a tool call, and do not end yet."""
        self._parts.put_nowait(ToolCall(call_id, name, arguments))

    def answer(self, text: str = "", finish: FinishReason = FinishReason.STOP) -> None:
        """Say `text` and end."""
        if text:
            self.say(text)
        self._parts.put_nowait(Finish(finish))

    def fail(self, failure: Failure) -> None:
        """End as a provider that failed."""
        self._parts.put_nowait(failure)

    async def stream(self) -> AsyncIterator[StreamPart]:
        """Yield what the test says, as it says it."""
        try:
            while True:
                part = await self._parts.get()
                if isinstance(part, Failure):
                    raise ProviderFailure(part)
                yield part
                if isinstance(part, Finish):
                    return
        finally:
            self.closed.set()


class Stage:
    """A provider that collects its calls for a test. Each is held until the test answers it, or `play` was called."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []
        self._changed = asyncio.Condition()
        self._plays = False

    @property
    def providers(self) -> Providers:
        """What a worker is given, so that this is the model of its agents."""
        return Providers({"scripted": lambda: self})

    def agent(self, **options: Any) -> Agent:
        """An agent with this model that stores its draft after every piece of text."""
        settings: dict[str, Any] = {"name": "actor", "checkpoint_every": 1, "idle_timeout": None, **options}
        return Agent(**{"model": ScriptedModel(script=_silent), **settings})

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        """Make a call for the test to see."""
        call = ModelCall(request)
        async with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        if self._plays:
            _answer(call)
        async for part in call.stream():
            yield part

    async def aclose(self) -> None:
        """Nothing is open."""

    def play(self) -> None:
        """Answer every call from now on with `answer to <what the user said last>`; those that are held too."""
        self._plays = True
        for call in self.calls:
            if not call.closed.is_set():
                _answer(call)

    def hold(self) -> None:
        """Hold every call from now on until the test answers it."""
        self._plays = False

    async def call(self, number: int) -> ModelCall:
        """Return the call of this number, from 1, once it was made."""
        async with asyncio.timeout(BOUND), self._changed:
            await self._changed.wait_for(lambda: len(self.calls) >= number)
        return self.calls[number - 1]


class HeldStore:
    """A store in which one method waits at a barrier before it does its work, or before it tells that it did.

    Everything else is the store's own.
    """

    def __init__(self, store: Any, method: str, *, after: bool = False) -> None:
        self.barrier = Barrier(method, BOUND)
        self._store = store
        self._method = method
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._held(found) if name == self._method else found

    def _held(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def held(*args: Any, **options: Any) -> Any:
            if self._after:
                answer = await method(*args, **options)
                await self.barrier.wait()
                return answer
            await self.barrier.wait()
            return await method(*args, **options)

        return held


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = BOUND, pause: float = 0.02) -> Any:
    """Return what an async condition gives as soon as it is true. Raises TimeoutError when the time is up.

    For what Temporal, the database or another process knows and tells nobody: to ask again is the only way.
    """
    async with asyncio.timeout(seconds):
        while not (found := await condition()):  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(pause)
    return found


def _silent(request: ScriptedRequest) -> Sequence[Action]:
    return ()


def _answer(call: ModelCall) -> None:
    call.answer(f"answer to {call.asked}")


def _said(message: PromptMessage) -> str:
    words: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            words.append(part.text)
        elif isinstance(part, ToolCallPart | ToolResultPart):
            words.append(part.call_id)
    return " ".join(words)
