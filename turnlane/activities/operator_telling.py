"""Telling operators: the events of runs, made from what the store was given and answered.

Nobody is told of a commit but after it, and for a plain turn the store is not asked again. It is asked where a run
ends without a terminal event, and where it refused an end: what such a run spent is told all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Protocol

from turnlane.activities.clock import utc_now
from turnlane.activities.operator_sink import OperatorSink
from turnlane.activities.progress import Account, Progress
from turnlane.agent.models import Model
from turnlane.records.base import elapsed_ms
from turnlane.records.errors import StoreUnavailableError, TurnlaneError
from turnlane.records.events import RunStateEvent, TerminalEvent
from turnlane.records.mutations import CommitBatch, CommitOutcome, Mutation, PurgeConversation, SettleRun
from turnlane.records.operator_events import (
    ProviderIdentity,
    RunStarted,
    RunTerminal,
    StepFinished,
    run_span,
    step_span,
    trace_id,
)
from turnlane.records.runs import ENDINGS, FINAL_PHASES, Operation, OperationPhase, Run, RunState, TerminalReason
from turnlane.records.steps import Fence
from turnlane.records.usage import computed, stated
from turnlane.store.payloads import Committed
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)

_QUIET = {RunState.SUPERSEDED: TerminalReason.ABSORBED, RunState.ABANDONED: TerminalReason.ABANDONED}
"""The ends of which watchers are told the state only: another run answered, or the run was given up."""

LOOK_SECONDS = 2.0
"""How long a commit's answer waits at most for what only operators want to know."""


class Commits(Protocol):
    """What commits batches: a store, or one that tells operators besides."""

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        """Commit a batch."""
        ...


class ToldCommits:
    """Commits to a store, and tells operators of the runs that began and ended with it."""

    def __init__(self, store: Store, sink: OperatorSink) -> None:
        self._store = store
        self._sink = sink

    async def commit(self, batch: CommitBatch, now: datetime) -> Committed:
        """Commit a batch as the store does; nothing that goes wrong with telling changes the answer."""
        try:
            committed = await self._store.commit(batch, now)
        except TurnlaneError as error:
            # A store that does not answer is asked again; it refuses for good with anything else.
            if not isinstance(error, StoreUnavailableError):
                await self._tell_refused(batch)
            raise
        if committed.reply.outcome is CommitOutcome.APPLIED:
            await self._tell_applied(committed)
            self._tell_purged(batch, committed)
        else:
            await self._tell_refused(batch)
        return committed

    async def _tell_applied(self, committed: Committed) -> None:
        ended = {event.run_id for event in committed.events if isinstance(event, TerminalEvent)}
        for event in committed.events:
            if isinstance(event, TerminalEvent):
                tell_end(self._sink, event)
            elif isinstance(event, RunStateEvent) and event.state is RunState.RUNNING:
                self._sink.emit(_started(event))
            elif isinstance(event, RunStateEvent) and event.state in _QUIET and event.run_id not in ended:
                await self._tell_quiet_end(event, _QUIET[event.state])

    async def _tell_quiet_end(self, event: RunStateEvent, reason: TerminalReason) -> None:
        run = await self._look(event.conversation_id, event.run_id)
        event_id = f"{event.run_id}:terminal:{event.snapshot_version}"
        about = _about(event.conversation_id, event.run_id, event_id, event.emitted_at)
        usage = computed(run.usage if run is not None else None)
        self._sink.emit(RunTerminal(**about, state=event.state, reason=reason, usage=usage))

    def _tell_purged(self, batch: CommitBatch, committed: Committed) -> None:
        """Runs that ended in the commit that erased them: it is all that there is to tell of."""
        if not isinstance(batch.mutations[-1].effect, PurgeConversation):
            return
        versions = {result.seq: result.version for result in committed.reply.results}
        for mutation, effect in _ends(batch):
            event_id = f"{effect.run_id}:terminal:{versions[mutation.seq]}"
            self._sink.emit(_decided(batch.conversation_id, effect, event_id, None))

    async def _tell_refused(self, batch: CommitBatch) -> None:
        """The store refused ends that this lane decided: what those runs spent was spent."""
        for mutation, effect in _ends(batch):
            run = await self._look(batch.conversation_id, effect.run_id)
            # Epoch and place name the decision, whatever version the conversation has when it is refused again.
            event_id = f"{effect.run_id}:{batch.epoch}:terminal:{mutation.seq}"
            if run is not None and run.terminal_reason is not None:
                self._sink.emit(_end_of(run, event_id, utc_now()))
            else:
                self._sink.emit(_decided(batch.conversation_id, effect, event_id, run))

    async def _look(self, conversation_id: str, run_id: str) -> Run | None:
        """The run as the store has it; None if it has none, or does not say so in time."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                view = await self._store.load_run(conversation_id, run_id)
        except Exception as error:
            # Whatever it is: the commit came to what it came to.
            logger.warning("an end of a run is told without figures: the store failed with %s", type(error).__name__)
            return None
        return None if view is None else view.run


def _ends(batch: CommitBatch) -> Iterator[tuple[Mutation, SettleRun]]:
    for mutation in batch.mutations:
        if isinstance(mutation.effect, SettleRun):
            yield mutation, mutation.effect


def _about(conversation_id: str, run_id: str, event_id: str, at: datetime) -> dict[str, Any]:
    """What all events about a whole run have."""
    return {
        "event_id": event_id,
        "conversation_id": conversation_id,
        "run_id": run_id,
        "trace_id": trace_id(conversation_id, run_id),
        "span_id": run_span(conversation_id, run_id),
        "emitted_at": at,
    }


def _started(event: RunStateEvent) -> RunStarted:
    event_id = f"{event.run_id}:started:{event.snapshot_version}"
    about = _about(event.conversation_id, event.run_id, event_id, event.emitted_at)
    return RunStarted(**about, state=event.state, queue_wait_ms=event.queue_wait_ms)


def _terminal(event: TerminalEvent) -> RunTerminal:
    metrics = event.metrics
    return RunTerminal(
        **_about(event.conversation_id, event.run_id, event.event_id, event.emitted_at),
        state=ENDINGS[event.reason].state,
        reason=event.reason,
        policy_name=event.policy_name,
        failure=event.failure,
        usage=stated(metrics.usage if metrics is not None else None),
        duration_ms=metrics.duration_ms if metrics is not None else None,
        ttft_ms=metrics.ttft_ms if metrics is not None else None,
    )


def _end_of(run: Run, event_id: str, at: datetime) -> RunTerminal:
    """The end of a run as its record has it."""
    if run.terminal_reason is None:
        raise AssertionError("only a run that ended has an end")
    return RunTerminal(
        **_about(run.conversation_id, run.id, event_id, at),
        state=run.state,
        reason=run.terminal_reason,
        policy_name=run.terminal_policy_name,
        failure=run.failure,
        usage=computed(run.usage),
    )


def _decided(conversation_id: str, effect: SettleRun, event_id: str, run: Run | None) -> RunTerminal:
    """The end that was decided for a run, of which the store has less than an end, or nothing."""
    return RunTerminal(
        **_about(conversation_id, effect.run_id, event_id, utc_now()),
        state=ENDINGS[effect.reason].state if run is None else run.state,
        reason=effect.reason,
        policy_name=effect.policy_name,
        failure=effect.failure,
        usage=computed(None if run is None else run.usage),
    )


def tell_end(sink: OperatorSink, event: TerminalEvent) -> None:
    """Tell of the end of a run."""
    sink.emit(_terminal(event))


def tell_attempt(
    sink: OperatorSink, fence: Fence, model: Model, operation: Operation, progress: Progress, account: Account
) -> None:
    """Tell of an attempt of a step whose provider was called, unless it cost nothing.

    One that has no end went on elsewhere: its worker stopped, or another took its run.
    """
    if account.charged is None:
        return
    at = operation.finished_at or utc_now()
    event_id = f"{fence.publisher}:{fence.attempt}:step"
    spans = {
        "span_id": step_span(fence.conversation_id, event_id),
        "parent_span_id": run_span(fence.conversation_id, fence.run_id),
    }
    event = StepFinished(
        **_about(fence.conversation_id, fence.run_id, event_id, at) | spans,
        state=RunState.INTERRUPT_REQUESTED if progress.was_aborted else RunState.RUNNING,
        step=fence.step,
        attempt=fence.attempt,
        phase=operation.phase if operation.phase in FINAL_PHASES else OperationPhase.CANCELLED,
        model_id=model.name,
        usage=stated(account.charged),
        response=_response(model, progress),
        duration_ms=elapsed_ms(operation.started_at, at) or 0,
        ttft_ms=elapsed_ms(operation.started_at, operation.first_output_at),
    )
    sink.emit(event)


def _response(model: Model, progress: Progress) -> ProviderIdentity | None:
    finish = progress.finish
    response_id = (finish.response_id if finish else None) or progress.response_id
    provider = (finish.provider if finish else None) or model.reported_provider
    # A server that keeps to no protocol may give a number: no step fails for that.
    return ProviderIdentity(id=str(response_id), provider=provider) if response_id else None
