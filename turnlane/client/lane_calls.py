"""Calling a lane: updates and signals over Temporal, and its failures as our errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from temporalio.client import (
    Client,
    RPCError,
    RPCTimeoutOrCancelledError,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, TemporalError
from temporalio.service import RPCStatusCode

from turnlane.client.requests import lane_id
from turnlane.records.admissions import Input, SubmitReply
from turnlane.records.approvals import AskedApproval
from turnlane.records.base import JsonObject
from turnlane.records.compaction import CompactReply, CompactRequest
from turnlane.records.errors import (
    LaneClosingError,
    LaneSupersededError,
    TemporalRefusedError,
    TemporalUnavailableError,
    TurnlaneError,
    WorkersUnavailableError,
    error_for,
)
from turnlane.records.lane import AdmissionQuery, LaneStart, RunLine, WaitReply, WaitRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

LANE = "ConversationLane"
FIRST_WAIT_SECONDS = 0.02
LONGEST_WAIT_SECONDS = 0.3

TASK_TIMEOUT = timedelta(seconds=5)
"""How long the server waits for a worker that took a lane's task: half of its usual patience.

A lane decides in milliseconds, and says so when a commit takes longer. A worker that dies with a task in its hands, or
is given one while it ends, holds the lane up for this long.
"""

UPDATES_AT_ONCE = 4
"""How many short updates one client has in flight to a lane.

The server takes ten to one workflow, and a lane lets six callers stay for a result. One more is not only
refused: the server then forgets the lane's task in progress, which runs again, and what it decides the second
time may differ from what it stored the first.
"""

STAYS_AT_ONCE = 3
"""How many callers one client lets stay with a lane for a result; the others ask by query."""

_MOVING_ON = frozenset({RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.ABORTED})
_REFUSING = frozenset(
    {
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.PERMISSION_DENIED,
        RPCStatusCode.UNAUTHENTICATED,
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.UNIMPLEMENTED,
    }
)
_UNANSWERED = frozenset({"AcceptedUpdateCompletedWorkflow", "UnprocessedUpdate"})
"""The server's own failures of updates: the lane ended under one, or a task that had it was lost too often."""


class NoLane(Exception):
    """No lane of the conversation is running."""


UNHEARD = (NoLane, WorkersUnavailableError, LaneClosingError, LaneSupersededError)
"""Why an update that starts a lane was heard by nobody. What may wait is then sent as a signal."""


class LaneCalls:
    """The lane of a conversation, from outside. Every method raises our errors and nothing of Temporal's."""

    def __init__(self, client: Client, task_queue: str, answer_seconds: float) -> None:
        self._client = client
        self._task_queue = task_queue
        self._answer_seconds = answer_seconds
        self._gates: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._stays: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def handle(self, conversation_id: str) -> WorkflowHandle[Any, Any]:
        """The Temporal handle of a lane."""
        return self._client.get_workflow_handle(lane_id(conversation_id))

    async def submit(self, conversation_id: str, given: Input) -> SubmitReply:
        """Submit by update, starting the lane if need be.

        Raises `WorkersUnavailableError` when no worker answers in time: then nothing is durable.
        """
        stage = WorkflowUpdateStage.COMPLETED
        update = await self._started(conversation_id, "submit", _brief(given), SubmitReply, stage)
        return await answer(update)

    async def submit_and_stay(self, conversation_id: str, given: Input) -> WorkflowUpdateHandle[SubmitReply]:
        """Submit by update and return as soon as a worker took it; the handle answers when the run has ended."""
        return await self._started(conversation_id, "submit", _brief(given), SubmitReply, WorkflowUpdateStage.ACCEPTED)

    async def signal_submit(self, conversation_id: str, given: Input) -> None:
        """Submit by signal: durable when this returns, whether or not a worker is up."""
        await self.signal_with_start(conversation_id, "submit", _brief(given))

    async def signal_with_start(self, conversation_id: str, name: str, argument: Any) -> None:
        """Send a signal, starting the lane if need be: durable when this returns, whether or not a worker is up."""
        with our_errors():
            await self._client.start_workflow(
                LANE,
                LaneStart(conversation_id=conversation_id),
                id=lane_id(conversation_id),
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                start_signal=name,
                start_signal_args=[argument],
                task_timeout=TASK_TIMEOUT,
                static_summary=_summary(conversation_id),
            )

    async def signal(self, conversation_id: str, name: str, argument: Any) -> None:
        """Send a signal to a running lane. Raises `NoLane` when none runs."""
        with our_errors():
            await self.handle(conversation_id).signal(name, argument)

    async def control(self, conversation_id: str, name: str, argument: Any, result: type[T]) -> T:
        """Make a control update, starting the lane from the store if it rests."""
        update = await self._started(conversation_id, name, argument, result, WorkflowUpdateStage.COMPLETED)
        return await answer(update)

    async def update(self, conversation_id: str, name: str, argument: Any, result: type[T]) -> T:
        """Make an update to a running lane. Raises `NoLane` when none runs."""
        with our_errors():
            async with asyncio.timeout(self._answer_seconds):
                update: WorkflowUpdateHandle[T] = await self.handle(conversation_id).start_update(
                    name, argument, wait_for_stage=WorkflowUpdateStage.COMPLETED, result_type=result
                )
                return await answer(update)

    async def compact(self, conversation_id: str, asked: CompactRequest) -> CompactReply:
        """Ask for a compaction, starting the lane if it rests, and again until it is made."""
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                stage = WorkflowUpdateStage.ACCEPTED
                update = await self._started(conversation_id, "compact", asked, CompactReply, stage)
                with our_errors():
                    reply = await answer(update)
            except (LaneClosingError, LaneSupersededError):
                reply = CompactReply(again=True)
            if not reply.again:
                return reply
            asked = asked.model_copy(update={"number": reply.number})
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT_SECONDS)

    async def wait(self, conversation_id: str, run_id: str) -> WaitReply | None:
        """Ask a lane once to be told when a run has ended. None when it cannot be asked that way just now."""
        places = self._stays.setdefault(conversation_id, asyncio.Semaphore(STAYS_AT_ONCE))
        if places.locked():
            return None
        async with places:
            return await self._stay(conversation_id, run_id)

    async def _stay(self, conversation_id: str, run_id: str) -> WaitReply | None:
        try:
            handle = self.handle(conversation_id)
            reply: WaitReply = await handle.execute_update("wait", WaitRequest(run_id=run_id), result_type=WaitReply)
            return reply
        except WorkflowUpdateFailedError as error:
            failed = as_turnlane_error(error)
            if failed.retryable:
                return None
            raise failed from None
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            _raise_if_cancelled()
            return None
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return await self.control(conversation_id, "wait", WaitRequest(run_id=run_id), WaitReply)
            return None

    async def query_admission(self, conversation_id: str, key: str) -> AdmissionQuery:
        """Ask a lane what became of a key."""
        reply: AdmissionQuery = await self._query(conversation_id, "admission", AdmissionQuery, key)
        return reply

    async def query_runs(self, conversation_id: str) -> list[RunLine]:
        """Ask a lane for its active runs."""
        reply: list[RunLine] = await self._query(conversation_id, "runs", list[RunLine])
        return reply

    async def query_approvals(self, conversation_id: str) -> list[AskedApproval]:
        """Ask a lane for the latest approvals that wait."""
        reply: list[AskedApproval] = await self._query(conversation_id, "pending_approvals", list[AskedApproval])
        return reply

    async def query_end(self, conversation_id: str, run_id: str) -> WaitReply:
        """Ask a lane how a run ended, which takes no place from an update."""
        reply: WaitReply = await self._query(conversation_id, "end", WaitReply, run_id)
        return reply

    async def _query(self, conversation_id: str, name: str, result: Any, *args: Any) -> Any:
        with our_errors():
            return await self.handle(conversation_id).query(
                name, args=list(args), result_type=result, rpc_timeout=timedelta(seconds=self._answer_seconds)
            )

    async def _started(
        self, conversation_id: str, name: str, argument: Any, result: type[T], stage: WorkflowUpdateStage
    ) -> WorkflowUpdateHandle[T]:
        """Start an update with start. A lane that is just moving on is asked again."""

        async def attempt() -> WorkflowUpdateHandle[T]:
            start = self._start(conversation_id)
            try:
                update: WorkflowUpdateHandle[T] = await self._client.start_update_with_start_workflow(
                    name, argument, start_workflow_operation=start, wait_for_stage=stage, result_type=result
                )
            except TemporalError:
                # The operation keeps the failure in a future too; unread, asyncio would log it as forgotten. Any
                # other error, of a payload codec for instance, is not kept there: to wait for it would take for ever.
                with contextlib.suppress(BaseException):
                    await start.workflow_handle()
                raise
            if stage is WorkflowUpdateStage.COMPLETED:
                await answer(update)
            return update

        with our_errors():
            async with asyncio.timeout(self._answer_seconds), self._gate(conversation_id):
                return await _again_while_moving_on(attempt)

    def _gate(self, conversation_id: str) -> asyncio.Semaphore:
        """What lets few updates at a time to one lane, first come, first served; kept while somebody uses it."""
        return self._gates.setdefault(conversation_id, asyncio.Semaphore(UPDATES_AT_ONCE))

    def _start(self, conversation_id: str) -> WithStartWorkflowOperation[Any, Any]:
        return WithStartWorkflowOperation(
            LANE,
            LaneStart(conversation_id=conversation_id),
            id=lane_id(conversation_id),
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            task_timeout=TASK_TIMEOUT,
            static_summary=_summary(conversation_id),
        )


def _brief(given: Input) -> JsonObject:
    """An input without the fields it leaves at their defaults: this is kept in the history of every turn."""
    brief: JsonObject = given.model_dump(mode="json", exclude_defaults=True)
    for part, whole in zip(brief.get("parts") or (), given.parts, strict=True):  # type: ignore[arg-type]
        part["type"] = whole.type  # type: ignore[index,call-overload]
    return brief


@contextlib.contextmanager
def our_errors() -> Iterator[None]:
    """Turn what Temporal's client raises into our errors; a caller that was cancelled stays cancelled."""
    try:
        yield
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError, RPCTimeoutOrCancelledError):
        _raise_if_cancelled()
        raise WorkersUnavailableError("no worker answered in time") from None
    except WorkflowQueryFailedError:
        raise WorkersUnavailableError("the lane could not be asked; its worker is failing") from None
    except RPCError as error:
        raise _as_ours(error) from None


def _as_ours(error: RPCError) -> TurnlaneError | NoLane:
    name = error.status.name
    if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in str(error).lower():
        return NoLane()
    if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.FAILED_PRECONDITION):
        return WorkersUnavailableError("no worker answered in time")
    if error.status in _REFUSING:
        return TemporalRefusedError(f"Temporal answered {name}", status=name)
    return TemporalUnavailableError(f"Temporal answered {name}", status=name)


def _raise_if_cancelled() -> None:
    """The SDK gives a cancellation a name of its own; what was cancelled must not go on by another way."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _summary(conversation_id: str) -> str:
    return f"conversation {conversation_id}"


async def answer(update: WorkflowUpdateHandle[T]) -> T:
    """Await what an update answers; a failure is raised as our error."""
    try:
        return await update.result()
    except WorkflowUpdateFailedError as error:
        raise as_turnlane_error(error) from None


async def _again_while_moving_on(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again while the lane is between two workflow runs or two tries of a task; the caller bounds the time."""
    wait = FIRST_WAIT_SECONDS
    while True:
        try:
            return await attempt()
        except (LaneClosingError, LaneSupersededError):
            logger.debug("the lane is moving on; trying again in %.2f s", wait)
        except RPCError as error:
            if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
                raise WorkersUnavailableError("the lane has too many updates in flight") from None
            if error.status not in _MOVING_ON:
                raise
        await asyncio.sleep(wait)
        wait = min(wait * 2, LONGEST_WAIT_SECONDS)


def as_turnlane_error(error: WorkflowUpdateFailedError) -> TurnlaneError:
    """The error behind a failed update."""
    cause = error.cause
    if not isinstance(cause, ApplicationError):
        return LaneClosingError("the lane ended before it answered")
    if cause.type in _UNANSWERED:
        return LaneClosingError("the lane ended before it answered")
    details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
    return error_for(cause.type or "", cause.message, details)
