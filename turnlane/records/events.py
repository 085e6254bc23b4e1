"""Delivery events: what a watcher of a conversation is told.

Durable events are rows before they are news. Their id is `{run_id}:{type}:{version}` with the
conversation's version after the mutation, so two runs' events may share a version. Transient events
carry the epoch of one publisher and its sequence, 1, 2, 3 without holes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from turnlane.records.base import UNSAID, Count, Json, Name, ProviderEnvelope, Record, RecordId, Text, Timestamp
from turnlane.records.messages import Message
from turnlane.records.runs import Failure, Operation, Run, RunState, TerminalReason, Version
from turnlane.records.usage import Usage


class Metrics(Record):
    """What a run has spent so far, cumulative: read the latest, never add.

    Of a run that ended, `duration_ms` is the time since it was first acquired, and `ttft_ms` from there to its first
    output.
    """

    partial: bool
    usage: Usage
    duration_ms: Count | None = None
    ttft_ms: Count | None = None


class _Event(Record):
    conversation_id: RecordId
    run_id: RecordId
    emitted_at: Timestamp


class _Durable(_Event):
    snapshot_version: Version

    @property
    def event_id(self) -> str:
        """The identity of the event, the same whoever tells it and however often."""
        return f"{self.run_id}:{self.type}:{self.snapshot_version}"  # type: ignore[attr-defined]


class AdmissionEvent(_Durable):
    """An input was admitted. Idempotent by run and input: a duplicate tells old facts again."""

    type: Literal["admission"] = "admission"
    input: Message
    run: Run
    assistant_message_id: RecordId


class RunStateEvent(_Durable):
    """A run changed its state: queued, acquired, asked to stop, requeued, or ended.

    One that was acquired tells the time since its admission.
    """

    type: Literal["run-state"] = "run-state"
    state: RunState
    queue_wait_ms: Annotated[Count | None, UNSAID] = None


class RunOperationEvent(_Durable):
    """What the run does at its provider now; it replaces the operation told before."""

    type: Literal["run-operation"] = "run-operation"
    operation: Operation


class AssistantCheckpointEvent(_Durable):
    """The draft as stored. A barrier: it replaces what deltas built up before it."""

    type: Literal["assistant-checkpoint"] = "assistant-checkpoint"
    message: Message
    metrics: Metrics | None = None


class TerminalEvent(_Durable):
    """A run ended: why, the run as it then was, and the whole answer. Nothing of this run comes after it."""

    type: Literal["terminal"] = "terminal"
    reason: TerminalReason
    policy_name: Name | None = None
    failure: Failure | None = None
    message: Message
    metrics: Metrics | None = None
    run: Run | None = None


class _Transient(_Event):
    epoch: Annotated[str, Field(min_length=1)]
    sequence: Annotated[int, Field(ge=1)]


class AssistantDeltaEvent(_Transient):
    """More text of the answer."""

    type: Literal["assistant-delta"] = "assistant-delta"
    text_delta: Text


class ReasoningStartEvent(_Transient):
    """The model begins to think."""

    type: Literal["reasoning-start"] = "reasoning-start"


class ReasoningDeltaEvent(_Transient):
    """More of what the model thinks."""

    type: Literal["reasoning-delta"] = "reasoning-delta"
    text_delta: Text


class ReasoningEndEvent(_Transient):
    """The model thought to an end; `provider` is what goes back to the provider with it."""

    type: Literal["reasoning-end"] = "reasoning-end"
    provider: ProviderEnvelope | None = None


class ToolStatus(StrEnum):
    """How far a tool call got. `waiting`: its body sleeps, or waits for an event, and no worker has it."""

    STARTED = "started"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class ToolStatusEvent(_Transient):
    """A tool call moved on. `output` of a failed call is the safe error envelope; `until` is when a call that
    waits goes on at the latest, if that is known. A call that goes on is told as started again."""

    type: Literal["tool-status"] = "tool-status"
    call_id: RecordId
    tool_name: Name
    status: ToolStatus
    input: Json = None
    output: Json = None
    until: Timestamp | None = None


class AttemptResetEvent(_Transient):
    """Everything transient that `withdrawn` epochs of this step published is withdrawn."""

    type: Literal["attempt-reset"] = "attempt-reset"
    step: Annotated[int, Field(ge=0)]
    attempt: Annotated[int, Field(ge=2)]
    withdrawn: Annotated[str, Field(min_length=1)]


DurableEvent = Annotated[
    AdmissionEvent | RunStateEvent | RunOperationEvent | AssistantCheckpointEvent | TerminalEvent,
    Field(discriminator="type"),
]
TransientEvent = Annotated[
    AssistantDeltaEvent
    | ReasoningStartEvent
    | ReasoningDeltaEvent
    | ReasoningEndEvent
    | ToolStatusEvent
    | AttemptResetEvent,
    Field(discriminator="type"),
]
Event = Annotated[
    AdmissionEvent
    | RunStateEvent
    | RunOperationEvent
    | AssistantCheckpointEvent
    | TerminalEvent
    | AssistantDeltaEvent
    | ReasoningStartEvent
    | ReasoningDeltaEvent
    | ReasoningEndEvent
    | ToolStatusEvent
    | AttemptResetEvent,
    Field(discriminator="type"),
]

EVENT_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)
DURABLE_TYPES = (AdmissionEvent, RunStateEvent, RunOperationEvent, AssistantCheckpointEvent, TerminalEvent)


def is_durable(event: Event) -> bool:
    """Whether the event is a row in the store, and so can be caught up on."""
    return isinstance(event, DURABLE_TYPES)
