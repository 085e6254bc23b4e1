"""The `compact` activity: one attempt at replacing the older part of a conversation by a summary.

It looks at the conversation, asks for a summary outside any transaction, and leaves it in a blob. Whether the
summary still fits is the lane's to say: it knows whether anything was decided meanwhile. What the application
or the provider does wrong comes back as data; the activity fails only when its worker goes away, and is then
tried again elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime

from pydantic import BaseModel, ValidationError
from temporalio import activity

from turnlane.activities.asking import asked
from turnlane.activities.clock import utc_now
from turnlane.activities.compaction_state import chosen_model, heard, judged, state_of
from turnlane.activities.failing import ApplicationFailedError, as_failures, failing_as, persist
from turnlane.activities.providers.base import ProviderFailure
from turnlane.activities.providers.registry import Providers
from turnlane.activities.publishing import tell
from turnlane.activities.pulse import Cut, at_work, why_cut
from turnlane.activities.summarizing import ModelSummarizer
from turnlane.agent.agent import Agent
from turnlane.agent.compactable import CompactableHistory, select_compactable_history
from turnlane.agent.compaction import Compaction, Summarized, SummaryContext
from turnlane.agent.models import Model
from turnlane.records.base import JsonObject
from turnlane.records.compaction import AttemptEnd, CompactAttempt, CompactedRange, CompactOutcome
from turnlane.records.errors import ConversationPurgedError, ModelRefusedError, StaleFenceError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import Message, TextPart
from turnlane.records.runs import (
    Failure,
    FailureClass,
    Operation,
    OperationKind,
    OperationPhase,
    Snapshot,
)
from turnlane.records.usage import Usage, add_usage
from turnlane.store.bus import EventBus
from turnlane.store.payloads import CompactionFinish, CompactionStart
from turnlane.store.protocol import Store

JSON = "application/json"
SUMMARY_KEY = "summary"

_PHASES = {
    AttemptEnd.READY: OperationPhase.COMPLETED,
    AttemptEnd.NOT_NEEDED: OperationPhase.COMPLETED,
    AttemptEnd.NOTHING: OperationPhase.COMPLETED,
    AttemptEnd.FAILED: OperationPhase.FAILED,
    AttemptEnd.CANCELLED: OperationPhase.CANCELLED,
}


class Compactions:
    """The `compact` activity. One instance serves all lanes of the process."""

    def __init__(self, store: Store, agents: Mapping[str, Agent], bus: EventBus, providers: Providers) -> None:
        self._store = store
        self._agents = agents
        self._bus = bus
        self._providers = providers

    @activity.defn(name="compact")
    @as_failures
    async def compact(self, request: CompactAttempt) -> CompactOutcome:
        """Make one attempt at a compaction; see the module."""
        agent = self._agents.get(request.agent)
        if agent is None or agent.compaction is None:
            return CompactOutcome(end=AttemptEnd.FAILED, failure=ApplicationFailedError("UNKNOWN_AGENT").failure)
        attempt = _Attempt(self._store, self._bus, self._providers, agent, agent.compaction, request)
        try:
            async with at_work():
                outcome = await attempt.make()
        except (StaleFenceError, ConversationPurgedError):
            outcome = CompactOutcome(end=AttemptEnd.STALE)
        is_news = agent.facts.digest != request.facts_digest
        return outcome.model_copy(update={"facts": agent.facts if is_news else None})


class _Attempt:
    """One attempt at a compaction."""

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        providers: Providers,
        agent: Agent,
        compaction: Compaction,
        request: CompactAttempt,
    ) -> None:
        self._store = store
        self._bus = bus
        self._providers = providers
        self._agent = agent
        self._compaction = compaction
        self._request = request
        self._selected = CompactableHistory(None, (), ())
        self._judging: Usage | None = None
        self._usage: Usage | None = None
        self._summarizer: ModelSummarizer | None = None
        self._operation: Operation | None = None

    async def make(self) -> CompactOutcome:
        """Judge, choose, summarise, keep."""
        try:
            snapshot = await persist(lambda: self._store.load_snapshot(self._request.conversation_id))
            self._selected = select_compactable_history(
                snapshot.messages,
                keep_recent_turns=self._compaction.keep_recent_turns,
                runs=snapshot.runs,
                failed_assistant=self._agent.history.failed_assistant,
                now=utc_now(),
            )
            if not self._request.force and not await self._is_due(snapshot):
                return await self._unneeded(AttemptEnd.NOT_NEEDED)
            if not self._selected.compactable:
                return await self._unneeded(AttemptEnd.NOTHING)
        except ApplicationFailedError as error:
            return CompactOutcome(end=AttemptEnd.FAILED, failure=error.failure)
        return await self._replace(snapshot)

    async def _replace(self, snapshot: Snapshot) -> CompactOutcome:
        try:
            await self._begin()
            async with asyncio.timeout(self._compaction.seconds):
                summary = await self._summarize(heard(self._agent, snapshot, self._selected.compactable))
            content = self._content(summary)
        except asyncio.CancelledError:
            return await self._cut_short()
        except TimeoutError:
            failure = Failure(failure_class=FailureClass.TIMEOUT, code="COMPACTION_TIMEOUT", retryable=True)
            return await self._end(AttemptEnd.FAILED, failure)
        except (ProviderFailure, ApplicationFailedError) as error:
            return await self._end(AttemptEnd.FAILED, error.failure)
        return await self._keep(content)

    # --- judging --------------------------------------------------------------------------------

    async def _unneeded(self, end: AttemptEnd) -> CompactOutcome:
        """End without a summary; who tells what judging cost has that counted all the same."""
        if self._judging is None:
            return CompactOutcome(end=end)
        try:
            await self._begin()
            return await self._end(end, None)
        except asyncio.CancelledError:
            return await self._cut_short()

    async def _is_due(self, snapshot: Snapshot) -> bool:
        conversation_id = self._request.conversation_id
        state = await state_of(self._store, self._agent, conversation_id, snapshot, self._selected)
        with self._failing_as("THRESHOLD_FAILED", "the threshold"):
            found = await judged(self._compaction, state)
        self._judging = found.usage
        return found.is_due

    # --- summarising ----------------------------------------------------------------------------

    async def _summarize(self, messages: tuple[Message, ...]) -> BaseModel:
        context = self._context(messages)
        summarize = self._compaction.summarize
        if summarize is None:
            return await self._ask_model(context)
        with self._failing_as("SUMMARIZE_FAILED", "the summary", ProviderFailure):
            given = await asked(lambda: summarize(context), None)
            if isinstance(given, Summarized):
                self._usage = given.usage
                given = given.summary
            return self._fitting(given)

    async def _ask_model(self, context: SummaryContext) -> BaseModel:
        model = self._compaction.model or self._own_model(
            await chosen_model(self._store, self._agent, self._request.conversation_id)
        )
        self._summarizer = ModelSummarizer(
            self._compaction,
            self._providers.of(model),
            model,
            self._agent.price_list,
            context,
            self._request.attempt,
        )
        return await self._summarizer.summarize()

    def _own_model(self, chosen: str | None) -> Model:
        try:
            return self._agent.model_under(chosen)
        except ModelRefusedError:
            failure = Failure(failure_class=FailureClass.MODEL_UNAVAILABLE, code="UNKNOWN_MODEL")
            raise ProviderFailure(failure) from None

    def _fitting(self, given: BaseModel | Mapping[str, object]) -> BaseModel:
        schema = self._compaction.schema
        if isinstance(given, schema):
            return given
        return schema.model_validate(given.model_dump() if isinstance(given, BaseModel) else given)

    def _context(self, messages: tuple[Message, ...]) -> SummaryContext:
        leading = self._selected.leading_summary
        kept = (leading.metadata or {}).get(SUMMARY_KEY) if leading is not None else None
        try:
            previous = None if kept is None else self._compaction.schema.model_validate(kept)
        except ValidationError:
            # It was made with another schema: how it reads says the same.
            previous = None
        return SummaryContext(
            conversation_id=self._request.conversation_id,
            run_id=self._request.fence.run_id if self._request.fence else None,
            messages=messages,
            previous=previous,
            previous_text=leading.text if leading is not None else None,
        )

    def _content(self, summary: BaseModel) -> CompactedRange:
        leading = self._selected.leading_summary
        replaced = ((leading,) if leading else ()) + self._selected.compactable
        with self._failing_as("RENDER_FAILED", "the rendering"):
            text = self._compaction.render(summary)
            metadata: JsonObject = {
                SUMMARY_KEY: summary.model_dump(mode="json"),
                "instructions_version": self._compaction.instructions_version,
            }
            if not text.strip():
                raise ValueError("a summary without text")
            parts = (TextPart(text=text),)
            return CompactedRange(message_ids=tuple(message.id for message in replaced), parts=parts, metadata=metadata)

    def _failing_as(self, code: str, part: str, *passing: type[Exception]) -> AbstractContextManager[None]:
        return failing_as(code, "%s of the compaction of agent %s", part, self._agent.name, passing=passing)

    # --- keeping --------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Let the run tell that a summary is asked for."""
        fence, message_id = self._request.fence, self._request.assistant_message_id
        if fence is None or message_id is None:
            return
        operation = Operation(
            operation_id=f"{fence.run_id[:200]}:{fence.token}:compaction:{self._request.attempt}:{_try()}",
            kind=OperationKind.COMPACTION,
            phase=OperationPhase.STARTED,
            started_at=utc_now(),
        )
        start = CompactionStart(fence=fence, assistant_message_id=message_id, operation=operation)
        written = await persist(lambda: self._store.begin_compaction(start, utc_now()))
        tell(self._bus, written.events)
        self._operation = operation

    async def _keep(self, content: CompactedRange) -> CompactOutcome:
        data = content.model_dump_json().encode()
        conversation_id = self._request.conversation_id
        try:
            blob = await persist(lambda: self._store.put_blob(conversation_id, data, JSON, utc_now()))
            outcome = await self._end(AttemptEnd.READY, None)
        except asyncio.CancelledError:
            return await self._cut_short()
        return outcome.model_copy(update={"blob": blob, "replaced": len(content.message_ids)})

    async def _cut_short(self) -> CompactOutcome:
        """The activity was cancelled. Only an abort ends the attempt; a worker's shutdown moves it elsewhere."""
        if await why_cut(self._store, self._request.fence) is not Cut.ABORT:
            raise asyncio.CancelledError
        return await self._end(AttemptEnd.CANCELLED, None)

    async def _end(self, end: AttemptEnd, failure: Failure | None) -> CompactOutcome:
        """Store how the attempt ended and what it spent, with its run or, without one, in the ledger alone."""
        usage = add_usage(self._judging, self._summarizer.usage if self._summarizer is not None else self._usage)
        evidence = self._evidence(end, usage, failure)
        now = utc_now()
        if self._operation is not None:
            await self._finish(end, usage, evidence, now)
        elif self._request.fence is None:
            key = f"{self._request.summary_id[:200]}:{self._request.attempt}:{_try()}"
            await persist(
                lambda: self._store.append_event(
                    self._request.conversation_id, LedgerKind.COMPACTION_FINISHED, evidence, now, key
                )
            )
        return CompactOutcome(end=end, usage=usage, failure=failure)

    async def _finish(self, end: AttemptEnd, usage: Usage | None, evidence: JsonObject, now: datetime) -> None:
        fence, message_id, operation = self._request.fence, self._request.assistant_message_id, self._operation
        if fence is None or message_id is None or operation is None:
            return
        finish = CompactionFinish(
            fence=fence,
            assistant_message_id=message_id,
            operation=operation.model_copy(update={"phase": _PHASES[end], "finished_at": now}),
            usage=usage,
            evidence=evidence,
        )
        written = await persist(lambda: self._store.finish_compaction(finish, utc_now()))
        tell(self._bus, written.events)

    def _evidence(self, end: AttemptEnd, usage: Usage | None, failure: Failure | None) -> JsonObject:
        """What the ledger keeps of an attempt: identities, counts and codes."""
        fence = self._request.fence
        model = self._summarizer.model if self._summarizer is not None else None
        return {
            "run_id": fence.run_id if fence is not None else None,
            "summary_id": self._request.summary_id,
            "attempt": self._request.attempt,
            "outcome": end.value,
            "compactable": len(self._selected.compactable),
            "provider": model.reported_provider if model is not None else None,
            "model": model.name if model is not None else None,
            "instructions_version": self._compaction.instructions_version,
            "usage": usage.model_dump(mode="json", exclude_none=True) if usage is not None else None,
            "failure": failure.model_dump(mode="json", exclude_none=True) if failure is not None else None,
        }


def _try() -> int:
    """Which try of the activity this is."""
    return activity.info().attempt
