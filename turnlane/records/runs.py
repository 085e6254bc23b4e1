"""Runs: one answer being produced, its states and reasons as one table that everything derives from."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from turnlane.records.base import Count, Name, Record, RecordId, Timestamp
from turnlane.records.messages import Message, MessageStatus
from turnlane.records.usage import Usage

Version = Annotated[int, Field(ge=0)]


class RunState(StrEnum):
    """Where a run is between its admission and its end."""

    QUEUED = "queued"
    RUNNING = "running"
    INTERRUPT_REQUESTED = "interrupt_requested"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"

    @property
    def is_active(self) -> bool:
        """Queued, running or asked to stop: listed as active, recoverable, and in the way of a purge."""
        return self in ACTIVE_STATES

    @property
    def is_live(self) -> bool:
        """Acquired and not yet settled. A conversation has at most one such run."""
        return self in LIVE_STATES


LIVE_STATES = frozenset({RunState.RUNNING, RunState.INTERRUPT_REQUESTED})
ACTIVE_STATES = LIVE_STATES | {RunState.QUEUED}


class TerminalReason(StrEnum):
    """Why a run ended. `ENDINGS` has what follows from it."""

    SUCCESS = "success"
    POLICY_STOP = "policy_stop"
    PROVIDER_STOP = "provider_stop"
    INTERRUPTED = "interrupted"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"
    PROVIDER_FAILURE = "provider_failure"
    CONTEXT_OVERFLOW = "context_overflow"
    STORAGE_CONFLICT = "storage_conflict"
    OUTPUT_REJECTED = "output_rejected"
    RUNTIME_FAILURE = "runtime_failure"
    ABSORBED = "absorbed"
    ABANDONED = "abandoned"


class Ending(NamedTuple):
    """What a terminal reason makes of the run and of its assistant message."""

    state: RunState
    message_status: MessageStatus | None


ENDINGS: dict[TerminalReason, Ending] = {
    TerminalReason.SUCCESS: Ending(RunState.COMPLETED, MessageStatus.COMPLETED),
    TerminalReason.POLICY_STOP: Ending(RunState.COMPLETED, MessageStatus.COMPLETED),
    TerminalReason.PROVIDER_STOP: Ending(RunState.COMPLETED, MessageStatus.COMPLETED),
    TerminalReason.INTERRUPTED: Ending(RunState.INTERRUPTED, MessageStatus.INTERRUPTED),
    TerminalReason.SUPERSEDED: Ending(RunState.SUPERSEDED, MessageStatus.SUPERSEDED),
    TerminalReason.CANCELLED: Ending(RunState.CANCELLED, MessageStatus.INTERRUPTED),
    TerminalReason.SHUTDOWN: Ending(RunState.CANCELLED, MessageStatus.INTERRUPTED),
    TerminalReason.TIMEOUT: Ending(RunState.CANCELLED, MessageStatus.FAILED),
    TerminalReason.PROVIDER_FAILURE: Ending(RunState.FAILED, MessageStatus.FAILED),
    TerminalReason.CONTEXT_OVERFLOW: Ending(RunState.FAILED, MessageStatus.FAILED),
    TerminalReason.STORAGE_CONFLICT: Ending(RunState.FAILED, MessageStatus.FAILED),
    TerminalReason.OUTPUT_REJECTED: Ending(RunState.FAILED, MessageStatus.FAILED),
    TerminalReason.RUNTIME_FAILURE: Ending(RunState.FAILED, MessageStatus.FAILED),
    TerminalReason.ABSORBED: Ending(RunState.SUPERSEDED, None),
    TerminalReason.ABANDONED: Ending(RunState.ABANDONED, MessageStatus.FAILED),
}
"""The one table: reason, run state, status of the assistant message (an absorbed run has none)."""


class OperationKind(StrEnum):
    """What is asked of a provider."""

    MODEL_REQUEST = "model-request"
    COMPACTION = "compaction"


class OperationPhase(StrEnum):
    """How far an operation got."""

    STARTED = "started"
    FIRST_OUTPUT = "first-output"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_PHASES = frozenset({OperationPhase.COMPLETED, OperationPhase.FAILED, OperationPhase.CANCELLED})


class Operation(Record):
    """The latest thing a run did at a provider. Replaced, never logged; clocks are observations only."""

    operation_id: RecordId
    kind: OperationKind
    phase: OperationPhase
    step: Count | None = None
    started_at: Timestamp
    first_output_at: Timestamp | None = None
    finished_at: Timestamp | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Operation:
        if (self.step is not None) is not (self.kind is OperationKind.MODEL_REQUEST):
            raise ValueError("an operation has a step exactly when it is a model request")
        if self.kind is OperationKind.COMPACTION and (
            self.phase is OperationPhase.FIRST_OUTPUT or self.first_output_at is not None
        ):
            raise ValueError("a compaction has no first output")
        if self.phase is OperationPhase.FIRST_OUTPUT and self.first_output_at is None:
            raise ValueError("the first-output phase says when")
        if self.phase is OperationPhase.STARTED and self.first_output_at is not None:
            raise ValueError("a started operation has no output yet")
        if (self.finished_at is not None) is not (self.phase in FINAL_PHASES):
            raise ValueError("an operation is finished exactly in a final phase")
        return self


class FailureClass(StrEnum):
    """What went wrong, as a code that may be shown, stored and searched."""

    CONNECTION = "connection"
    STREAM_CUT = "stream_cut"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    INSUFFICIENT_CREDITS = "insufficient_credits"
    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    MODEL_UNAVAILABLE = "model_unavailable"
    INVALID_REQUEST = "invalid_request"
    CONTEXT_OVERFLOW = "context_overflow"
    FILE_REFUSED = "file_refused"
    MALFORMED_RESPONSE = "malformed_response"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    STORAGE = "storage"
    APPLICATION = "application"
    UNKNOWN = "unknown"


class Failure(Record):
    """Why a step or a run failed: codes only, never a provider's text, a prompt or a key.

    `record_id` is the message that could not be told to the model, where one was the reason.
    """

    failure_class: FailureClass
    code: Name | None = None
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    retryable: bool = False
    retry_after_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    provider: Name | None = None
    record_id: RecordId | None = None


class QueuePriority(StrEnum):
    INTERRUPT_NEXT = "interrupt-next"


class Run(Record):
    """One answer being produced.

    `version`, `revision` and `execution_sequence` are given by the store. `admission_order` is the
    lane's counter of admissions: the order of the queue, never a clock.
    """

    schema_version: Literal[1] = 1
    id: RecordId
    conversation_id: RecordId
    input_message_ids: Annotated[tuple[RecordId, ...], Field(min_length=1)]
    assistant_message_id: RecordId
    state: RunState
    revision: Version
    admission_order: Annotated[int, Field(ge=1)]
    queue_priority: QueuePriority | None = None
    execution_sequence: Version | None = None
    owner_id: str | None = None
    fencing_token: Annotated[int, Field(ge=1)] | None = None
    terminal_reason: TerminalReason | None = None
    terminal_policy_name: Name | None = None
    absorbed_into_run_id: RecordId | None = None
    failure: Failure | None = None
    usage: Usage | None = None
    last_operation: Operation | None = None
    created_at: Timestamp
    updated_at: Timestamp

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Run:
        reason = self.terminal_reason
        if (reason is None) is not self.state.is_active:
            raise ValueError("a run has a terminal reason exactly when it is terminal")
        if reason is not None and ENDINGS[reason].state is not self.state:
            raise ValueError(f"{reason} does not end a run as {self.state}")
        if (self.terminal_policy_name is not None) is not (reason is TerminalReason.POLICY_STOP):
            raise ValueError("a policy name stands exactly on policy_stop")
        if (self.absorbed_into_run_id is not None) is not (reason is TerminalReason.ABSORBED):
            raise ValueError("an absorbing run is named exactly when the reason is absorbed")
        if self.absorbed_into_run_id == self.id:
            raise ValueError("a run does not absorb itself")
        if len(set(self.input_message_ids)) != len(self.input_message_ids):
            raise ValueError("a run lists an input once")
        return self


class RunView(Record):
    """One run as it stands: the conversation's version at the read, and the terminal assistant if any."""

    conversation_id: RecordId
    snapshot_version: Version
    run: Run
    assistant: Message | None = None


class Snapshot(Record):
    """A conversation as it stands: active messages in causal order, and the runs they belong to."""

    schema_version: Literal[1] = 1
    conversation_id: RecordId
    version: Version
    agent: Name | None = None
    tenant: Name | None = None
    messages: tuple[Message, ...] = ()
    runs: tuple[Run, ...] = ()
