"""Completions for a test: what is asked, who may, a provider that says what it is given, and the receipts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from turnlane.activities.invocations import AuthorizationRequest, ModelInvocations, current_attempt
from turnlane.activities.providers.base import Finish, ProviderRequest, StreamPart
from turnlane.activities.providers.registry import Providers
from turnlane.agent import Model, OpenAIChatModel, ScriptedModel
from turnlane.records.errors import StoreUnavailableError
from turnlane.records.invocations import (
    Caller,
    CompletionRequest,
    InvocationAttempt,
    InvocationReceipt,
    InvocationTrace,
)
from turnlane.records.steps import FinishReason
from turnlane.store.sql import SqlStore
from turnlane.testing.fault_server import FaultServer

KEY = bytes(range(32))
TRACE = InvocationTrace(operation_id="op-1", purpose="title", project="notes")
KEY_NAME = "COMPLETION_TEST_KEY"


def allow(asked: AuthorizationRequest) -> Caller:
    return Caller(subject="ada")


def forbid(asked: AuthorizationRequest) -> Caller:
    raise PermissionError(asked.action)


def chat(server: FaultServer, name: str = "gpt-x") -> Model:
    return OpenAIChatModel(name=name, base_url=server.openai_url, api_key_env=KEY_NAME)


def asked(key: str = "k", **changes: Any) -> CompletionRequest:
    fields = {"conversation_id": "c", "idempotency_key": key, "trace": TRACE, "prompt": "Name it.", "models": ["one"]}
    return CompletionRequest(**{**fields, **changes})


@dataclass
class Spoken:
    """A provider of a test's own: says what it is given, and notes on whose behalf."""

    says: Callable[[ProviderRequest], list[StreamPart | Exception]]
    attempts: list[InvocationAttempt | None] = field(default_factory=list)

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        for part in self.says(request):
            self.attempts.append(current_attempt())
            if isinstance(part, Exception):
                raise part
            yield part

    async def aclose(self) -> None:
        """Nothing is open."""


def spoken(store: Any, *parts: StreamPart | Exception, **options: Any) -> tuple[Spoken, ModelInvocations]:
    provider = Spoken(lambda request: list(parts))
    models = {"one": ScriptedModel(script=lambda request: ()), "two": ScriptedModel(script=lambda request: ())}
    adapters = Providers({"scripted": lambda: provider})
    options = {"payload_key": KEY, "authorize": allow, "models": models, "providers": adapters, **options}
    return provider, ModelInvocations(store, **options)


DONE = Finish(FinishReason.STOP)


async def receipts(invocations: ModelInvocations, conversation_id: str = "c") -> list[InvocationReceipt]:
    return [entry.receipt for entry in (await invocations.read(conversation_id)).items]


class FailingStore:
    """A store that does not take events of some kinds."""

    def __init__(self, store: SqlStore, *kinds: str) -> None:
        self._store = store
        self._kinds = kinds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_event(self, conversation_id: str, kind: str, *rest: Any, **options: Any) -> Any:
        if kind in self._kinds:
            raise StoreUnavailableError(f"no {kind}")
        return await self._store.append_event(conversation_id, kind, *rest, **options)
