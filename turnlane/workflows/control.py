"""Control: what callers may ask of runs and of the conversation, answered when it is durable."""

from __future__ import annotations

from turnlane.records.commands import Cancel, Command, Interrupt, Purge, Recover, Refusal, RefusalCode, SetModel
from turnlane.records.errors import InvalidInputError, ModelRefusedError, RunConflictError, TurnlaneError
from turnlane.records.lane import AbandonRequest, ControlReply, ModelRequest, PurgeRequest, RunRequest
from turnlane.records.mutations import Landing
from turnlane.records.runs import RunState
from turnlane.records.steps import ModelCheck
from turnlane.workflows.admission import error_of
from turnlane.workflows.calls import CHECK_MODEL, as_failure, store_call
from turnlane.workflows.core import LaneCore
from turnlane.workflows.decisions import Decision
from turnlane.workflows.until import until
from turnlane.workflows.waiting import Waiting

Answer = Landing | TurnlaneError


def interrupt_quietly(core: LaneCore, request: RunRequest) -> None:
    """Ask the named run, or the one in flight, to stop, if it runs.

    What the store never hears of, because it refuses this incarnation of the lane, goes to the next one.
    """
    live = core.head.live
    run_id = request.run_id or (live.id if live is not None else None)
    if core.outbox.lost is not None:
        core.carried_interrupts.append(request.model_copy(update={"run_id": run_id}))
    elif run_id is not None:
        command = Interrupt(run_id=run_id, expected_revision=request.expected_revision)
        # Whoever takes the run up moves its revision: that the caller's was right has been seen by then.
        carried = RunRequest(run_id=run_id)
        core.interrupt(command, on_loss=lambda _: core.carried_interrupts.append(carried))


class Control:
    """Carries out control calls of a lane. A refusal is raised as the failure of the update."""

    def __init__(self, core: LaneCore, waiting: Waiting) -> None:
        self._core = core
        self._waiting = waiting

    async def interrupt(self, request: RunRequest) -> ControlReply:
        """Ask the named run, or the one in flight, to stop."""
        await self._core.opened()
        run_id = request.run_id or self._live_id()
        if run_id is None:
            raise as_failure(RunConflictError("no run is running", head_version=self._core.head.version))
        command = Interrupt(run_id=run_id, expected_revision=request.expected_revision)
        return await self._carry_out(command, run_id)

    async def interrupt_quietly(self, request: RunRequest) -> None:
        """The same for a caller that gets no answer: what cannot be done is not done."""
        await self._core.opened()
        await self._catch_up(request.run_id, request.expected_revision)
        interrupt_quietly(self._core, request)

    async def cancel(self, request: RunRequest) -> ControlReply:
        """End a run that still waits in the queue."""
        if request.run_id is None:
            raise as_failure(InvalidInputError("name the queued run to cancel"))
        command = Cancel(run_id=request.run_id, expected_revision=request.expected_revision)
        return await self._carry_out(command, request.run_id)

    async def abandon(self, request: AbandonRequest) -> ControlReply:
        """Give a run up, whatever its state."""
        if not request.stale_owner:
            raise as_failure(InvalidInputError("abandoning a run takes the statement that its owner is stale"))
        command = Recover(run_id=request.run_id, action="abandon", expected_revision=request.expected_revision)
        return await self._carry_out(command, request.run_id)

    async def purge(self, request: PurgeRequest) -> ControlReply:
        """Delete the conversation for ever."""
        return await self._carry_out(Purge(expected_version=request.expected_version), None)

    async def choose_model(self, request: ModelRequest) -> ControlReply:
        """Choose the model of the runs to come, if the conversation's agent has it."""
        await self._core.opened()
        if request.model is not None and self._core.outbox.lost is None:
            await self._check_model(request.model, request.agent)
        return await self._carry_out(SetModel(model=request.model), None)

    async def _check_model(self, key: str, agent: str | None) -> None:
        core = self._core
        check = ModelCheck(conversation_id=core.conversation_id, agent=core.head.agent or agent, model=key)
        try:
            is_known = await store_call(CHECK_MODEL, check, bool, core.settings, core.outage)
        except TurnlaneError as error:
            raise as_failure(error) from error
        if not is_known:
            raise as_failure(ModelRefusedError("the agent has no model of this key", key=key, reason="unknown-model"))

    def _live_id(self) -> str | None:
        live = self._core.head.live
        return live.id if live is not None else None

    async def _carry_out(self, command: Command, run_id: str | None) -> ControlReply:
        """Decide a command and answer when it is durable."""
        await self._core.opened()
        if self._core.outbox.lost is not None:
            raise as_failure(self._core.outbox.lost)
        await self._catch_up(run_id, getattr(command, "expected_revision", None))
        answers: list[Answer] = []
        decision = self._decide(command, answers)
        if isinstance(decision, Refusal) and isinstance(command, Purge) and await self._waiting.catch_up():
            decision = self._decide(command, answers)
        if isinstance(decision, Refusal):
            raise as_failure(await self._refusal(decision, run_id))
        await until(lambda: bool(answers))
        answer = answers[0]
        if isinstance(answer, TurnlaneError):
            raise as_failure(answer)
        if run_id is not None and answer.revision is None:
            raise as_failure(await self._too_late(run_id, answer.version))
        state = self._state_after(command, run_id)
        return ControlReply(run_id=run_id, state=state, head_version=answer.version, run_revision=answer.revision)

    async def _catch_up(self, run_id: str | None, expected: int | None) -> None:
        """Learn the revision of a run whose activities wrote since the lane last heard, if the caller saw that."""
        run = self._core.head.run(run_id) if run_id is not None else None
        if run is None or expected is None or expected <= run.revision:
            return
        standing = await self._waiting.standing(run.id)
        if standing.revision is not None:
            self._core.hear_revision(run.id, standing.revision)

    async def _refusal(self, refusal: Refusal, run_id: str | None) -> TurnlaneError:
        """The error for a refused command. A run that the head does not have may have ended: that is a conflict."""
        if refusal.code is RefusalCode.NOT_FOUND and run_id is not None:
            standing = await self._waiting.standing(run_id)
            if standing.state is not None:
                return RunConflictError("the run has ended", head_version=refusal.head_version, state=standing.state)
        return error_of(refusal)

    async def _too_late(self, run_id: str, version: int) -> RunConflictError:
        """The error for a command about a run that had ended by its own last step when the store heard of it."""
        standing = await self._waiting.standing(run_id)
        return RunConflictError("the run has ended", head_version=version, state=standing.state)

    def _decide(self, command: Command, answers: list[Answer]) -> Decision:
        core = self._core
        if isinstance(command, Interrupt):
            return core.interrupt(command, answers.append, answers.append)
        if isinstance(command, Cancel | Recover):
            return core.give_up(command, answers.append, answers.append)
        return core.decide(command, answers.append, answers.append)

    def _state_after(self, command: Command, run_id: str | None) -> RunState | None:
        if isinstance(command, Cancel):
            return RunState.CANCELLED
        if isinstance(command, Recover):
            return RunState.ABANDONED
        run = self._core.head.run(run_id) if run_id is not None else None
        return run.state if run is not None else None
