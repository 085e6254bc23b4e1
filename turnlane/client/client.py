"""The client of turnlane."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter
from temporalio.client import Client, WorkflowUpdateHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig

from turnlane.agent.files import Upload
from turnlane.client.approving import answer_of
from turnlane.client.archiving import Archiving
from turnlane.client.awaiting import Awaiting
from turnlane.client.delivering import deliver
from turnlane.client.lane_calls import UNHEARD, LaneCalls, NoLane, answer, our_errors
from turnlane.client.requests import checked_id, input_of, request
from turnlane.client.ticket import Result, Ticket
from turnlane.client.uploads import keep_uploads
from turnlane.client.watching import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS
from turnlane.records.admissions import Admission, Input, Policy, RecordIds, SubmitReply, Terminal
from turnlane.records.base import JsonObject
from turnlane.records.compaction import CompactReply, CompactRequest
from turnlane.records.errors import (
    InputTooLargeError,
    RunConflictError,
    StoreUnavailableError,
    TemporalUnavailableError,
    TurnlaneError,
    WorkersUnavailableError,
)
from turnlane.records.lane import AbandonRequest, ControlReply, ModelRequest, PurgeRequest, RunRequest
from turnlane.records.limits import Limits
from turnlane.records.messages import InputPart, Role
from turnlane.store.bus import EventBus
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)

_PARTS: TypeAdapter[tuple[InputPart, ...]] = TypeAdapter(tuple[InputPart, ...])

Via = Literal["update", "signal"]


class Turnlane(Archiving):
    """Conversations with agents, from an application's side.

    `store` and `bus` are those of the workers. With them results and events come from there, which costs
    Temporal nothing; without them the client uses Temporal alone: it submits, waits and controls, and
    what needs content (`messages`, `snapshot`, `events`, `branch`) raises `StoreRequiredError`.
    """

    def __init__(
        self,
        client: Client,
        *,
        store: Store | None = None,
        bus: EventBus | None = None,
        task_queue: str = "turnlane",
        answer_seconds: float = 5.0,
        limits: Limits | None = None,
    ) -> None:
        self.temporal = client
        self._store = store
        self._bus = bus
        self._lanes = LaneCalls(client, task_queue, answer_seconds)
        self._awaiting = Awaiting(self._lanes, store, bus)
        self._limits = limits or Limits()
        self._staying: set[asyncio.Task[Terminal | None]] = set()

    @classmethod
    async def connect(
        cls,
        target: str | None = None,
        *,
        namespace: str | None = None,
        store: Store | None = None,
        bus: EventBus | None = None,
        task_queue: str = "turnlane",
        answer_seconds: float = 5.0,
        limits: Limits | None = None,
        **options: Any,
    ) -> Turnlane:
        """Connect to a Temporal cluster.

        Address, namespace, TLS and API key come from Temporal's own environment configuration (variables
        `TEMPORAL_ADDRESS` and so on, or its configuration file) unless given here; `options` go to
        `Client.connect`. `answer_seconds` is how long a worker may take to answer a submit before the
        input is sent as a signal.
        """
        client = await connect_temporal(target, namespace=namespace, **options)
        return cls(client, store=store, bus=bus, task_queue=task_queue, answer_seconds=answer_seconds, limits=limits)

    async def close(self) -> None:
        """Stop waiting for results. Store and bus belong to the caller."""
        for task in self._staying:
            task.cancel()
        await asyncio.gather(*self._staying, return_exceptions=True)

    # --- submitting -----------------------------------------------------------------------------

    async def submit(
        self,
        conversation_id: str,
        content: str | Sequence[InputPart | Upload],
        *,
        agent: str | None = None,
        key: str | None = None,
        policy: Policy | str | None = None,
        context: JsonObject | None = None,
        metadata: JsonObject | None = None,
        record_ids: RecordIds | None = None,
        tenant: str | None = None,
        role: Role = Role.USER,
        via: Via = "update",
    ) -> Ticket:
        """Submit an input; when this returns, it cannot get lost.

        `key` makes a repeat of the call the same input; without one each call is its own. By update the
        ticket has its admission, and a refusal is raised here; if no worker answers within
        `answer_seconds`, or with `via="signal"` at once, the input goes as a signal, durable in Temporal,
        and its admission comes later. Content over 64 KiB, and an `Upload`, need a store. Raises
        `CallerError`s for what is wrong with the input and `RetryableError`s for what may be tried again
        with the same key.
        """
        checked_id("conversation_id", conversation_id)
        given = input_of(
            await keep_uploads(self._store, conversation_id, content, self._limits.files),
            policy,
            key=uuid.uuid4().hex if key is None else key,
            role=role,
            agent=agent,
            tenant=tenant,
            context=context,
            metadata=metadata,
            record_ids=record_ids,
        )
        return await self._send(conversation_id, given, via)

    async def respond(
        self,
        conversation_id: str,
        approval_id: str,
        approved: bool,
        *,
        reason: str | None = None,
        responder: str | None = None,
        tenant: str | None = None,
        via: Via = "update",
    ) -> Ticket:
        """Answer an approval; when this returns, the answer cannot get lost. The ticket is of the run that acts on it.

        An approval is answered once: the same answer again is the same input, another one raises
        `ApprovalDecidedError`. Raises `ApprovalNotPendingError` for one that is missing or stale,
        `ApprovalExpiredError` after its time, `ApprovalRefusedError` when the agent does not let `responder`
        answer, and `AgentMismatchError` where the conversation is not the `tenant`'s.
        """
        checked_id("conversation_id", conversation_id)
        given = answer_of(approval_id, approved, reason=reason, responder=responder, tenant=tenant)
        return await self._send(conversation_id, given, via)

    async def _send(self, conversation_id: str, given: Input, via: Via) -> Ticket:
        placed = await self._place(conversation_id, given)
        if via == "signal":
            return await self._signal(conversation_id, placed)
        try:
            return await self._update(conversation_id, placed)
        except UNHEARD:
            logger.info("no worker answered, or its lane was lost; the input %s goes as a signal", given.key)
            return await self._signal(conversation_id, placed)

    async def _place(self, conversation_id: str, given: Input) -> Input:
        """Keep what is too large for a history in the store, and send a reference."""
        data = _PARTS.dump_json(given.content)
        if len(data) > self._limits.input_text_bytes:
            limit = self._limits.input_text_bytes
            raise InputTooLargeError("the input is over the limit", size=len(data), limit=limit)
        if len(given.model_dump_json().encode()) <= self._limits.inline_payload_bytes:
            return given
        if self._store is None:
            limit = self._limits.inline_payload_bytes
            raise InputTooLargeError("an input this large needs a client with a store", size=len(data), limit=limit)
        blob = await self._store.put_blob(conversation_id, data, "application/json", datetime.now(UTC))
        return given.model_copy(update={"parts": (), "text": None, "blob": blob})

    async def _update(self, conversation_id: str, given: Input) -> Ticket:
        if self._store is not None:
            reply = await self._lanes.submit(conversation_id, given)
            return Ticket(self, conversation_id, given, reply.admission)
        update = await self._lanes.submit_and_stay(conversation_id, given.model_copy(update={"stay": True}))
        task = asyncio.create_task(_terminal_of(update))
        self._staying.add(task)
        task.add_done_callback(self._staying.discard)
        admission = await self._admission_while_staying(conversation_id, given, update, task)
        return Ticket(self, conversation_id, given, admission, task)

    async def _admission_while_staying(
        self,
        conversation_id: str,
        given: Input,
        update: WorkflowUpdateHandle[SubmitReply],
        task: asyncio.Task[Terminal | None],
    ) -> Admission:
        wait = FIRST_POLL_SECONDS
        while True:
            found = await self._lanes.query_admission(conversation_id, given.key)
            # One of other content is another input's: the update is about to be refused.
            if found.admission is not None and found.content_digest in (None, given.content_digest):
                return found.admission
            done, _ = await asyncio.wait({task}, timeout=wait)
            if done:
                task.result()
                return (await _reply_of(update)).admission
            wait = min(wait * 2, LONGEST_POLL_SECONDS)

    async def _signal(self, conversation_id: str, given: Input) -> Ticket:
        position = await self._position_before(conversation_id)
        await self._lanes.signal_submit(conversation_id, given.model_copy(update={"stay": False}))
        return Ticket(self, conversation_id, given, None, sent_after=position)

    async def _position_before(self, conversation_id: str) -> int:
        """Where the ledger ends now: a refusal under the same key that stands there answers an earlier call."""
        try:
            return await self._store.last_seq(conversation_id) if self._store is not None else 0
        except StoreUnavailableError:
            return 0

    # --- awaiting -------------------------------------------------------------------------------

    async def await_admission(
        self, conversation_id: str, key: str, content_digest: str, *, after_seq: int = 0
    ) -> Admission:
        """Wait until an input that was sent as a signal is admitted. Raises its refusal; with a store, only one
        that stands in the ledger after `after_seq`."""
        return await self._awaiting.admission(conversation_id, key, content_digest, after_seq)

    async def await_result(self, conversation_id: str, run_id: str, *, tenant: str | None = None) -> Result:
        """Wait until a run has ended. Follows an absorbed run to the one that absorbed it."""
        checked_id("conversation_id", conversation_id)
        return await self._awaiting.result(conversation_id, checked_id("run_id", run_id), tenant)

    # --- control --------------------------------------------------------------------------------

    async def interrupt(
        self, conversation_id: str, run_id: str | None = None, *, expected_revision: int | None = None
    ) -> ControlReply:
        """Ask the run to stop, durably; it ends `interrupted` with what it said so far.

        Without `run_id` it is the run in flight. Raises `RunConflictError` for a run that is not running.
        With no worker up the request goes as a signal, and a `WorkersUnavailableError` says so.
        """
        asked = request(RunRequest, run_id=run_id, expected_revision=expected_revision)
        try:
            return await self._lanes.update(conversation_id, "interrupt", asked, ControlReply)
        except NoLane:
            raise RunConflictError("no run is running") from None
        except WorkersUnavailableError:
            await self._interrupt_later(conversation_id, asked)
            raise WorkersUnavailableError(
                "no worker answered; the interrupt is durable as a signal and acts when one is up"
            ) from None

    async def _interrupt_later(self, conversation_id: str, asked: RunRequest) -> None:
        """Send the request as a signal that names its run, so that it cannot stop the next one instead."""
        if asked.run_id is None and self._store is not None:
            runs = await self._store.list_active_runs(conversation_id)
            live = next((run.id for run in runs if run.state.is_live), None)
            if live is None:
                raise RunConflictError("no run is running")
            asked = asked.model_copy(update={"run_id": live})
        try:
            await self._lanes.signal(conversation_id, "interrupt", asked)
        except NoLane:
            raise RunConflictError("no run is running") from None

    async def stop(self, conversation_id: str) -> bool:
        """Ask the run in flight to stop. False when there is none."""
        try:
            await self.interrupt(conversation_id)
        except RunConflictError:
            return False
        return True

    async def cancel(self, conversation_id: str, run_id: str, *, expected_revision: int | None = None) -> ControlReply:
        """End a run that still waits in the queue; it ends `cancelled`."""
        asked = request(RunRequest, run_id=run_id, expected_revision=expected_revision)
        return await self._lanes.control(conversation_id, "cancel", asked, ControlReply)

    async def abandon(
        self, conversation_id: str, run_id: str, *, expected_revision: int, stale_owner: bool
    ) -> ControlReply:
        """Give a run up, whatever its state. `stale_owner=True` states that nobody works on it."""
        asked = request(AbandonRequest, run_id=run_id, expected_revision=expected_revision, stale_owner=stale_owner)
        return await self._lanes.control(conversation_id, "abandon", asked, ControlReply)

    async def purge(self, conversation_id: str, *, expected_version: int | None = None) -> ControlReply:
        """Delete the conversation for ever. Raises `ConversationActiveError` while it has active runs."""
        asked = request(PurgeRequest, expected_version=expected_version)
        return await self._lanes.control(conversation_id, "purge", asked, ControlReply)

    async def choose_model(self, conversation_id: str, model: str | None, *, agent: str | None = None) -> ControlReply:
        """Choose the model of the runs to come by its key in the agent's registry; None is the agent's own again.

        A run in flight keeps the model it has. `agent` says whose key it is while the conversation has no agent.
        Raises `ModelRefusedError` for a key that the agent does not have.
        """
        asked = request(ModelRequest, model=model, agent=agent)
        return await self._lanes.control(conversation_id, "choose_model", asked, ControlReply)

    async def compact(self, conversation_id: str, *, force: bool = False) -> CompactReply:
        """Have the older part of the conversation replaced by a summary, after the run in flight if there is one.

        Whether it is long enough the agent's threshold says, unless `force` is set. Waits until it is done:
        `outcome` says what came of it. Raises `NoCompactionError` for an agent that has no compaction.
        """
        checked_id("conversation_id", conversation_id)
        return await self._lanes.compact(conversation_id, request(CompactRequest, force=force))

    async def deliver(self, conversation_id: str, event: str, event_id: str, payload: Any = None) -> bool | None:
        """Bring an event to the tools that wait for it, or will: the first delivery under its id stands.

        True when this payload is the one that stands, False when another came first. None when no worker
        answered: the delivery is durable as a signal and acts when one is up. The payload is lossless JSON of at
        most 64 KiB; keep more in a blob or elsewhere, and deliver a reference.
        """
        return await deliver(self._lanes, conversation_id, event, event_id, payload)


async def connect_temporal(target: str | None = None, *, namespace: str | None = None, **options: Any) -> Client:
    """Connect to Temporal by its environment configuration, with what is given here on top.

    Raises `TemporalUnavailableError` when nobody answers there.
    """
    config: dict[str, Any] = {"data_converter": pydantic_data_converter, **ClientConfig.load_client_connect_config()}
    if target is not None:
        config["target_host"] = target
    if namespace is not None:
        config["namespace"] = namespace
    config.setdefault("target_host", "127.0.0.1:7233")
    try:
        return await Client.connect(**(config | options))
    except RuntimeError:
        # How the SDK tells that nobody answers at the address. Its text may quote configuration, so it stays inside.
        address = str(config["target_host"])
        raise TemporalUnavailableError(f"no Temporal server answers at {address}", address=address) from None


async def _reply_of(update: WorkflowUpdateHandle[SubmitReply]) -> SubmitReply:
    with our_errors():
        return await answer(update)


async def _terminal_of(update: WorkflowUpdateHandle[SubmitReply]) -> Terminal | None:
    try:
        return (await _reply_of(update)).terminal
    except NoLane:
        return None
    except TurnlaneError as error:
        if error.retryable:
            return None
        raise
