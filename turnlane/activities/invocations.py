"""Invocations: model calls with receipts, of an application's own and of agent runs.

    invocations = ModelInvocations(store, models=MODELS, payload_key=KEY, authorize=authorize)
    completion = await invocations.complete(CompletionRequest(...), context)
    worker = build_worker(client, store=store, agents=AGENTS, bus=bus, invocations=invocations)

What is said is encrypted under a key of the application's; receipts name it by digest. `complete` may be called
from anywhere, in a tool too, on a conversation that has a lane or has none.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from turnlane.activities.asking import asked
from turnlane.activities.attempts import current_attempt
from turnlane.activities.completing import Completing, Completion
from turnlane.activities.providers.base import ProviderRequest
from turnlane.activities.providers.registry import Providers
from turnlane.activities.receipts import THIS_PROCESS, Receipts
from turnlane.activities.run_audit import RunAudit
from turnlane.activities.sealing import PayloadSeal, canonical_bytes
from turnlane.agent.models import Model
from turnlane.agent.prices import Prices
from turnlane.agent.pricing import PriceList
from turnlane.agent.registry import ModelRegistry
from turnlane.agent.tool_context import Cancellation
from turnlane.records.errors import InvalidInputError
from turnlane.records.invocations import (
    Caller,
    CompletionRequest,
    InvocationAttempt,
    InvocationMode,
    InvocationPage,
    InvocationStarted,
    InvocationTrace,
    OpenedPayload,
    RequestedModels,
    RequestedRun,
)
from turnlane.records.limits import KIB
from turnlane.records.misfits import misfits
from turnlane.records.steps import Fence
from turnlane.store.payloads import RunContext
from turnlane.store.protocol import Store

__all__ = [
    "AuthorizationRequest",
    "Completion",
    "ModelInvocations",
    "current_attempt",
]

DEFAULT_PAYLOAD_BYTES = 4 * KIB * KIB

Action = Literal["complete", "agent", "read", "read-payload"]


@dataclass(frozen=True, kw_only=True)
class AuthorizationRequest:
    """What the application is asked to allow: an action on a conversation. `context` is what the caller gave
    (of an agent's run, the context of its input); `trace` is there where something is to be called."""

    action: Action
    conversation_id: str
    context: Any
    trace: InvocationTrace | None = None


Authorize = Callable[[AuthorizationRequest], Caller | Awaitable[Caller]]
"""Says on whose behalf an action is done, or raises."""

OnAttempt = Callable[[InvocationAttempt], Awaitable[None] | None]
"""Called when an attempt is written down and not yet made; raising prevents the call."""

AgentTrace = Callable[[RunContext], InvocationTrace | Awaitable[InvocationTrace]]
"""Says what an agent's run is for."""


def run_trace(run: RunContext) -> InvocationTrace:
    """What a run is for unless the application says more: itself, for its agent."""
    return InvocationTrace(operation_id=run.run.id, purpose="agent", project=run.agent)


class ModelInvocations:
    """The invocations of one store.

    `models` are those that completions may name. `payload_key` has exactly 32 bytes, `max_payload_bytes` bounds
    what is encrypted: a request over it is not sent, of an answer half of it is kept. `providers` are the
    adapters; without any it opens its own, and `aclose` closes them. Raises TypeError for a store that cannot
    append an event once, ValueError for a key or a limit that is none.
    """

    def __init__(
        self,
        store: Store,
        *,
        payload_key: bytes,
        authorize: Authorize,
        models: ModelRegistry | Mapping[str, Model] | None = None,
        max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES,
        on_attempt: OnAttempt | None = None,
        agent_trace: AgentTrace = run_trace,
        providers: Providers | None = None,
        prices: Mapping[str, Prices] | None = None,
    ) -> None:
        if not callable(getattr(store, "append_event", None)) or not callable(getattr(store, "find_event", None)):
            raise TypeError("invocations need a store that can append an event once")
        self.store = store
        self.receipts = Receipts(store, PayloadSeal(payload_key, max_payload_bytes))
        self.providers = providers or Providers()
        self._authorize = authorize
        self._models: ModelRegistry | Mapping[str, Model] = models if models is not None else {}
        self._on_attempt = on_attempt
        self._agent_trace = agent_trace
        self._prices = PriceList(prices or {}, models if isinstance(models, ModelRegistry) else None)

    async def aclose(self) -> None:
        """Close the adapters' connections. One that is asked for later is opened anew."""
        await self.providers.aclose()

    # --- completions ----------------------------------------------------------------------------

    async def complete(
        self, request: CompletionRequest | Mapping[str, Any], context: Any = None, *, signal: Cancellation | None = None
    ) -> Completion:
        """Ask models for one answer, with receipts; the same key again calls nobody and is a `duplicate`.

        The outcome of the models is returned, also where it is `failed` or `cancelled` (`signal`, or the deadline).
        Raises `InvalidInputError` for a request that does not fit, what `authorize` raises,
        `IdempotencyConflictError` for a key that was used for something else, and `StoreUnavailableError` if it
        could not be admitted: then nothing was called. A process that dies after that leaves the key taken.
        """
        asked = _checked(request)
        caller = await self.authorize("complete", asked.conversation_id, context, asked.trace)
        requested = RequestedModels(models=asked.models, payload_sha256=_sha256(asked.model_dump(mode="json")))
        started = self._started(
            InvocationMode.COMPLETION, asked.conversation_id, f"inv-{uuid.uuid4().hex}", asked.trace, caller, requested
        )
        found = await self.receipts.admit(started, asked.idempotency_key)
        if found.invocation_id != started.invocation_id:
            return Completion(invocation_id=found.invocation_id, outcome="duplicate")
        return await Completing(self, asked, started.invocation_id).run(signal)

    def model(self, key: str) -> Model:
        """The model under a key. Raises `InvalidInputError` for one that is not there."""
        if isinstance(self._models, ModelRegistry):
            return self._models.preflight(key).model
        if key not in self._models:
            raise InvalidInputError("there is no model of this key", fields=["models"])
        return self._models[key]

    @property
    def price_list(self) -> PriceList:
        """What completions cost, as far as that is known."""
        return self._prices

    async def announce(self, attempt: InvocationAttempt) -> None:
        """Tell the application of an attempt that is about to be made. What it raises prevents the call."""
        tell = self._on_attempt
        if tell is not None:
            await asked(lambda: tell(attempt))

    # --- agent runs -----------------------------------------------------------------------------

    def audit(self, fence: Fence, request: ProviderRequest) -> RunAudit:
        """The audit of one attempt of a run."""
        return RunAudit(self, fence, request)

    async def admit_run(self, run: RunContext, invocation_id: str) -> InvocationStarted:
        """Admit a run as an invocation; the run of another lane or worker goes on with the one it has."""
        trace = await asked(lambda: self._agent_trace(run))
        caller = await self.authorize("agent", run.run.conversation_id, run.context, trace)
        started = self._started(
            InvocationMode.AGENT,
            run.run.conversation_id,
            invocation_id,
            trace,
            caller,
            RequestedRun(run_id=run.run.id),
            run_id=run.run.id,
        )
        return await self.receipts.admit(started, run.run.id)

    # --- reading --------------------------------------------------------------------------------

    async def read(
        self, conversation_id: str, context: Any = None, *, from_seq: int | None = None, limit: int = 1000
    ) -> InvocationPage:
        """Return a page of receipts in order, without what was said. Raises what `authorize` raises."""
        await self.authorize("read", conversation_id, context)
        return await self.receipts.read(conversation_id, from_seq, limit)

    async def read_payload(self, conversation_id: str, artifact_id: str, context: Any = None) -> OpenedPayload:
        """Return what was said, decrypted. Raises what `authorize` raises, `PayloadNotFoundError`, and
        `PayloadUnreadableError` for another key or a payload that was changed."""
        await self.authorize("read-payload", conversation_id, context)
        return await self.receipts.open(conversation_id, artifact_id)

    async def authorize(
        self, action: Action, conversation_id: str, context: Any, trace: InvocationTrace | None = None
    ) -> Caller:
        """Ask the application. Raises what it raises, and TypeError if it names no caller."""
        question = AuthorizationRequest(action=action, conversation_id=conversation_id, context=context, trace=trace)
        caller = await asked(lambda: self._authorize(question))
        if not isinstance(caller, Caller):
            raise TypeError("authorize returns a Caller")
        return caller

    def _started(
        self,
        mode: InvocationMode,
        conversation_id: str,
        invocation_id: str,
        trace: InvocationTrace,
        caller: Caller,
        requested: RequestedModels | RequestedRun,
        run_id: str | None = None,
    ) -> InvocationStarted:
        told = (mode, caller, trace, requested)
        parts = [part if isinstance(part, str) else part.model_dump(mode="json") for part in told]
        return InvocationStarted(
            conversation_id=conversation_id,
            invocation_id=invocation_id,
            operation_id=trace.operation_id,
            run_id=run_id,
            mode=mode,
            trace=trace,
            caller=caller,
            executing_process=THIS_PROCESS,
            fingerprint=_sha256(parts),
            requested=requested,
        )


def _checked(request: CompletionRequest | Mapping[str, Any]) -> CompletionRequest:
    try:
        return CompletionRequest.model_validate(request)
    except ValidationError as error:
        raise InvalidInputError("the completion does not fit", fields=misfits(error)) from None


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical_bytes(value)).hexdigest()
