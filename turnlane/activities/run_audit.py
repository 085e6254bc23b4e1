"""Run audit: the attempts of an agent's run with receipts, as the same invocation whichever worker makes them.

The receipts of an attempt stand in the very events that begin and end it in the store, so they are there exactly
when those are. What the application's own functions do wrong here fails the run as its mistake, and is not tried
again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from turnlane.activities.attempts import ResponseEvidence, audited, request_payload
from turnlane.activities.failing import ApplicationFailedError, failing_as, persist
from turnlane.activities.providers.base import ProviderRequest, StreamPart
from turnlane.activities.receipts import THIS_PROCESS, as_payload
from turnlane.records.base import JsonObject, derived_id
from turnlane.records.errors import StaleFenceError, StoreUnavailableError
from turnlane.records.invocations import (
    EffectiveIdentity,
    InvocationAttempt,
    InvocationStarted,
    InvocationStatus,
    ModelIdentity,
    ProviderRequested,
    ProviderResponded,
    SentRequest,
    run_invocation_id,
)
from turnlane.records.messages import ControlReason
from turnlane.records.runs import OperationPhase, RunState
from turnlane.records.steps import Fence
from turnlane.records.usage import Usage, stated

if TYPE_CHECKING:
    from turnlane.activities.invocations import ModelInvocations

T = TypeVar("T")

AUDIT_FAILED = "INVOCATION_FAILED"
AUDIT_REFUSED = "INVOCATION_REFUSED"

_STATUSES = {
    OperationPhase.COMPLETED: InvocationStatus.SUCCEEDED,
    OperationPhase.CANCELLED: InvocationStatus.CANCELLED,
}


class RunAudit:
    """The audit of one attempt of one step."""

    def __init__(self, invocations: ModelInvocations, fence: Fence, request: ProviderRequest) -> None:
        self._invocations = invocations
        self._fence = fence
        self._request = request
        self._invocation_id = run_invocation_id(fence.conversation_id, fence.run_id)
        self._attempt_id = derived_id(
            "att", fence.conversation_id, fence.publisher, str(fence.epoch), str(fence.attempt)
        )
        self._evidence = ResponseEvidence(invocations.receipts.evidence_bytes)
        self._started: InvocationStarted | None = None
        self.is_refused = False

    @property
    def operation_id(self) -> str | None:
        """What the application calls the operation, once the run is admitted."""
        return self._started.operation_id if self._started is not None else None

    async def open(self) -> JsonObject:
        """Admit the run and keep what will be sent; return the receipt for the event that begins the attempt."""
        self._started = await _ours(self._admit(), AUDIT_FAILED)
        artifact = derived_id("art", self._attempt_id, "request")
        kept = await _ours(self._keep(artifact, request_payload(self._request)), AUDIT_FAILED)
        model = self._request.model
        return as_payload(
            ProviderRequested(
                **self._base,
                attempt_id=self._attempt_id,
                step=self._fence.step,
                requested=ModelIdentity(model_id=model.name, provider=model.reported_provider),
                executing_process=THIS_PROCESS,
                sent=SentRequest(
                    model_id=model.name,
                    provider=model.provider,
                    payload_sha256=kept.sha256,
                    artifact_id=artifact,
                    tools=len(self._request.prompt.tools),
                ),
            )
        )

    async def _admit(self) -> InvocationStarted:
        fence, store = self._fence, self._invocations.store
        run = await persist(lambda: store.load_run_context(fence.conversation_id, fence.run_id))
        if run is None or run.run.fencing_token != fence.token:
            raise StaleFenceError("the run is another's", reason=ControlReason.STALE_RUN.value)
        if run.run.state is not RunState.RUNNING:
            raise StaleFenceError("the run was asked to stop", reason=ControlReason.RUN_INTERRUPTED.value)
        return await persist(lambda: self._invocations.admit_run(run, self._invocation_id))

    async def announce(self) -> None:
        """Tell the application. What it raises prevents the call, and fails the run."""
        try:
            await _ours(self._invocations.announce(self._attempt), AUDIT_REFUSED)
        except ApplicationFailedError:
            self.is_refused = True
            raise

    def stream(self, stream: AsyncIterator[StreamPart]) -> AsyncGenerator[StreamPart, None]:
        """The provider's stream, read as this attempt."""
        return audited(stream, self._attempt, self._evidence)

    async def close(self, phase: OperationPhase, usage: Usage | None) -> JsonObject:
        """Keep what was answered; return the receipt for the event that ends the attempt."""
        artifact = derived_id("art", self._attempt_id, "response")
        kept = None if self.is_refused else await self._keep(artifact, self._evidence.payload)
        responded = ProviderResponded(
            **self._base,
            attempt_id=self._attempt_id,
            step=self._fence.step,
            status=_STATUSES.get(phase, InvocationStatus.FAILED),
            effective=EffectiveIdentity() if self.is_refused else self._evidence.effective,
            usage=stated(usage),
            artifact_id=None if kept is None else artifact,
            payload_sha256=None if kept is None else kept.sha256,
            phase="transport-audit" if self.is_refused else None,
        )
        return as_payload(responded)

    async def _keep(self, artifact_id: str, value: Any) -> Any:
        place = (self._fence.conversation_id, self._invocation_id, artifact_id)
        return await persist(lambda: self._invocations.receipts.keep(place, value))

    @property
    def _attempt(self) -> InvocationAttempt:
        if self._started is None:
            raise AssertionError("an attempt is made after its run was admitted")
        return InvocationAttempt(
            conversation_id=self._fence.conversation_id,
            invocation_id=self._invocation_id,
            attempt_id=self._attempt_id,
            trace=self._started.trace,
            run_id=self._fence.run_id,
            step=self._fence.step,
            model_id=self._request.model.name,
            provider=self._request.model.reported_provider,
        )

    @property
    def _base(self) -> dict[str, Any]:
        return {
            "conversation_id": self._fence.conversation_id,
            "invocation_id": self._invocation_id,
            "operation_id": self.operation_id,
            "run_id": self._fence.run_id,
        }


async def _ours(call: Awaitable[T], code: str) -> T:
    """Make a call into the application's part; what it raises is the application's failure, told by name only."""
    with failing_as(code, "the audit of a model call", passing=(StaleFenceError, StoreUnavailableError)):
        return await call
