"""Compaction in a lane: when it is made, that it meets no conflict, and who is told.

Before the first step of a run it is made because the agent wants it; between runs because somebody asked. An
activity makes the summary, which takes long; a summary lands only if the lane decided nothing meanwhile, and
else the attempt is made again from a fresh look. While a wish waits, or is carried out, no run starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from turnlane.records.base import derived_id
from turnlane.records.commands import Compact, Refusal
from turnlane.records.compaction import (
    AttemptEnd,
    CompactAttempt,
    CompactionResult,
    CompactOutcome,
    CompactReply,
    CompactRequest,
)
from turnlane.records.errors import ConversationPurgedError, LaneClosingError, NoCompactionError, TurnlaneError
from turnlane.records.lane import CompactionFacts, LaneRun
from turnlane.records.messages import Message, MessageStatus, Role
from turnlane.records.mutations import Landing
from turnlane.records.runs import RunState
from turnlane.records.usage import Usage, add_usage
from turnlane.workflows.calls import as_failure, failure_behind
from turnlane.workflows.core import LaneCore
from turnlane.workflows.heeding import has_stopped
from turnlane.workflows.recent import Recent
from turnlane.workflows.until import until

COMPACT = "compact"
REMEMBERED_REPLIES = 16
GRACE_SECONDS = 60.0

COMPACT_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10), maximum_attempts=5
)
"""For lost workers only: whatever a provider or an application does wrong comes back as data."""

_RESULTS = {
    AttemptEnd.NOT_NEEDED: CompactionResult.NOT_NEEDED,
    AttemptEnd.NOTHING: CompactionResult.NOTHING,
    AttemptEnd.FAILED: CompactionResult.FAILED,
    AttemptEnd.CANCELLED: CompactionResult.CANCELLED,
    AttemptEnd.STALE: CompactionResult.CANCELLED,
}


@dataclass
class _Wish:
    """A compaction that somebody asked for; all who ask before it is made share it."""

    number: int
    force: bool = False
    reply: CompactReply | None = None


class Compactor:
    """Compacts the conversation of a lane."""

    def __init__(self, core: LaneCore) -> None:
        self._core = core
        self._wish: _Wish | None = None
        self._current: _Wish | None = None
        self._wishes: Recent[int, _Wish] = Recent(REMEMBERED_REPLIES)

    # --- before a run ---------------------------------------------------------------------------

    def is_due(self, run: LaneRun) -> bool:
        """Whether the run is about to begin its first step, and the agent compacts before that."""
        facts, progress = self._facts, self._core.progress_of(run)
        if facts is None or not facts.automatic or run.state is not RunState.RUNNING:
            return False
        if progress is None or progress.compacted or progress.complete is not None:
            return False
        return (progress.step, progress.attempt) == (0, 1)

    async def before_first_step(self, run: LaneRun) -> None:
        """Compact for a run, once. Whatever comes of it, the run goes on: it may fit as it is."""
        core = self._core
        await self._make(run, force=False)
        progress = core.progress_of(run)
        if progress is not None:
            core.progress = progress.model_copy(update={"compacted": True})

    # --- when somebody asks ---------------------------------------------------------------------

    @property
    def may_begin(self) -> bool:
        """Whether a wish waits and no run is in its way."""
        core = self._core
        return self._wish is not None and core.is_open and core.head.live is None and not core.is_closing

    async def carry_out(self) -> None:
        """Fulfil the wish that waits, if one does, and let the next run start."""
        core, wish = self._core, self._wish
        if wish is None or not self.may_begin:
            return
        self._wish, self._current = None, wish
        reply = await self._make(None, force=wish.force)
        wish.reply = reply.model_copy(update={"number": wish.number})
        self._current, core.is_held = None, self._wish is not None
        core.schedule()

    async def ask(self, request: CompactRequest) -> CompactReply:
        """Compact at once, or as soon as the run in flight has ended; answers when that is done, or `again`."""
        core = self._core
        await core.opened()
        wish = self._wished(request)
        if wish.reply is None and core.waiters.count < core.waiters.limit:
            await self._stay(wish)
        if core.outbox.lost is not None:
            raise as_failure(core.outbox.lost)
        if wish.reply is None and core.is_closing:
            raise as_failure(LaneClosingError("the lane is closing; try again"))
        return wish.reply or CompactReply(again=True, number=wish.number, version=core.head.version)

    def objection(self) -> TurnlaneError | None:
        """Why the lane compacts for nobody, as far as it knows the agent."""
        core = self._core
        if core.head.purged:
            return ConversationPurgedError("the conversation was purged")
        if core.facts is not None and core.facts.compaction is None:
            return NoCompactionError("the conversation's agent has no compaction")
        if core.is_closing:
            return LaneClosingError("the lane is closing; try again")
        return None

    def _wished(self, request: CompactRequest) -> _Wish:
        known = self._wishes.get(request.number) if request.number is not None else None
        if known is not None:
            return known
        core = self._core
        if core.outbox.lost is not None:
            raise as_failure(core.outbox.lost)
        if self._facts is None:
            raise as_failure(self.objection() or NoCompactionError("there is nothing to compact, or nobody to do it"))
        if self._current is not None and self._current.force >= request.force:
            return self._current
        if self._wish is None:
            self._wish = self._wishes[core.head.seq] = _Wish(number=core.head.seq)
        self._wish.force |= request.force
        core.is_held = True
        return self._wish

    async def _stay(self, wish: _Wish) -> None:
        core = self._core

        def may_leave() -> bool:
            is_leaving = core.is_draining and not core.executing
            return wish.reply is not None or is_leaving or core.is_closing or core.outbox.lost is not None

        core.waiters.count += 1
        try:
            await until(may_leave, timeout=core.settings.wait_seconds, timeout_summary="patience of those who wait")
        except TimeoutError:
            return
        finally:
            core.waiters.count -= 1

    # --- making it ------------------------------------------------------------------------------

    @property
    def _facts(self) -> CompactionFacts | None:
        return self._core.facts.compaction if self._core.facts is not None else None

    async def _make(self, run: LaneRun | None, *, force: bool) -> CompactReply:
        """Make attempts until one meets no conflict. What a conflict left is not used again."""
        core, facts = self._core, self._facts or CompactionFacts()
        reply = CompactReply(outcome=CompactionResult.CANCELLED)
        usage: Usage | None = None
        for attempt in range(1, facts.max_attempts + 1):
            await core.stored()
            if not self._may_go_on(run):
                return reply
            seq = core.head.seq
            summary_id = derived_id("sum", core.conversation_id, str(core.epoch), str(seq))
            outcome = await self._attempt(run, attempt, summary_id, force=force)
            core.facts = outcome.facts or core.facts
            usage = add_usage(usage, outcome.usage)
            reply = CompactReply(
                outcome=_RESULTS.get(outcome.end, CompactionResult.CONFLICT),
                attempts=attempt,
                version=core.head.version,
                usage=usage,
                failure=outcome.failure,
            )
            if outcome.end is not AttemptEnd.READY or not self._may_go_on(run):
                return reply
            if core.head.seq == seq:
                return await self._apply(outcome, summary_id, reply)
        return reply

    def _may_go_on(self, run: LaneRun | None) -> bool:
        """Whether what the compaction is for still stands: its run runs, or none does."""
        core = self._core
        if run is not None:
            return not has_stopped(core, run)
        return core.outbox.lost is None and core.head.live is None and not core.head.purged and not core.is_closing

    async def _attempt(self, run: LaneRun | None, attempt: int, summary_id: str, *, force: bool) -> CompactOutcome:
        core, facts = self._core, self._facts or CompactionFacts()
        request = CompactAttempt(
            agent=core.head.agent or "",
            conversation_id=core.conversation_id,
            summary_id=summary_id,
            attempt=attempt,
            fence=core.fence(run, core.progress, attempt) if run is not None and core.progress is not None else None,
            assistant_message_id=run.assistant_message_id if run is not None else None,
            force=force,
            facts_digest=core.facts.digest if core.facts else None,
        )
        handle = workflow.start_activity(
            COMPACT,
            request,
            result_type=CompactOutcome,
            start_to_close_timeout=timedelta(seconds=facts.seconds + GRACE_SECONDS),
            heartbeat_timeout=timedelta(seconds=core.settings.heartbeat_seconds),
            retry_policy=COMPACT_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary="compaction",
        )
        # The run's name lets an interrupt reach the activity; without a run only the end of the lane does.
        core.activities, core.activities_of = [handle], run.id if run is not None else ""
        core.is_compacting = True
        core.tell()
        try:
            if run is None:
                await until(lambda: handle.done() or not self._may_go_on(None))
                if not handle.done():
                    handle.cancel()
            outcome: CompactOutcome = await handle
        except ActivityError as error:
            outcome = _attempt_error(error)
        # Not in a `finally`: a workflow that leaves a worker's cache is torn down outside its event loop.
        core.activities = []
        core.is_compacting = False
        core.tell()
        return outcome

    async def _apply(self, outcome: CompactOutcome, summary_id: str, reply: CompactReply) -> CompactReply:
        """Put the summary in its place, and answer when it is there."""
        core = self._core
        now = workflow.now()
        summary = Message(
            id=summary_id,
            conversation_id=core.conversation_id,
            role=Role.SUMMARY,
            status=MessageStatus.COMMITTED,
            parts=(),
            created_at=now,
            updated_at=now,
        )
        command = Compact(expected_version=core.head.version, message_ids=(), summary=summary, blob=outcome.blob)
        answers: list[Landing | TurnlaneError] = []
        decision = core.decide(command, answers.append, answers.append)
        if isinstance(decision, Refusal):
            return reply
        await until(lambda: bool(answers))
        if isinstance(answers[0], TurnlaneError):
            return reply
        return reply.model_copy(
            update={
                "outcome": CompactionResult.APPLIED,
                "version": answers[0].version,
                "summary_id": summary_id,
            }
        )


def _attempt_error(error: ActivityError) -> CompactOutcome:
    failure = failure_behind(error)
    return CompactOutcome(end=AttemptEnd.CANCELLED if failure is None else AttemptEnd.FAILED, failure=failure)
