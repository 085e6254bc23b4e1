"""Admission: inputs become durable in the order in which Temporal delivered them, or are refused.

One coroutine takes inputs from the inbox in batches, has them checked against store and agent in one
local activity, and asks the reducer about each in turn. An input's caller is answered when its
admission is in the store, so whoever has the answer finds the record there.
"""

from __future__ import annotations

from temporalio import workflow

from turnlane.records.admissions import Admission, Input, Policy, SubmitReply
from turnlane.records.base import JsonObject
from turnlane.records.commands import Accept, Duplicate, Refusal, RefusalCode
from turnlane.records.errors import (
    AgentMismatchError,
    ApprovalDecidedError,
    ConversationActiveError,
    ConversationPurgedError,
    IdempotencyConflictError,
    InputTooLargeError,
    InvalidInputError,
    QueueFullError,
    RecordIdCollisionError,
    RunConflictError,
    RunNotFoundError,
    TurnlaneError,
    error_for,
)
from turnlane.records.lane import AdmissionQuery, AgentFacts, HeadReceipt, LaneHead, NamedIds, ids_for_key
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import FilePart, Message, MessageStatus, Role
from turnlane.records.mutations import Landing
from turnlane.records.runs import RunState
from turnlane.records.steps import KnownReceipt, PrepareAdmissions, PreparedAdmissions, RefusedInput
from turnlane.workflows.calls import PREPARE_ADMISSIONS, store_call
from turnlane.workflows.core import LaneCore, Pending
from turnlane.workflows.decisions import Transition
from turnlane.workflows.offers import abort_reason
from turnlane.workflows.until import until

BATCH_COUNT = 64
BATCH_BYTES = 96 * 1024
MAX_INLINE_BYTES = 64 * 1024

_REFUSALS: dict[RefusalCode, tuple[type[TurnlaneError], str]] = {
    RefusalCode.PURGED: (ConversationPurgedError, "the conversation was purged"),
    RefusalCode.NOT_FOUND: (RunNotFoundError, "the conversation has no such active run"),
    RefusalCode.CONFLICT: (RunConflictError, "the run or conversation is not as the call expects"),
    RefusalCode.BLOCKED: (RunConflictError, "another run stands before this one"),
    RefusalCode.ACTIVE: (ConversationActiveError, "the conversation has active runs"),
    RefusalCode.KEY_CONFLICT: (IdempotencyConflictError, "the key was used before, for other content"),
    RefusalCode.ID_COLLISION: (RecordIdCollisionError, "a proposed record id is in use in this conversation"),
    RefusalCode.AGENT_MISMATCH: (AgentMismatchError, "the conversation has another agent or tenant"),
    RefusalCode.QUEUE_FULL: (QueueFullError, "the lane's queue is full; try again when runs have ended"),
    RefusalCode.UNSAFE: (RunConflictError, "a started run goes back only as replay-safe"),
    RefusalCode.DECIDED: (ApprovalDecidedError, "another answer to this approval came first"),
    RefusalCode.INVALID: (InvalidInputError, "the command does not make sense"),
}


def error_of(refusal: Refusal) -> TurnlaneError:
    """The error a caller gets for a refusal: head version and run revision by name."""
    kind, message = _REFUSALS[refusal.code]
    if refusal.code is RefusalCode.DECIDED:
        decision = refusal.detail or None
        told = f"the approval was already decided: {decision}" if decision else message
        return kind(told, decision=decision, head_version=refusal.head_version)
    return kind(
        refusal.detail or message,
        head_version=refusal.head_version,
        run_revision=refusal.run_revision,
        run_ids=list(refusal.run_ids),
    )


def too_large(given: Input) -> InputTooLargeError | None:
    """The objection to an input that should have travelled as a blob, if it is one."""
    size = len(given.model_dump_json().encode())
    if size <= MAX_INLINE_BYTES:
        return None
    return InputTooLargeError("an input this large travels as a blob", size=size, limit=MAX_INLINE_BYTES)


class Admissions:
    """The pump from the inbox to the reducer."""

    def __init__(self, core: LaneCore) -> None:
        self._core = core

    async def pump(self) -> None:
        """Admit what arrives, for ever."""
        core = self._core
        while core.outbox.lost is None:
            await until(lambda: bool(core.inbox))
            core.deciding = self._next_batch()
            try:
                await self._admit_batch(core.deciding)
            except TurnlaneError as error:
                for pending in core.deciding:
                    self._refuse(pending, error)
            core.deciding = []

    def _next_batch(self) -> list[Pending]:
        batch: list[Pending] = []
        size = 0
        while self._core.inbox and len(batch) < BATCH_COUNT:
            size += len(self._core.inbox[0].input.model_dump_json().encode())
            if batch and size > BATCH_BYTES:
                break
            batch.append(self._core.inbox.popleft())
            self._core.refused.pop(batch[-1].input.key, None)
        return batch

    async def _admit_batch(self, batch: list[Pending]) -> None:
        core = self._core
        if core.head.purged:
            raise ConversationPurgedError("the conversation was purged")
        found = self._plainly_prepared(batch) or await self._prepared(batch)
        for pending, item in zip(batch, found, strict=True):
            self._admit(pending, item)

    def _plainly_prepared(self, batch: list[Pending]) -> tuple[Policy, ...] | None:
        """The policies of a batch that needs no word from a worker: the lane knows an agent that checks nothing."""
        facts = self._core.facts
        if facts is None or facts.policy is None or self._core.head.agent not in (None, facts.name):
            return None
        if not all(self._is_plain(pending) for pending in batch):
            return None
        return tuple(pending.input.policy or facts.policy for pending in batch)

    def _is_plain(self, pending: Pending) -> bool:
        given = pending.input
        return (
            given.role is Role.USER
            and given.blob is None
            and given.record_ids is None
            and given.context is None
            and given.metadata is None
            and self._is_for(given.agent)
            and not any(isinstance(part, FilePart) for part in given.parts)
            and not self._must_probe(pending)
        )

    def _is_for(self, agent: str | None) -> bool:
        """Whether an input is for the agent that the lane knows: the first of a conversation must name it."""
        head, facts = self._core.head, self._core.facts
        return agent in (None, head.agent) if head.agent is not None else facts is not None and agent == facts.name

    async def _prepared(self, batch: list[Pending]) -> tuple[Policy | KnownReceipt | RefusedInput, ...]:
        core = self._core
        request = PrepareAdmissions(
            conversation_id=core.conversation_id,
            agent=core.head.agent,
            tenant=core.head.tenant,
            facts_digest=core.facts.digest if core.facts else None,
            inputs=tuple(pending.input for pending in batch),
            probe=tuple(self._must_probe(pending) for pending in batch),
            has_live_run=core.head.live is not None,
            model=core.head.model,
        )
        prepared = await store_call(PREPARE_ADMISSIONS, request, PreparedAdmissions, core.settings, core.outage)
        core.facts = prepared.facts or core.facts
        return prepared.inputs

    def _must_probe(self, pending: Pending) -> bool:
        """Whether only the store can tell if the key was admitted before, or what became of its run."""
        head = self._core.head
        receipt = head.receipt(pending.input.key)
        return not head.receipts_complete if receipt is None else self._state_of(_run_id(head, receipt)) is None

    def _state_of(self, run_id: str) -> RunState | None:
        """The state of a run, if it is active or its end is remembered."""
        run = self._core.head.run(run_id)
        if run is not None:
            return run.state
        end = self._core.ends.get(run_id)
        return end.state if end is not None else None

    def _admit(self, pending: Pending, found: Policy | KnownReceipt | RefusedInput) -> None:
        core = self._core
        if core.outbox.lost is not None:
            self._refuse(pending, core.outbox.lost)
            return
        # An update was checked before it came in; a signal cannot be turned away there.
        oversize = too_large(pending.input) if pending.is_signal else None
        if oversize is not None:
            self._refuse(pending, oversize)
            return
        refused = _refused(found) if isinstance(found, RefusedInput) else None
        if refused is not None and core.head.receipt(pending.input.key) is None:
            self._refuse(pending, refused)
            return
        known = found if isinstance(found, KnownReceipt) else None
        policy = found if isinstance(found, Policy) else Policy.QUEUE
        command = self._accept(pending, policy, known)
        decision = core.decide(
            command,
            lambda landing: self._admitted(pending, command, landing),
            lambda error: self._refuse(pending, error),
        )
        if isinstance(decision, Refusal):
            named = refused if decision.code is RefusalCode.DECIDED else None
            self._refuse(pending, named or error_of(decision))
        elif isinstance(decision, Duplicate):
            self._answer_duplicate(pending, decision.receipt, known)
        else:
            pending.receipt = decision.head.receipt(command.key)
            self._act(policy, decision)

    def _ids(self, pending: Pending) -> NamedIds:
        derived = ids_for_key(self._core.conversation_id, pending.input.key)
        proposed = pending.input.record_ids
        if proposed is None:
            return derived
        return NamedIds(
            proposed.input_message_id or derived.input_message_id,
            proposed.run_id or derived.run_id,
            proposed.assistant_message_id or derived.assistant_message_id,
        )

    def _accept(self, pending: Pending, policy: Policy, known: KnownReceipt | None) -> Accept:
        core, given, now = self._core, pending.input, workflow.now()
        ids = self._ids(pending)
        facts = core.facts or AgentFacts(name=given.agent or core.head.agent or "unknown")
        message = Message(
            id=ids.input_message_id,
            conversation_id=core.conversation_id,
            role=Role(given.role),
            status=MessageStatus.COMMITTED,
            parts=given.content,
            metadata=_metadata(given),
            created_at=now,
            updated_at=now,
        )
        return Accept(
            key=given.key,
            content_digest=given.content_digest,
            policy=policy,
            message=message,
            run_id=ids.run_id,
            assistant_message_id=ids.assistant_message_id,
            agent=given.agent or core.head.agent or facts.name,
            tenant=core.head.tenant if given.tenant is None and core.head.agent else given.tenant,
            context=given.context,
            blob=given.blob,
            coalesce=facts.coalesce,
            known=_packed(known, given.key),
            queued_runs=facts.queued_runs,
            recent_receipts=facts.recent_receipts,
        )

    def _act(self, policy: Policy, transition: Transition) -> None:
        """The input is admitted; now its policy acts on the run in flight, and the queue moves."""
        reason = abort_reason(policy)
        if reason is not None:
            self._core.ask_to_stop(reason, except_run=transition.run_id)
        self._core.schedule()

    def _admitted(self, pending: Pending, command: Accept, landing: Landing) -> None:
        receipt = pending.receipt
        run_id = (receipt.run_id if receipt else "") or command.run_id
        assistant = (receipt.assistant_message_id if receipt else "") or command.assistant_message_id
        admission = Admission(
            conversation_id=self._core.conversation_id,
            idempotency_key=command.key,
            input_message_id=command.message.id,
            run_id=run_id,
            assistant_message_id=assistant,
            run_state=RunState.QUEUED,
            policy=command.policy,
            snapshot_version=landing.version,
            coalesced=run_id != command.run_id,
        )
        self._answer(pending, admission)

    def _answer_duplicate(self, pending: Pending, receipt: HeadReceipt, known: KnownReceipt | None) -> None:
        admission = self._recalled(receipt, known.run_state if known else RunState.COMPLETED)
        self._core.outbox.after(lambda: self._answer(pending, admission), lambda error: self._refuse(pending, error))

    def look_up(self, key: str) -> AdmissionQuery:
        """What became of an input that was just sent: its admission is known after a renewal too."""
        receipt = self._core.head.receipt(key)
        return AdmissionQuery(
            admission=self._recall(key),
            content_digest=receipt.digest if receipt is not None else None,
            refusal=self._core.refused.get(key),
        )

    def _recall(self, key: str) -> Admission | None:
        answered = self._core.admitted.get(key)
        if answered is not None:
            return answered
        receipt = self._core.head.receipt(key)
        if receipt is None or not self._core.outbox.is_empty:
            return None
        return self._recalled(receipt, RunState.COMPLETED)

    def _recalled(self, receipt: HeadReceipt, forgotten: RunState) -> Admission:
        """The admission behind a receipt; `forgotten` is the state of a run that the lane remembers no more."""
        core = self._core
        derived = ids_for_key(core.conversation_id, receipt.key)
        run_id = _run_id(core.head, receipt)
        return Admission(
            conversation_id=core.conversation_id,
            idempotency_key=receipt.key,
            input_message_id=receipt.input_message_id or derived.input_message_id,
            run_id=run_id,
            assistant_message_id=receipt.assistant_message_id or derived.assistant_message_id,
            run_state=self._state_of(run_id) or forgotten,
            policy=Policy(receipt.policy),
            snapshot_version=core.head.version,
            duplicate=True,
        )

    def _answer(self, pending: Pending, admission: Admission) -> None:
        pending.reply = SubmitReply(admission=admission)
        self._core.admitted[admission.idempotency_key] = admission

    def _refuse(self, pending: Pending, error: TurnlaneError) -> None:
        pending.error = error
        if not pending.is_signal:
            return
        if self._core.outbox.lost is not None and not self._core.head.purged:
            self._core.carried.append(pending.input)
        else:
            payload: JsonObject = {"key": pending.input.key, "code": error.code}
            self._core.note(LedgerKind.ADMISSION_REFUSED, payload)
            self._core.refused[pending.input.key] = error.code


def _run_id(head: LaneHead, receipt: HeadReceipt) -> str:
    return receipt.run_id or ids_for_key(head.conversation_id, receipt.key).run_id


def _refused(found: RefusedInput) -> TurnlaneError:
    fields: JsonObject = {"fields": list(found.fields)} if found.fields else {}
    return error_for(found.code, found.message, {**fields, **(found.details or {})})


def _metadata(given: Input) -> JsonObject | None:
    """What is kept with an input: of an approval answer also who gave it."""
    return given.metadata if given.responder is None else {**(given.metadata or {}), "responder": given.responder}


def _packed(known: KnownReceipt | None, key: str) -> HeadReceipt | None:
    if known is None:
        return None
    return HeadReceipt(
        key,
        known.content_digest,
        known.policy.value,
        known.version,
        known.input_message_id,
        known.run_id,
        known.assistant_message_id,
    )
