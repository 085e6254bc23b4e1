"""The lane: the workflow that runs one conversation, id `lane/<conversation_id>`.

Handlers put inputs into the inbox or ask the reducer; three coroutines do the rest: the pump admits,
the mirror commits, the run loop works on the live run. The main coroutine opens the lane, watches for
the moments at which it may rest, and is the only one that continues as new or ends.
"""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from turnlane.records.admissions import Input, SubmitReply
    from turnlane.records.errors import (
        ConversationPurgedError,
        InvalidInputError,
        LaneClosingError,
        LaneSupersededError,
        QueueFullError,
        TurnlaneError,
    )
    from turnlane.records.lane import (
        AbortReason,
        AdmissionQuery,
        LaneHead,
        LaneReport,
        LaneStart,
        RunLine,
        WaitReply,
    )
    from turnlane.workflows.admission import Admissions, too_large
    from turnlane.workflows.arguments import (
        SubmitArgument,
        WaitArgument,
    )
    from turnlane.workflows.calls import as_failure
    from turnlane.workflows.carrying import room_beside, within
    from turnlane.workflows.compaction import Compactor
    from turnlane.workflows.control import Control
    from turnlane.workflows.controlling import Controlling
    from turnlane.workflows.core import LaneCore, Pending
    from turnlane.workflows.deliveries import Deliveries
    from turnlane.workflows.details import details, run_lines
    from turnlane.workflows.opening import open_lane
    from turnlane.workflows.paging import keep_pages
    from turnlane.workflows.responding import Responding, admitted
    from turnlane.workflows.run_loop import RunLoop
    from turnlane.workflows.until import until
    from turnlane.workflows.waiting import Waiting

AGENT_ATTRIBUTE = SearchAttributeKey.for_keyword("TurnlaneAgent")
STATE_ATTRIBUTE = SearchAttributeKey.for_keyword("TurnlaneState")

MAX_INBOX = 4096
MAX_REOPENS = 5

FRESH = LaneStart()
"""What a start without an argument means."""


# The error of a start argument that does not fit: any other failure of a task is tried again.
@workflow.defn(name="ConversationLane", failure_exception_types=[InvalidInputError])
class ConversationLane(Controlling, Responding):
    """One conversation. See the module."""

    @workflow.init
    def __init__(self, start: LaneStart = FRESH) -> None:
        self._start = start
        # An id longer than a conversation's cannot be one: cut, it does not fit its workflow and is refused.
        named = workflow.info().workflow_id.removeprefix("lane/")[:256]
        self._core = LaneCore(start.conversation_id or named, start)
        self._admissions = Admissions(self._core)
        self._compactor = Compactor(self._core)
        self._runs = RunLoop(self._core, self._compactor)
        self._waiting = Waiting(self._core)
        self._control = Control(self._core, self._waiting)
        self._deliveries = Deliveries(self._core, self._runs.round.heard)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_telling = False

    # --- the main coroutine ---------------------------------------------------------------------

    @workflow.run
    async def run(self, start: LaneStart = FRESH) -> LaneReport:
        """Run the conversation until it rests. Everything that was accepted is in the store by then."""
        if workflow.info().workflow_id != f"lane/{self._core.conversation_id}":
            raise as_failure(InvalidInputError("a lane's workflow id is lane/<conversation_id>"))
        self._core.tell = self._tell_soon
        opening = asyncio.create_task(open_lane(self._core, start))
        try:
            await asyncio.shield(opening)
            return await self._live()
        except TurnlaneError as error:
            raise as_failure(error) from error
        except asyncio.CancelledError:
            await self._shut_down(opening)
            raise

    async def _live(self) -> LaneReport:
        self._start_working()
        while True:
            await self._wait_for_a_resting_point()
            report = await self._rest()
            if report is not None:
                return report

    def _start_working(self) -> None:
        core = self._core
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(core.outbox.mirror(lambda: core.epoch, lambda: core.settings, core.learned)),
                asyncio.create_task(self._admissions.pump()),
                asyncio.create_task(self._work()),
            ]

    def _tell_soon(self) -> None:
        """Have the current details written once, however much changes before the loop turns."""
        if not self._is_telling:
            self._is_telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        workflow.set_current_details(details(self._core))

    async def _rest(self) -> LaneReport | None:
        """Do what the moment asks: reopen, renew, close, or (None) go on."""
        core = self._core
        for task in self._tasks:
            if task.done():
                task.result()
        if core.outbox.lost is not None:
            return await self._reopen_or_end()
        if core.head.purged:
            return await self._close("purged")
        if self._must_renew():
            await self._renew()
        elif self._idle_for_long():
            return await self._close("idle")
        return None

    async def _wait_for_a_resting_point(self) -> None:
        """Sleep until something needs the main coroutine. The idle timer is one for many turns: it is not
        cancelled when work comes, it looks at the clock when it fires."""
        core = self._core

        def called() -> bool:
            return (
                core.outbox.lost is not None
                or core.head.purged
                or self._must_renew()
                or any(task.done() for task in self._tasks)
            )

        idle = core.settings.idle_close_seconds
        timeout = None
        if idle is not None:
            rested = (workflow.now() - core.last_active).total_seconds()
            timeout = max(idle - rested, 1.0) if core.is_idle else idle
        try:
            await until(called, timeout=timeout, timeout_summary="closes when idle")
        except TimeoutError:
            return

    def _idle_for_long(self) -> bool:
        core = self._core
        idle = core.settings.idle_close_seconds
        rested = (workflow.now() - core.last_active).total_seconds()
        return idle is not None and core.is_idle and workflow.all_handlers_finished() and rested >= idle

    # --- working --------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Run the live run whenever there is one."""
        core = self._core
        while core.outbox.lost is None:
            await until(lambda: (core.head.live is not None or self._compactor.may_begin) and not core.is_draining)
            core.executing = True
            self._show_agent()
            try:
                await self._compactor.carry_out()
                await self._runs.execute()
            finally:
                core.executing = False
            if core.continue_as_new_is_urgent:
                core.is_draining = True

    def _show_agent(self) -> None:
        """Set the search attributes, once in the life of a workflow: each upsert is a history event."""
        core = self._core
        if not core.settings.search_attributes or core.head.agent is None:
            return
        if workflow.info().typed_search_attributes.get(AGENT_ATTRIBUTE) != core.head.agent:
            workflow.upsert_search_attributes(
                [AGENT_ATTRIBUTE.value_set(core.head.agent), STATE_ATTRIBUTE.value_set("open")]
            )

    # --- leaving --------------------------------------------------------------------------------

    def _must_renew(self) -> bool:
        core = self._core
        if core.is_draining:
            return True
        return core.is_open and core.continue_as_new_is_due and core.head.live is None

    async def _renew(self) -> None:
        """Continue as new: let handlers finish, then hand the whole state on."""
        core = self._core
        core.is_draining = True
        await until(lambda: self._may_leave() or core.outbox.lost is not None)
        if core.outbox.lost is not None:
            return
        progress = self._runs.round.carried()
        head = within(core.head, min(core.settings.carried_head_bytes, room_beside(progress, core.facts)))
        workflow.continue_as_new(
            LaneStart(
                conversation_id=core.conversation_id,
                epoch=core.epoch,
                head=head,
                progress=progress if head is not None else None,
                facts=core.facts,
            )
        )

    def _may_leave(self) -> bool:
        return self._core.is_settled and workflow.all_handlers_finished()

    async def _reopen_or_end(self) -> LaneReport:
        """The store refused this incarnation: a fresh one opens from what the store has.

        A task of ours that ran twice, because a worker or the server lost it midway, may have decided
        otherwise the second time: what the first time stored stands. Signals that only this workflow has are
        taken along, and runs go on without waiting for a caller. Ends only for good reasons: a purge, or too
        many fresh starts in a row that stored nothing.
        """
        core = self._core
        await until(workflow.all_handlers_finished)
        error = core.outbox.lost or LaneSupersededError("the lane was superseded")
        if isinstance(error, ConversationPurgedError):
            return self._report("purged")
        reopened = 1 if core.outbox.has_stored else self._start.reopened + 1
        if reopened > MAX_REOPENS:
            raise as_failure(error)
        try:
            pages, inbox = await keep_pages(core)
        except ConversationPurgedError:
            return self._report("purged")
        workflow.continue_as_new(
            LaneStart(
                conversation_id=core.conversation_id,
                inbox=inbox,
                reopened=reopened,
                interrupts=tuple(core.carried_interrupts),
                pages=pages,
            )
        )

    async def _close(self, outcome: str) -> LaneReport | None:
        """End the workflow, unless an input came in the meantime; the next one starts a new lane."""
        core = self._core
        await until(lambda: self._may_leave() or core.outbox.lost is not None)
        if core.outbox.lost is not None or core.head.runs:
            return None
        if core.settings.search_attributes:
            workflow.upsert_search_attributes([STATE_ATTRIBUTE.value_set(outcome)])
        return self._report(outcome)

    async def _shut_down(self, opening: asyncio.Task[None]) -> None:
        """The workflow was cancelled: the live run ends as shut down, what waits stays queued in the store.

        A lane that was still opening opens first, since signals that came by then are admitted all the same.
        """
        core = self._core
        core.is_closing = True
        try:
            await opening
        except TurnlaneError as error:
            core.outbox.lose(error)
        self._start_working()
        # A lane that was moving to a fresh history does not move any more: its run ends here.
        core.is_draining = False
        core.ask_to_stop(AbortReason.SHUTDOWN)
        await until(lambda: (core.head.live is None and self._may_leave()) or core.outbox.lost is not None)

    def _report(self, outcome: str) -> LaneReport:
        return LaneReport(conversation_id=self._core.conversation_id, outcome=outcome, version=self._core.head.version)

    # --- inputs ---------------------------------------------------------------------------------

    @workflow.update(name="submit")
    async def submit(self, given: SubmitArgument) -> SubmitReply:
        """Admit an input; answers when the admission is durable, and with `stay` when its run has ended."""
        reply = await admitted(self._core, given)
        if not given.stay:
            return reply
        waited = await self._waiting.for_run(reply.admission.run_id)
        return SubmitReply(admission=reply.admission, terminal=waited.terminal)

    @submit.validator
    def _check_submit(self, given: SubmitArgument) -> None:
        error = self._objection(given)
        if error is not None:
            raise as_failure(error)

    @workflow.signal(name="submit")
    async def submit_signal(self, given: SubmitArgument) -> None:
        """Admit an input for a caller that cannot wait. A refusal is told in the ledger."""
        self._core.inbox.append(Pending(given, is_signal=True))

    def _objection(self, given: Input) -> TurnlaneError | None:
        """What is wrong with an input whatever the agent: found without a trace in the history."""
        core = self._core
        oversize = too_large(given)
        if oversize is not None:
            return oversize
        if core.head.purged:
            return ConversationPurgedError("the conversation was purged")
        if core.is_closing:
            return LaneClosingError("the lane is closing; try again")
        if len(core.inbox) >= MAX_INBOX:
            return QueueFullError("too many inputs wait for admission; try again")
        return None

    @workflow.update(name="wait")
    async def wait(self, request: WaitArgument) -> WaitReply:
        """Answer when a run has ended, or `again`."""
        return await self._waiting.for_run(request.run_id)

    # --- looking --------------------------------------------------------------------------------

    @workflow.query(name="head")
    def query_head(self) -> LaneHead:
        """The lane head, without the receipts."""
        return self._core.head.model_copy(update={"receipts": ()})

    @workflow.query(name="runs")
    def query_runs(self) -> list[RunLine]:
        """The active runs, in queue order."""
        return run_lines(self._core)

    @workflow.query(name="admission")
    def query_admission(self, key: str) -> AdmissionQuery:
        """What became of an input that was just sent, by its key."""
        return self._admissions.look_up(key)

    @workflow.query(name="end")
    def query_end(self, run_id: str) -> WaitReply:
        """How a run ended, as far as the lane remembers: for callers whom `wait` sent away."""
        return self._waiting.end_of(run_id)
