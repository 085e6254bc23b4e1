"""The provider step: one model call of a run, streamed, checkpointed and stored under its fence.

The request is in the ledger before the provider is called, and the answer is in the store before the
lane hears of it. What the provider or the application does wrong comes back as data; the activity fails
only when its worker goes away or the store does before the call, and is then tried again elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

from temporalio import activity

from turnlane.activities.approving import Approving
from turnlane.activities.auditing import Audit, Auditor, NoAudit
from turnlane.activities.budgets import budget_stop
from turnlane.activities.clock import utc_now
from turnlane.activities.complete_step import end_of_complete_step
from turnlane.activities.draft import Draft
from turnlane.activities.evidence import Spent, request_evidence, response_evidence
from turnlane.activities.failing import ApplicationFailedError, as_failures, persist, place_of
from turnlane.activities.finishing import settle_draft
from turnlane.activities.generated_files import GeneratedFiles
from turnlane.activities.judging import judge_end
from turnlane.activities.last_write import LastWrite
from turnlane.activities.operator_sink import OperatorSink
from turnlane.activities.operator_telling import tell_attempt, tell_end
from turnlane.activities.preparing import OversizedPromptError, Preparation, Prepared
from turnlane.activities.progress import Account, Progress
from turnlane.activities.providers.base import (
    Finish,
    GeneratedFile,
    Opaque,
    Provider,
    ProviderFailure,
    ProviderRequest,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    Source,
    StreamPart,
    TextDelta,
    ToolArguments,
    ToolCall,
)
from turnlane.activities.providers.registry import Providers
from turnlane.activities.publishing import Publisher, last_model_epoch, tell
from turnlane.activities.pulse import Cut, at_work, why_cut
from turnlane.activities.silence import Silence, SilenceError
from turnlane.activities.step_ends import failed_step, refused_step, silence_of
from turnlane.agent.agent import Agent
from turnlane.agent.approval_keys import ApprovalKeys
from turnlane.records.approvals import AskedApproval
from turnlane.records.base import JsonObject
from turnlane.records.errors import StaleFenceError, StoreUnavailableError, TurnlaneError
from turnlane.records.events import TerminalEvent
from turnlane.records.messages import ControlReason
from turnlane.records.prompt import Prompt
from turnlane.records.runs import Failure, FailureClass, Operation, OperationKind, OperationPhase
from turnlane.records.steps import RUNS_CALLS, Fence, FinishReason, StepEnd, StepOutcome, StepRequest
from turnlane.store.bus import EventBus
from turnlane.store.payloads import StepFinish, StepStart, Written
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)


class ProviderSteps:
    """The `provider_step` activity. One instance serves all lanes of the process."""

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        bus: EventBus,
        providers: Providers,
        keys: ApprovalKeys | None = None,
        auditor: Auditor | None = None,
        sink: OperatorSink | None = None,
    ) -> None:
        self._auditor = auditor
        self._sink = sink
        self._store = store
        self._agents = agents
        self._bus = bus
        self._providers = providers
        self._keys = keys

    @activity.defn(name="provider_step")
    @as_failures
    async def provider_step(self, request: StepRequest) -> StepOutcome:
        """Make one model call for a run; see the module."""
        attempt = request.fence.attempt + activity.info().attempt - 1
        fence = request.fence.model_copy(update={"attempt": attempt})
        agent = self._agents.get(request.agent)
        if agent is None:
            return failed_step(attempt, FailureClass.APPLICATION, "UNKNOWN_AGENT")
        step = _Step(self._store, self._bus, self._providers, agent, request, fence, self._keys, self._auditor)
        try:
            async with at_work():
                return await step.make()
        except StaleFenceError as error:
            return refused_step(attempt, error)
        finally:
            step.tell(self._sink)


class _Step:
    """One attempt of one step."""

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        providers: Providers,
        agent: Agent,
        request: StepRequest,
        fence: Fence,
        keys: ApprovalKeys | None,
        auditor: Auditor | None,
    ) -> None:
        self._auditor = auditor
        self._audit: Audit = NoAudit()
        self._store = store
        self._bus = bus
        self._providers = providers
        self._agent = agent
        self._request = request
        self._fence = fence
        self._publisher = Publisher(bus, fence, "model", fence.attempt, utc_now)
        self._keys = keys
        self._asked: tuple[AskedApproval, ...] = ()
        self._draft = Draft(agent)
        self._ended: TerminalEvent | None = None
        self._progress = Progress()
        self._model = agent.own_model
        self._operation = Operation(
            operation_id=f"{fence.run_id[:200]}:{fence.token}:{fence.step}:{fence.attempt}",
            kind=OperationKind.MODEL_REQUEST,
            phase=OperationPhase.STARTED,
            step=fence.step,
            started_at=utc_now(),
        )

    async def make(self) -> StepOutcome:
        """Prepare, call, stream, store; a step that is complete already only ends."""
        request = self._request.model_copy(update={"fence": self._fence})
        complete = await end_of_complete_step(self._store, self._agent, request)
        if complete is not None:
            return complete
        if request.may_settle and activity.info().attempt > 1:
            settled = await persist(lambda: self._store.find_settled(self._fence, request.assistant_message_id))
            if settled is not None:
                return self._settled_before(settled)
        where = (self._fence.conversation_id, self._fence.run_id)
        stop = await persist(lambda: budget_stop(self._store, self._agent, *where))
        if stop is not None:
            return StepOutcome(end=StepEnd.STOPPED, attempt=self._fence.attempt, stop=stop)
        try:
            prepared = await Preparation(self._store, self._agent, request, self._providers).prepare()
            self._model = prepared.model
            self._draft.active = prepared.active
            self._draft.deferred = prepared.catalog.calls if prepared.catalog is not None else None
            provider = self._providers.of(self._model)
            asked = self._provider_request(prepared.prompt)
            self._audit = self._auditor.audit(self._fence, asked) if self._auditor is not None else self._audit
            receipt = await self._audit.open()
        except ApplicationFailedError as error:
            return failed_step(self._fence.attempt, FailureClass.APPLICATION, error.code, error.record_id)
        except (OversizedPromptError, ProviderFailure) as error:
            return StepOutcome(end=StepEnd.FAILED, attempt=self._fence.attempt, failure=error.failure)
        await self._begin(prepared, receipt)
        return await self._converse(provider, asked)

    def _settled_before(self, written: Written) -> StepOutcome:
        """The outcome of a step that an earlier attempt ended the run with, before its worker was lost."""
        self._hear(written)
        return StepOutcome(
            end=StepEnd.FINISHED, attempt=self._fence.attempt, finish=FinishReason.STOP, settled=written.settled
        )

    # --- before the call ------------------------------------------------------------------------

    async def _begin(self, prepared: Prepared, receipt: JsonObject) -> None:
        start = StepStart(
            fence=self._fence,
            assistant_message_id=self._request.assistant_message_id,
            operation=self._operation,
            evidence=request_evidence(self._fence, self._model, prepared.prompt, prepared.context) | receipt,
            prepared=prepared.turn,
            seed=prepared.seed,
            catalog=prepared.catalog.offer.evidence.model_dump(mode="json") if prepared.catalog is not None else None,
            model=self._request.model,
        )
        withdrawn = last_model_epoch(prepared.run.run, self._fence) if prepared.run is not None else None
        written = await persist(lambda: self._store.begin_step(start, utc_now()))
        tell(self._bus, written.events)
        if withdrawn is not None:
            self._publisher.reset(self._fence.attempt, withdrawn)

    # --- the call -------------------------------------------------------------------------------

    def _provider_request(self, prompt: Prompt) -> ProviderRequest:
        return ProviderRequest(
            model=self._model,
            prompt=prompt,
            conversation_id=self._fence.conversation_id,
            run_id=self._fence.run_id,
            step=self._fence.step,
            attempt=self._fence.attempt,
        )

    async def _converse(self, provider: Provider, request: ProviderRequest) -> StepOutcome:
        try:
            await self._audit.announce()
            self._progress.is_asked = True
            async with contextlib.aclosing(self._audit.stream(provider.stream(request))) as stream:
                await self._read(stream)
            failure = self._settled()
            self._asked = await self._approved()
        except asyncio.CancelledError:
            return await self._cut_short()
        except SilenceError:
            return await self._end(StepEnd.TIMED_OUT, OperationPhase.FAILED, silence_of(self._model))
        except ProviderFailure as error:
            self._progress.early = Spent(error.usage, error.raw_usage) if error.usage else self._progress.early
            return await self._end(StepEnd.FAILED, OperationPhase.FAILED, error.failure)
        except StaleFenceError as error:
            return await self._refused_midway(error)
        except ApplicationFailedError as error:
            failure = Failure(failure_class=FailureClass.APPLICATION, code=error.code)
            return await self._end(StepEnd.FAILED, OperationPhase.FAILED, failure)
        except TurnlaneError:
            raise
        except Exception as error:
            # Without the traceback, whose last line may quote what was said.
            place = place_of(error)
            logger.error("run %s: the adapter failed with %s at %s", self._fence.run_id, type(error).__name__, place)
            failure = Failure(failure_class=FailureClass.UNKNOWN, code="ADAPTER_FAILED")
            return await self._end(StepEnd.FAILED, OperationPhase.FAILED, failure)
        outcome = await self._end(StepEnd.FINISHED, OperationPhase.COMPLETED, failure)
        return await judge_end(self._store, self._agent, self._fence, outcome)

    async def _read(self, stream: AsyncIterator[StreamPart]) -> None:
        silence = Silence(self._agent.idle_timeout)
        while self._progress.finish is None:
            part = await silence.next_of(stream)
            if part is None:
                raise ProviderFailure(Failure(failure_class=FailureClass.STREAM_CUT, retryable=True))
            await self._take(part)

    async def _take(self, part: StreamPart) -> None:
        if isinstance(part, GeneratedFile):
            self._first_output()
            self._draft.file(await GeneratedFiles(self._store, self._agent, self._fence).keep(part))
        self._gather(part)
        self._progress.since_checkpoint += 1
        forced = isinstance(part, ToolCall)
        if forced or self._progress.since_checkpoint >= self._agent.checkpoint_every:
            await self._checkpoint()

    def _gather(self, part: StreamPart) -> None:
        match part:
            case TextDelta(text) if text:
                self._first_output()
                self._publisher.text(self._draft.text(text))
            case ReasoningStart():
                self._draft.reasoning_start()
                self._publisher.reasoning_start()
            case ReasoningDelta(text) if text:
                self._first_output()
                self._publisher.reasoning(self._draft.reasoning(text))
            case ReasoningEnd(provider):
                self._draft.reasoning_end(provider)
                self._publisher.reasoning_end(provider)
            case ToolCall():
                self._first_output()
                self._draft.call(part)
            case ToolArguments():
                self._first_output()
            case Source():
                self._draft.source(part)
            case Opaque():
                self._draft.opaque(part)
            case ResponseStarted(response_id, usage, raw_usage):
                self._progress.response_id = response_id
                self._progress.early = Spent(usage, raw_usage) if usage else self._progress.early
            case Finish():
                self._progress.finish = part

    def _first_output(self) -> None:
        if self._operation.phase is OperationPhase.STARTED:
            self._operation = self._operation.model_copy(
                update={"phase": OperationPhase.FIRST_OUTPUT, "first_output_at": utc_now()}
            )

    async def _checkpoint(self) -> None:
        """Store the draft. A store that is away now gets it with the next checkpoint, or at the end."""
        self._progress.since_checkpoint = 0
        try:
            written = await self._store.checkpoint(
                self._fence, self._request.assistant_message_id, self._draft.parts(), self._operation, utc_now()
            )
        except StoreUnavailableError:
            logger.warning("run %s: a checkpoint was skipped, the store did not answer", self._fence.run_id)
            return
        tell(self._bus, written.events)

    # --- after the call -------------------------------------------------------------------------

    def _settled(self) -> Failure | None:
        finish = self._progress.finish
        if finish is None:
            raise AssertionError("a stream that was read to its end has a finish")
        return settle_draft(self._draft, finish, self._model.provider)

    async def _approved(self) -> tuple[AskedApproval, ...]:
        """Have the step's calls judged by the agent's rules of approval, if they will run; what a person is asked."""
        finish = self._progress.finish
        if finish is None or finish.reason not in RUNS_CALLS:
            return ()
        return await Approving(self._store, self._agent, self._keys).judge_step(self._draft, self._fence)

    async def _cut_short(self) -> StepOutcome:
        """The activity was cancelled. Only an abort ends the step; a worker's shutdown moves it elsewhere."""
        if await why_cut(self._store, self._fence) is Cut.ABORT:
            return await self._end(StepEnd.ABORTED, OperationPhase.CANCELLED, None)
        raise asyncio.CancelledError

    async def _refused_midway(self, error: StaleFenceError) -> StepOutcome:
        if error.details.get("reason") == ControlReason.RUN_INTERRUPTED:
            return await self._end(StepEnd.ABORTED, OperationPhase.CANCELLED, None)
        return StepOutcome(end=StepEnd.STALE, attempt=self._fence.attempt)

    async def _end(self, end: StepEnd, phase: OperationPhase, failure: Failure | None) -> StepOutcome:
        """Store how the attempt ended, however long the store is away: it was paid for."""
        finish = self._progress.finish
        self._progress.failure, self._progress.was_aborted = failure, end is StepEnd.ABORTED
        self._operation = self._operation.model_copy(update={"phase": phase, "finished_at": utc_now()})
        account = self._account()
        usage = account.spent.usage
        record = StepFinish(
            fence=self._fence,
            assistant_message_id=self._request.assistant_message_id,
            operation=self._operation,
            parts=self._draft.parts(),
            calls=tuple(self._draft.calls),
            usage=account.charged,
            evidence=response_evidence(self._fence, self._model, finish, self._progress.response_id, account.spent),
            unbilled=account.charged is None,
            keep_parts=not (end is StepEnd.FAILED and failure is not None and failure.retryable),
            settles=end is StepEnd.FINISHED and failure is None and self._ends_well(),
        )
        written = await LastWrite(self._store, self._audit).write(record)
        self._hear(written)
        return StepOutcome(
            end=end,
            attempt=self._fence.attempt,
            finish=finish.reason if finish else None,
            calls=self._draft.call_refs() if end is StepEnd.FINISHED else (),
            failure=failure,
            input_tokens=usage.input_tokens.value if usage else None,
            output_tokens=usage.output_tokens.value if usage else None,
            operation_id=self._audit.operation_id,
            facts=self._agent.facts if self._agent.facts.digest != self._request.facts_digest else None,
            asked=self._asked if end is StepEnd.FINISHED else (),
            settled=written.settled,
        )

    def _ends_well(self) -> bool:
        """Whether the run may end with this answer, and nobody has to judge that."""
        finish = self._progress.finish
        is_last = finish is not None and finish.reason is FinishReason.STOP and not self._draft.call_refs()
        return is_last and self._request.may_settle and self._agent.accept is None

    def _hear(self, written: Written) -> None:
        """Make known what was written."""
        self._ended = next((event for event in written.events if isinstance(event, TerminalEvent)), None)
        tell(self._bus, written.events)

    def _account(self) -> Account:
        silent = not self._draft.parts()
        return self._progress.account(self._agent, self._model, is_silent=silent, is_refused=self._audit.is_refused)

    def tell(self, sink: OperatorSink | None) -> None:
        """Tell operators what the attempt came to, also where its run is another's by now: it was paid for."""
        if sink is None:
            return
        if self._progress.is_asked:
            tell_attempt(sink, self._fence, self._model, self._operation, self._progress, self._account())
        if self._ended is not None:
            tell_end(sink, self._ended)
