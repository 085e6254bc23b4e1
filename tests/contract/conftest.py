"""A store of each kind, and a lane that builds mutations as the reducer would."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from sqlalchemy import URL

from tests.postgresql import Databases
from turnlane.records.admissions import BlobRef, Policy, Receipt
from turnlane.records.base import JsonObject
from turnlane.records.lane import AbortReason
from turnlane.records.messages import (
    ControlReason,
    Message,
    MessageStatus,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.mutations import (
    Absorption,
    AdmitInput,
    AppendEvent,
    ChooseModel,
    CommitBatch,
    CommitOutcome,
    CompactRange,
    Effect,
    Mutation,
    MutationKind,
    MutationResult,
    NewRun,
    PurgeConversation,
    RequestInterrupt,
    RequeueRun,
    SeedInputs,
    SettleRun,
    StartRun,
)
from turnlane.records.runs import Failure, Operation, OperationKind, OperationPhase, QueuePriority, Run, TerminalReason
from turnlane.records.steps import Fence, FinishReason
from turnlane.records.usage import CostValue, Provenance, Usage, UsageValue
from turnlane.store.payloads import Committed, NewCall, StepFinish, StepStart, Written
from turnlane.store.sql import SqlStore, open_store

STORES = ("file", "memory", "aiosqlite", "postgresql")
"""Another database joins the suite with a name here and a URL below."""


async def store_url(kind: str, folder: Path, request: pytest.FixtureRequest) -> str | URL:
    """Where an empty store of a kind lives."""
    if kind == "postgresql":
        databases: Databases = request.getfixturevalue("postgresql")
        return await databases.clean()
    return {
        "file": str(folder / "store.db"),
        "memory": ":memory:",
        "aiosqlite": f"sqlite+aiosqlite:///{folder / 'store.db'}",
    }[kind]


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    """An empty store."""
    opened = await open_store(await store_url(request.param, tmp_path, request))
    yield opened
    await opened.close()


@dataclass
class Clock:
    """A clock that moves by one millisecond and one microsecond each time it is read."""

    now: datetime = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(microseconds=1001)
        return self.now


@dataclass
class Lane:
    """One conversation's lane, by hand: keeps seq, order and tokens, and commits what it is told to."""

    store: SqlStore
    conversation_id: str = field(default_factory=lambda: f"c-{uuid.uuid4().hex[:8]}")
    clock: Clock = field(default_factory=Clock)
    epoch: int = 0
    seq: int = 0
    order: int = 0
    tokens: dict[str, int] = field(default_factory=dict)

    def beside(self, conversation_id: str | None = None) -> Lane:
        """A lane of another conversation, or another hand on a named one; not opened yet."""
        return Lane(self.store, conversation_id or f"c-{uuid.uuid4().hex[:8]}", self.clock)

    async def open(self, owner: str = "lane-1") -> Lane:
        opened = await self.store.open_lane(self.conversation_id, owner, None)
        assert opened.epoch is not None
        self.epoch = opened.epoch
        return self

    def mutation(self, kind: MutationKind, effect: Effect) -> Mutation:
        self.seq += 1
        return Mutation(seq=self.seq, kind=kind, at=self.clock(), effect=effect)

    def message(self, message_id: str, text: str = "hello", **changes: Any) -> Message:
        at = self.clock()
        fields: dict[str, Any] = {
            "id": message_id,
            "conversation_id": self.conversation_id,
            "role": Role.USER,
            "status": MessageStatus.COMMITTED,
            "parts": (TextPart(text=text),),
            "created_at": at,
            "updated_at": at,
        }
        return Message(**(fields | changes))

    def admit(
        self,
        key: str,
        *,
        policy: Policy = Policy.QUEUE,
        into: str | None = None,
        agent: str = "helper",
        tenant: str | None = None,
        message: Message | None = None,
        assistant_id: str | None = None,
        run_id: str | None = None,
        blob: BlobRef | None = None,
        context: JsonObject | None = None,
    ) -> Mutation:
        message = message or self.message(f"in-{key}", text=f"question {key}")
        run_id = into or run_id or f"run-{key}"
        assistant_id = assistant_id or (f"out-{key}" if into is None else f"out-{into.removeprefix('run-')}")
        receipt = Receipt(
            conversation_id=self.conversation_id,
            idempotency_key=key,
            content_digest="d" * 32,
            input_message_id=message.id,
            run_id=run_id,
            assistant_message_id=assistant_id,
            policy=policy,
        )
        self.order += 1 if into is None else 0
        urgent = policy is Policy.INTERRUPT_NEXT
        run = NewRun(
            id=run_id,
            assistant_message_id=assistant_id,
            admission_order=self.order,
            queue_priority=QueuePriority.INTERRUPT_NEXT if urgent else None,
            context=context,
        )
        effect = AdmitInput(
            message=message,
            receipt=receipt,
            blob=blob,
            run=run if into is None else None,
            coalesce_into=into,
            agent=agent,
            tenant=tenant,
        )
        return self.mutation(MutationKind.ACCEPT, effect)

    def start(self, run_id: str, *, resumes: bool = False) -> Mutation:
        self.tokens[run_id] = self.tokens.get(run_id, 0) + 1
        effect = StartRun(run_id=run_id, token=self.tokens[run_id], owner_id="worker-1", resumes=resumes)
        return self.mutation(MutationKind.ACQUIRE, effect)

    def interrupt(self, run_id: str) -> Mutation:
        effect = RequestInterrupt(run_id=run_id, reason=AbortReason.INTERRUPT)
        return self.mutation(MutationKind.INTERRUPT, effect)

    def requeue(self, run_id: str) -> Mutation:
        return self.mutation(MutationKind.RECOVER, RequeueRun(run_id=run_id))

    def settle(
        self,
        run_id: str,
        reason: TerminalReason = TerminalReason.SUCCESS,
        *,
        absorbed: Sequence[tuple[str, tuple[str, ...]]] = (),
        control: ControlReason | None = None,
        policy_name: str | None = None,
        failure: Failure | None = None,
        answers: bool = False,
    ) -> Mutation:
        effect = SettleRun(
            run_id=run_id,
            reason=reason,
            policy_name=policy_name,
            control=control,
            failure=failure,
            absorbed=tuple(Absorption(run_id=name, input_ids=ids) for name, ids in absorbed),
            answers=answers,
        )
        return self.mutation(MutationKind.TERMINAL, effect)

    def compact(self, summary_id: str, *message_ids: str) -> Mutation:
        summary = self.message(summary_id, text="in short", role=Role.SUMMARY)
        return self.mutation(MutationKind.COMPACT, CompactRange(message_ids=message_ids, summary=summary))

    def seed(self, key: str, *message_ids: str) -> Mutation:
        messages = tuple(self.message(name, text=name) for name in message_ids)
        return self.mutation(MutationKind.SEED, SeedInputs(seed_key=key, messages=messages))

    def choose_model(self, key: str | None) -> Mutation:
        return self.mutation(MutationKind.MODEL, ChooseModel(model=key))

    def purge(self) -> Mutation:
        return self.mutation(MutationKind.PURGE, PurgeConversation())

    def note(self, kind: str = "retry/started") -> Mutation:
        return self.mutation(MutationKind.NOTE, AppendEvent(kind=kind, payload={"attempt": 2}))

    def batch(self, *mutations: Mutation) -> CommitBatch:
        return CommitBatch(conversation_id=self.conversation_id, epoch=self.epoch, mutations=mutations)

    async def commit(self, *mutations: Mutation) -> Committed:
        """Commit and return whatever the store answers."""
        return await self.store.commit(self.batch(*mutations), self.clock())

    async def apply(self, *mutations: Mutation) -> tuple[MutationResult, ...]:
        """Commit what must be applied."""
        committed = await self.commit(*mutations)
        assert committed.reply.outcome is CommitOutcome.APPLIED
        return committed.reply.results

    async def begin_run(self, key: str, **options: Any) -> Fence:
        """Admit an input and start its run; the fence of its first attempt."""
        await self.apply(self.admit(key, **options), self.start(f"run-{key}"))
        return self.fence(f"run-{key}")

    async def answer(self, key: str, text: str = "an answer", **options: Any) -> None:
        """Admit, run one step and settle."""
        fence = await self.begin_run(key, **options)
        await self.begin_step(fence)
        await self.finish_step(fence, TextPart(text=text))
        await self.apply(self.settle(f"run-{key}"))

    async def said(self) -> list[str]:
        """The ids of the active history, in order."""
        return [message.id for message in (await self.store.load_snapshot(self.conversation_id)).messages]

    async def stored(self, run_id: str) -> Run:
        """A run as it stands."""
        view = await self.store.load_run(self.conversation_id, run_id)
        assert view is not None
        return view.run

    def fence(self, run_id: str, step: int = 0, attempt: int = 1) -> Fence:
        return Fence(
            conversation_id=self.conversation_id,
            epoch=self.epoch,
            run_id=run_id,
            token=self.tokens[run_id],
            step=step,
            attempt=attempt,
        )

    async def begin_step(self, fence: Fence, **brought: Any) -> Written:
        start = StepStart(
            fence=fence,
            assistant_message_id=answer_id(fence),
            operation=operation(OperationPhase.STARTED, fence.step, self.clock()),
            evidence={"model": "m-1"},
            **brought,
        )
        return await self.store.begin_step(start, self.clock())

    async def checkpoint(self, fence: Fence, *parts: Part, first_output: bool = False) -> Written:
        now = self.clock()
        seen = operation(OperationPhase.FIRST_OUTPUT, fence.step, now) if first_output else None
        return await self.store.checkpoint(fence, answer_id(fence), parts, seen, now)

    async def finish_step(
        self,
        fence: Fence,
        *parts: Part,
        calls: Sequence[NewCall] = (),
        usage: Usage | None = None,
        keep_parts: bool = True,
        unbilled: bool = False,
        finish: FinishReason | None = None,
        settles: bool = False,
    ) -> Written:
        phase = OperationPhase.COMPLETED if keep_parts else OperationPhase.FAILED
        evidence: JsonObject = {"response": "r-1"}
        if finish is not None:
            evidence = {"run_id": fence.run_id, "step": fence.step, "finish": finish.value, "response": {"id": "r-1"}}
        record = StepFinish(
            fence=fence,
            assistant_message_id=answer_id(fence),
            operation=operation(phase, fence.step, self.clock()),
            parts=parts,
            calls=tuple(calls),
            usage=usage,
            evidence=evidence,
            keep_parts=keep_parts,
            unbilled=unbilled,
            settles=settles,
        )
        return await self.store.finish_step(record, self.clock())

    def reported(self, tokens: int, cost: float | None = None) -> Usage:
        """What a provider says it spent."""
        usage = Usage(input_tokens=UsageValue.reported(tokens), output_tokens=UsageValue.reported(tokens))
        if cost is None:
            return usage
        figure = CostValue(value=cost, currency="USD", provenance=Provenance.PROVIDER_REPORTED)
        return usage.model_copy(update={"cost": figure})

    def result(self, call_id: str, output: JsonValue = "done") -> ToolResultPart:
        """What a tool answered."""
        return ToolResultPart(call_id=call_id, tool_name="look", outcome=ToolOutcome.SUCCESS, output=output)

    async def call_tools(self, fence: Fence, *call_ids: str) -> None:
        """Run a step that asks for a tool, as often as there are ids."""
        await self.begin_step(fence)
        parts = [ToolCallPart(call_id=name, tool_name="look", input={"at": name}) for name in call_ids]
        calls = [NewCall(slot=slot, call_id=name, tool_name="look") for slot, name in enumerate(call_ids, 1)]
        await self.finish_step(fence, *parts, calls=calls)


@pytest.fixture
async def lane(store: SqlStore) -> Lane:
    """An open lane of a conversation of its own."""
    return await Lane(store).open()


def answer_id(fence: Fence) -> str:
    return f"out-{fence.run_id.removeprefix('run-')}"


def operation(phase: OperationPhase, step: int, at: datetime) -> Operation:
    """A model request in a phase."""
    ended = phase in (OperationPhase.COMPLETED, OperationPhase.FAILED)
    return Operation(
        operation_id=f"op-{step}",
        kind=OperationKind.MODEL_REQUEST,
        phase=phase,
        step=step,
        started_at=at,
        first_output_at=at if phase is OperationPhase.FIRST_OUTPUT else None,
        finished_at=at if ended else None,
    )
