"""The stored floor: the floor's hops with all that turnlane's store does in a plain turn, and nothing else of turnlane.

It tells what the store's share of a turn is: what lies between it and turnlane are the decisions of the lane, the
step, and larger payloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.floor import FloorInput, FloorRecord, FloorWork
from turnlane.records.admissions import Policy, Receipt
from turnlane.records.base import JsonObject
from turnlane.records.lane import NamedIds, ids_for_key
from turnlane.records.messages import Message, MessageStatus, Role, TextPart
from turnlane.records.mutations import (
    AdmitInput,
    CommitBatch,
    CommitOutcome,
    Effect,
    Mutation,
    MutationKind,
    NewRun,
    StartRun,
)
from turnlane.records.runs import Operation, OperationKind, OperationPhase
from turnlane.records.steps import Fence
from turnlane.records.usage import Usage, UsageValue
from turnlane.store.payloads import StepFinish, StepStart
from turnlane.store.sql import SqlStore

USAGE = Usage(input_tokens=UsageValue.reported(100), output_tokens=UsageValue.reported(10))


@dataclass
class _Place:
    """Where a conversation's lane is: its epoch, and the last number it gave to a mutation."""

    epoch: int
    seq: int = 0
    order: int = 0


class StoredWork(FloorWork):
    """The floor's activities, which store what turnlane's would."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__()
        self._store = store
        self._places: dict[str, _Place] = {}

    async def keep(self, conversation: str, record: FloorRecord) -> None:
        """Commit an admission with the start of its run. The end of the run was stored with its step."""
        if record.state == "ended":
            return
        ids = ids_for_key(conversation, record.key)
        place = await self._place(conversation)
        place.order += 1
        await self._commit(
            conversation,
            (MutationKind.ACCEPT, _admission(conversation, record, ids, place.order)),
            (MutationKind.ACQUIRE, StartRun(run_id=ids.run_id, token=1, owner_id="floor")),
        )

    async def speak(self, conversation: str, given: FloorInput) -> None:
        """Read the run and what was said, and store one step."""
        ids = ids_for_key(conversation, given.key)
        place = await self._place(conversation)
        fence = Fence(conversation_id=conversation, epoch=place.epoch, run_id=ids.run_id, token=1, step=0, attempt=1)
        await self._store.is_active(conversation, ids.run_id)
        await self._store.load_history(conversation, ids.run_id, ())
        now = datetime.now(UTC)
        operation = Operation(
            operation_id=f"{ids.run_id}:1:0:1",
            kind=OperationKind.MODEL_REQUEST,
            phase=OperationPhase.STARTED,
            step=0,
            started_at=now,
        )
        evidence: JsonObject = {"run_id": ids.run_id, "token": 1, "step": 0, "attempt": 1}
        begun = StepStart(
            fence=fence, assistant_message_id=ids.assistant_message_id, operation=operation, evidence=evidence
        )
        await self._store.begin_step(begun, now)
        ended = operation.model_copy(update={"phase": OperationPhase.COMPLETED, "finished_at": now})
        finished = StepFinish(
            fence=fence,
            assistant_message_id=ids.assistant_message_id,
            operation=ended,
            parts=(TextPart(text="It is so."),),
            usage=USAGE,
            evidence=evidence,
            settles=True,
        )
        await self._store.finish_step(finished, now)

    async def _place(self, conversation: str) -> _Place:
        if conversation not in self._places:
            opened = await self._store.open_lane(conversation, "floor", None)
            assert opened.epoch is not None
            self._places[conversation] = _Place(opened.epoch)
        return self._places[conversation]

    async def _commit(self, conversation: str, *effects: tuple[MutationKind, Effect]) -> None:
        place, now = await self._place(conversation), datetime.now(UTC)
        mutations = tuple(
            Mutation(seq=place.seq + offset, kind=kind, at=now, effect=effect)
            for offset, (kind, effect) in enumerate(effects, 1)
        )
        place.seq += len(mutations)
        batch = CommitBatch(conversation_id=conversation, epoch=place.epoch, mutations=mutations)
        committed = await self._store.commit(batch, now)
        if committed.reply.outcome is not CommitOutcome.APPLIED:
            raise RuntimeError(f"a commit of the floor was {committed.reply.outcome}")


def _admission(conversation: str, record: FloorRecord, ids: NamedIds, order: int) -> AdmitInput:
    now = datetime.now(UTC)
    message = Message(
        id=ids.input_message_id,
        conversation_id=conversation,
        role=Role.USER,
        status=MessageStatus.COMMITTED,
        parts=(TextPart(text="Is it so?"),),
        created_at=now,
        updated_at=now,
    )
    receipt = Receipt(
        conversation_id=conversation,
        idempotency_key=record.key,
        content_digest="0" * 32,
        input_message_id=ids.input_message_id,
        run_id=ids.run_id,
        assistant_message_id=ids.assistant_message_id,
        policy=Policy.QUEUE,
    )
    run = NewRun(id=ids.run_id, assistant_message_id=ids.assistant_message_id, admission_order=order)
    return AdmitInput(message=message, receipt=receipt, run=run, agent="floor")
