"""The core of a lane: its state, and the one place where transitions are decided and queued."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from temporalio import workflow

from turnlane.records.admissions import Admission, Input, SubmitReply, Terminal
from turnlane.records.base import JsonObject
from turnlane.records.commands import Acquire, Cancel, Command, Interrupt, Note, Recover, Settle
from turnlane.records.durable import Suspension
from turnlane.records.errors import TurnlaneError
from turnlane.records.lane import (
    AbortReason,
    AgentFacts,
    HeadReceipt,
    LaneHead,
    LaneRun,
    LaneSettings,
    LaneStart,
    RunProgress,
    RunRequest,
)
from turnlane.records.ledger import LedgerKind
from turnlane.records.mutations import Landing
from turnlane.records.runs import ENDINGS, RunState, TerminalReason
from turnlane.records.steps import Fence
from turnlane.workflows.calls import Outage
from turnlane.workflows.decisions import Decision, Transition
from turnlane.workflows.ending import RunEnd
from turnlane.workflows.finished import finished_receipt
from turnlane.workflows.offers import absorptions, observe, observe_end
from turnlane.workflows.outbox import OnCommit, OnLoss, Outbox
from turnlane.workflows.recent import Recent
from turnlane.workflows.reducer import reduce
from turnlane.workflows.until import until

REMEMBERED_ENDS = 64
REMEMBERED_ADMISSIONS = 128


@dataclass
class Pending:
    """An input that waits for its admission; `reply` or `error` is set when it is decided and durable.

    `receipt` is that of the decision: by the time it is durable, later ones may have pushed it out of the head.
    """

    input: Input
    is_signal: bool
    receipt: HeadReceipt | None = None
    reply: SubmitReply | None = None
    error: TurnlaneError | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the caller may be answered."""
        return self.reply is not None or self.error is not None


@dataclass
class Waiters:
    """Who waits for a result: bounded, so that watching never holds up writing."""

    limit: int = 6
    count: int = 0
    round: int = 0


class LaneCore:
    """Everything a lane knows, and how it changes.

    The head changes in `decide` and nowhere else; each change is queued for the store in the same breath.
    """

    def __init__(self, conversation_id: str, start: LaneStart) -> None:
        self.conversation_id = conversation_id
        self.head = start.head or LaneHead(conversation_id=conversation_id)
        self.progress = start.progress
        self.facts: AgentFacts | None = start.facts
        self.settings = LaneSettings()
        self.epoch = 0
        self.is_open = False
        self.is_draining = False
        self.is_closing = False
        self.is_held = False
        self.outage = Outage(lambda: self.tell())
        self.outbox = Outbox(conversation_id, self.outage)
        self.landed = 0
        self.inbox: deque[Pending] = deque(Pending(item, is_signal=True) for item in start.inbox)
        self.unloaded = start.pages
        self.deciding: list[Pending] = []
        self.carried: list[Input] = []
        self.carried_interrupts: list[RunRequest] = []
        self.ends: Recent[str, Terminal] = Recent(REMEMBERED_ENDS)
        self.admitted: Recent[str, Admission] = Recent(REMEMBERED_ADMISSIONS)
        self.refused: Recent[str, str] = Recent(REMEMBERED_ADMISSIONS)
        self.waiters = Waiters()
        self.last_active = workflow.now()
        self.last_failure = ""
        self.executing = False
        self.may_be_settled = False
        self.is_compacting = False
        self.waits: dict[str, tuple[str, Suspension]] = {}
        self.activities: list[workflow.ActivityHandle[Any]] = []
        self.activities_of = ""
        self.tell: Callable[[], None] = lambda: None

    # --- waiting --------------------------------------------------------------------------------

    async def opened(self) -> None:
        """Wait until the lane has opened its conversation, or lost it."""
        await until(lambda: self.is_open or self.outbox.lost is not None)

    async def stored(self) -> None:
        """Wait until everything decided is in the store, or lost."""
        await until(lambda: self.outbox.is_empty or self.outbox.lost is not None)

    # --- deciding -------------------------------------------------------------------------------

    def decide(self, command: Command, on_commit: OnCommit | None = None, on_loss: OnLoss | None = None) -> Decision:
        """Ask the reducer; if it says yes, take over the new head and queue the mutation."""
        decision = reduce(self.head, command, workflow.now())
        if isinstance(decision, Transition):
            self.head = decision.head
            self.outbox.put(decision.mutation, decision.run_id, on_commit, on_loss)
            self.tell()
        return decision

    def learned(self, run_id: str | None, landing: Landing) -> None:
        """Take over the version and revision the store gave, plus what it has not seen yet."""
        revision = None if landing.revision is None or run_id is None else landing.revision
        revisions = {run_id: revision + self.outbox.outstanding(run_id)} if run_id and revision is not None else {}
        # What steps write themselves is heard of on another way than commits, and may be heard of sooner.
        self.landed = max(self.landed, landing.version)
        self.head = observe(self.head, self.landed + self.outbox.outstanding_versions, revisions)
        self.last_active = workflow.now()
        self.tell()

    def hear_revision(self, run_id: str, revision: int) -> None:
        """Take over a revision that the store gave to an activity's write, if the run is not ahead of it by now."""
        run = self.head.run(run_id)
        if run is not None and run.revision < revision:
            self.head = observe(self.head, self.head.version, {run_id: revision})

    def note(self, kind: str, payload: JsonObject) -> None:
        """Append a ledger event, unless there is no conversation to append it to."""
        if not self.head.purged:
            self.decide(Note(kind=kind, payload=payload))

    # --- the live run ---------------------------------------------------------------------------

    def fresh(self, run: LaneRun) -> LaneRun | None:
        """The run as it is now, if it is still the one that is worked on."""
        live = self.head.live
        return live if live is not None and live.id == run.id and live.token == run.token else None

    def progress_of(self, run: LaneRun) -> RunProgress | None:
        """How far the run got, if it is the one that got anywhere."""
        progress = self.progress
        return progress if progress is not None and progress.run_id == run.id else None

    def fence(self, run: LaneRun, progress: RunProgress, attempt: int) -> Fence:
        """The right to write for one attempt of the step that `progress` stands at."""
        return Fence(
            conversation_id=self.conversation_id,
            epoch=self.epoch,
            run_id=run.id,
            token=run.token,
            step=progress.step,
            attempt=attempt,
        )

    # --- the queue ------------------------------------------------------------------------------

    @property
    def owner_id(self) -> str:
        """Who executes runs here: this workflow run."""
        return workflow.info().run_id

    @property
    def continue_as_new_is_due(self) -> bool:
        """Whether the history is long enough to start a fresh one between two runs."""
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() >= self.settings.events_between_runs
        )

    @property
    def continue_as_new_is_urgent(self) -> bool:
        """Whether the history is so long that even a run in flight moves to a fresh one."""
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() >= self.settings.events_between_steps
        )

    def schedule(self) -> None:
        """Let the first waiting run start, if nothing is in its way."""
        if self.head.live is not None or self.is_closing or self.is_held or self.outbox.lost is not None:
            return
        queued = self.head.queued
        if not queued or self.continue_as_new_is_due:
            return
        run = queued[0]
        decision = self.decide(Acquire(run_id=run.id, owner_id=self.owner_id, resumes=run.started))
        if not isinstance(decision, Transition):
            raise AssertionError(f"the first run of the queue was refused: {decision}")
        if not run.started or self.progress_of(run) is None:
            self.progress = RunProgress(run_id=run.id)

    # --- ending runs ----------------------------------------------------------------------------

    def settle(self, run: LaneRun, end: RunEnd) -> None:
        """End the live run, and let the next one start in the same commit."""
        taken = tuple((item.run_id, item.input_id) for item in self.progress.taken) if self.progress else ()
        completed = ENDINGS[end.reason].state is RunState.COMPLETED
        command = Settle(
            run_id=run.id,
            token=run.token,
            reason=end.reason,
            policy_name=end.policy_name,
            control=end.control,
            failure=end.failure,
            absorb=absorptions(self.head, taken) if completed else (),
            asked=self.progress.asked if completed and self.progress else (),
        )
        absorbed = tuple(claim.run_id for claim in command.absorb)
        decision = self.decide(command, lambda result: self._ended(run, end, absorbed, result))
        if not isinstance(decision, Transition):
            raise AssertionError(f"the end of the live run was refused: {decision}")
        self._note_finished(run, end.reason)
        self.progress = None
        self.last_failure = end.failure.failure_class.value if end.failure else ""
        self.schedule()

    def take_end(self, run: LaneRun, landing: Landing) -> None:
        """Take over the end of the live run that its last step wrote, and let the next one start.

        What was decided about the run meanwhile the store did not heed, and says so: see `Landing`.
        """
        self.head = observe_end(self.head, run.id)
        self.learned(None, landing)
        self._ended(run, RunEnd(reason=TerminalReason.SUCCESS), (), landing)
        if self.progress_of(run) is not None:
            self.progress = None
        self.last_failure = ""
        self.schedule()

    def _note_finished(self, run: LaneRun, reason: TerminalReason) -> None:
        """Have the receipt of a run's invocation committed with its end."""
        if self.settings.invocations:
            receipt = finished_receipt(self.conversation_id, run, self.progress_of(run), reason)
            if receipt is not None:
                self.note(LedgerKind.INVOCATION_FINISHED, receipt)

    def _ended(self, run: LaneRun, end: RunEnd, absorbed: tuple[str, ...], result: Landing) -> None:
        if result.revision is None:
            # It had ended by itself, of which the store knows more.
            return
        terminal = Terminal(
            conversation_id=self.conversation_id,
            run_id=run.id,
            assistant_message_id=run.assistant_message_id,
            state=ENDINGS[end.reason].state,
            reason=end.reason,
            snapshot_version=result.version,
            policy_name=end.policy_name,
            failure=end.failure,
        )
        # Kept for those who ask soon; the store knows the rest.
        for run_id in (run.id, *absorbed):
            self.ends[run_id] = terminal

    def interrupt(
        self, command: Interrupt, on_commit: OnCommit | None = None, on_loss: OnLoss | None = None
    ) -> Decision:
        """Ask a run to stop: first durably, and only then are its activities told."""

        def committed(result: Landing) -> None:
            if result.revision is not None:
                self.cancel_activities(command.run_id)
            if on_commit is not None:
                on_commit(result)

        return self.decide(command, committed, on_loss)

    def ask_to_stop(self, reason: AbortReason, except_run: str | None = None) -> None:
        """Ask the live run to stop, unless it was asked before: the first reason stands."""
        live = self.head.live
        if live is not None and live.id != except_run and live.state is RunState.RUNNING:
            self.interrupt(Interrupt(run_id=live.id, reason=reason))

    def cancel_activities(self, run_id: str) -> None:
        """Tell the activities of a run to stop; the run loop waits until they really have."""
        if self.activities_of == run_id:
            for handle in self.activities:
                handle.cancel()

    def give_up(self, command: Cancel | Recover, on_commit: OnCommit, on_loss: OnLoss) -> Decision:
        """End a run without executing it further: a queued one is cancelled, any one abandoned."""
        run = self.head.run(command.run_id)
        reason = TerminalReason.CANCELLED if isinstance(command, Cancel) else TerminalReason.ABANDONED

        def committed(result: Landing) -> None:
            self.cancel_activities(command.run_id)
            if run is not None:
                self._ended(run, RunEnd(reason=reason), (), result)
            on_commit(result)

        decision = self.decide(command, committed, on_loss)
        if run is not None and isinstance(decision, Transition):
            self._note_finished(run, reason)
        self.schedule()
        return decision

    # --- rest -----------------------------------------------------------------------------------

    @property
    def unstored_signals(self) -> tuple[Input, ...]:
        """The signalled inputs that nobody but this workflow has, those included that are being checked just now."""
        waiting = (*self.deciding, *self.inbox)
        return (*self.carried, *(item.input for item in waiting if item.is_signal and not item.is_answered))

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits or is being decided."""
        return not self.head.runs and not self.inbox and not self.deciding and self.outbox.is_empty

    @property
    def is_settled(self) -> bool:
        """Everything decided is durable and nothing is being decided: a safe point to leave."""
        return not self.inbox and not self.deciding and self.outbox.is_empty and not self.executing
