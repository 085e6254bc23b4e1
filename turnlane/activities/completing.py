"""Completing: one admitted completion, from its first model to its last receipt."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from turnlane.activities.attempts import ResponseEvidence, audited, request_payload
from turnlane.activities.providers.base import Finish, Provider, ProviderFailure, ProviderRequest, TextDelta
from turnlane.activities.receipts import THIS_PROCESS
from turnlane.agent.models import Model
from turnlane.agent.pricing import unreported, with_cost
from turnlane.agent.tool_context import Cancellation
from turnlane.records.base import derived_id
from turnlane.records.invocations import (
    CompletionRequest,
    CompletionSettings,
    FailureArtifact,
    InvocationAttempt,
    InvocationFinished,
    InvocationStatus,
    ModelIdentity,
    ProviderRequested,
    ProviderResponded,
    SentRequest,
)
from turnlane.records.messages import TextPart
from turnlane.records.prompt import Prompt, PromptMessage, Speaker
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import FinishReason
from turnlane.records.usage import Usage, stated

if TYPE_CHECKING:
    from turnlane.activities.invocations import ModelInvocations

Outcome = Literal["succeeded", "cancelled", "failed", "duplicate"]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What came of a completion.

    `text` is the answer of one that succeeded. `receipt_error` is the first receipt that could not be written
    after a model had answered: it changes nothing of the outcome. A `duplicate` names the invocation that has
    the key, and says nothing of how that ended.
    """

    invocation_id: str
    outcome: Outcome
    text: str | None = None
    receipt_error: Exception | None = None


class _ProviderFault(Exception):
    """A model's provider failed: the next model may answer. The cause says how."""


class _Answer:
    """What one attempt heard."""

    def __init__(self, evidence: ResponseEvidence) -> None:
        self.evidence = evidence
        self.text: list[str] = []
        self.finish: Finish | None = None
        self.early: Usage | None = None
        self.failure: Failure | None = None

    @property
    def usage(self) -> Usage | None:
        return self.finish.usage if self.finish is not None else self.early

    @property
    def is_unbilled(self) -> bool:
        """Whether nothing was sent, or it was refused with a status before anything was answered."""
        refused = self.failure is not None and (
            self.failure.status is not None or self.failure.failure_class is FailureClass.APPLICATION
        )
        return refused and not self.evidence.has_begun


class Completing:
    """Makes one completion. It was admitted: whatever happens from here on, its key stays taken."""

    def __init__(self, invocations: ModelInvocations, request: CompletionRequest, invocation_id: str) -> None:
        self._invocations = invocations
        self._receipts = invocations.receipts
        self._request = request
        self._invocation_id = invocation_id
        self._receipt_error: Exception | None = None
        self._heard: str | None = None

    # --- the whole ------------------------------------------------------------------------------

    async def run(self, signal: Cancellation | None) -> Completion:
        """Ask the models, write how it ended, and say so. A caller that goes away cancels it, with receipts."""
        work = asyncio.ensure_future(self._ask_all())
        waiter = asyncio.ensure_future(signal.wait() if signal is not None else asyncio.Event().wait())
        try:
            await asyncio.wait(
                {work, waiter}, timeout=self._request.timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            await _end(work)
            await asyncio.shield(self._finish(InvocationStatus.CANCELLED, asyncio.CancelledError("the caller left")))
            raise
        finally:
            waiter.cancel()
        return await self._conclude(work)

    async def _conclude(self, work: asyncio.Future[None]) -> Completion:
        if not work.done():
            await _end(work)
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if self._heard is not None:
            # Also where the time was up only while its receipt was written.
            await self._finish(InvocationStatus.SUCCEEDED, None)
            return self._completion("succeeded", self._heard)
        status = InvocationStatus.FAILED
        if isinstance(error, asyncio.CancelledError):
            status, error = InvocationStatus.CANCELLED, TimeoutError("cancelled, or over the deadline")
        await self._finish(status, error.__cause__ if isinstance(error, _ProviderFault) else error)
        return self._completion("cancelled" if status is InvocationStatus.CANCELLED else "failed", None)

    def _completion(self, outcome: Outcome, text: str | None) -> Completion:
        return Completion(
            invocation_id=self._invocation_id, outcome=outcome, text=text, receipt_error=self._receipt_error
        )

    async def _finish(self, status: InvocationStatus, error: BaseException | None) -> None:
        failure = None
        if error is not None:
            artifact = derived_id("art", self._invocation_id, "failure")
            kept = await self._try(self._receipts.keep(self._place(artifact), {"error": error}))
            if kept is not None:
                failure = FailureArtifact(artifact_id=artifact, payload_sha256=kept.sha256)
        finished = InvocationFinished(**self._base, status=status, failure=failure)
        await self._try(self._receipts.write(finished, self._invocation_id))

    async def _try(self, write: Awaitable[Any]) -> Any:
        """Write a receipt of what has happened; if that fails, it has happened all the same."""
        task = asyncio.ensure_future(write)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            raise
        except Exception as error:
            self._receipt_error = self._receipt_error or error
            return None

    @property
    def _base(self) -> dict[str, Any]:
        return {
            "conversation_id": self._request.conversation_id,
            "invocation_id": self._invocation_id,
            "operation_id": self._request.trace.operation_id,
        }

    def _place(self, artifact_id: str) -> tuple[str, str, str]:
        return (self._request.conversation_id, self._invocation_id, artifact_id)

    # --- attempts -------------------------------------------------------------------------------

    async def _ask_all(self) -> None:
        """Ask one model after the other. The next one is asked only where a provider failed."""
        last = len(self._request.models) - 1
        for step, key in enumerate(self._request.models):
            try:
                return await self._ask(step, key)
            except _ProviderFault:
                if step == last:
                    raise

    async def _ask(self, step: int, key: str) -> None:
        model = _set(self._invocations.model(key), self._request.settings)
        provider = self._invocations.providers.of(model)
        asked = self._provider_request(model, step)
        attempt = InvocationAttempt(
            conversation_id=self._request.conversation_id,
            invocation_id=self._invocation_id,
            attempt_id=f"att-{uuid.uuid4().hex}",
            trace=self._request.trace,
            step=step,
            model_id=key,
            provider=model.reported_provider,
        )
        await self._write_request(attempt, asked)
        await self._announce(attempt, model)
        await self._hear(provider, asked, attempt)

    def _provider_request(self, model: Model, step: int) -> ProviderRequest:
        said = PromptMessage(speaker=Speaker.USER, parts=(TextPart(text=self._request.prompt),))
        return ProviderRequest(
            model=model,
            prompt=Prompt(messages=(said,)),
            conversation_id=self._request.conversation_id,
            run_id=self._invocation_id,
            step=step,
            attempt=1,
        )

    async def _write_request(self, attempt: InvocationAttempt, asked: ProviderRequest) -> None:
        artifact = derived_id("art", attempt.attempt_id, "request")
        kept = await self._receipts.keep(self._place(artifact), request_payload(asked))
        requested = ProviderRequested(
            **self._base,
            attempt_id=attempt.attempt_id,
            step=attempt.step,
            requested=ModelIdentity(model_id=attempt.model_id, provider=asked.model.reported_provider),
            executing_process=THIS_PROCESS,
            sent=SentRequest(
                model_id=asked.model.name,
                provider=asked.model.provider,
                payload_sha256=kept.sha256,
                artifact_id=artifact,
                tools=len(asked.prompt.tools),
            ),
        )
        await self._receipts.write(requested, attempt.attempt_id)

    async def _announce(self, attempt: InvocationAttempt, model: Model) -> None:
        try:
            await self._invocations.announce(attempt)
        except Exception:
            await self._write_response(attempt, InvocationStatus.FAILED, None, model, audit_failed=True)
            raise

    async def _hear(self, provider: Provider, asked: ProviderRequest, attempt: InvocationAttempt) -> None:
        answer = _Answer(ResponseEvidence(self._receipts.evidence_bytes))
        try:
            await _listen(provider, asked, attempt, answer)
        except asyncio.CancelledError:
            await self._write_response(attempt, InvocationStatus.CANCELLED, answer, asked.model)
            raise
        except Exception as error:
            await self._write_response(attempt, InvocationStatus.FAILED, answer, asked.model)
            if isinstance(error, ProviderFailure) and error.failure.failure_class is not FailureClass.APPLICATION:
                raise _ProviderFault from error
            raise
        self._heard = "".join(answer.text)
        await self._write_response(attempt, InvocationStatus.SUCCEEDED, answer, asked.model)

    async def _write_response(
        self,
        attempt: InvocationAttempt,
        status: InvocationStatus,
        answer: _Answer | None,
        model: Model,
        *,
        audit_failed: bool = False,
    ) -> None:
        """Write what an attempt came to. It was made by now, so a receipt that fails does not undo it."""
        artifact = derived_id("art", attempt.attempt_id, "response")
        evidence = answer.evidence if answer is not None else ResponseEvidence(0)
        kept = None
        if answer is not None:
            kept = await self._try(self._receipts.keep(self._place(artifact), evidence.payload))
        prices = self._invocations.price_list.of(model.name, evidence.effective.model_id)
        usage = with_cost(answer.usage if answer is not None else None, prices)
        responded = ProviderResponded(
            **self._base,
            attempt_id=attempt.attempt_id,
            step=attempt.step,
            status=status,
            effective=evidence.effective,
            usage=stated(usage),
            artifact_id=None if kept is None else artifact,
            payload_sha256=None if kept is None else kept.sha256,
            phase="transport-audit" if audit_failed else None,
        )
        spent = None
        if answer is not None and not answer.is_unbilled:
            spent = usage or unreported(prices, is_whole=answer.finish is not None)
        await self._try(self._receipts.write(responded, attempt.attempt_id, spent))


async def _listen(provider: Provider, asked: ProviderRequest, attempt: InvocationAttempt, answer: _Answer) -> None:
    """Read an answer to its end. Raises ProviderFailure for one that has none, or that ends in an error."""
    async with aclosing(audited(provider.stream(asked), attempt, answer.evidence)) as parts:
        try:
            async for part in parts:
                if isinstance(part, TextDelta):
                    answer.text.append(part.text)
                answer.early = getattr(part, "usage", None) or answer.early
                answer.finish = part if isinstance(part, Finish) else answer.finish
        except ProviderFailure as failure:
            answer.early, answer.failure = failure.usage or answer.early, failure.failure
            raise
    if answer.finish is None:
        raise ProviderFailure(Failure(failure_class=FailureClass.STREAM_CUT, retryable=True), answer.early)
    if answer.finish.reason is FinishReason.ERROR:
        raise ProviderFailure(Failure(failure_class=FailureClass.UNKNOWN, code="finish-error"), answer.usage)


def _set(model: Model, settings: CompletionSettings | None) -> Model:
    if settings is None:
        return model
    sampling: dict[str, Any] = {"temperature": settings.temperature, "top_p": settings.top_p}
    if model.provider == "openai-chat":
        sampling["seed"] = settings.seed
    given = {name: value for name, value in sampling.items() if value is not None}
    limit = settings.max_output_tokens or model.max_output_tokens
    return dataclasses.replace(model, max_output_tokens=limit, extra={**model.extra, **given})


async def _end(work: asyncio.Future[None]) -> None:
    """Cancel the work and wait until it has written what there is to write."""
    work.cancel()
    await asyncio.wait({work})
    if not work.cancelled():
        work.exception()
