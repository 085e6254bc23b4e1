"""Payloads: what a store is given, and what it gives back."""

from __future__ import annotations

from turnlane.records.admissions import Receipt
from turnlane.records.base import Json, JsonObject, Name, Payload, RecordId, Timestamp
from turnlane.records.events import DurableEvent
from turnlane.records.lane import LaneHead, RunProgress
from turnlane.records.messages import Message, Part, ToolResultPart
from turnlane.records.mutations import CommitReply, Landing
from turnlane.records.runs import Operation, Run, TerminalReason
from turnlane.records.steps import Fence
from turnlane.records.turns import PreparedTurn, Seed
from turnlane.records.usage import Usage


class OpenedLane(Payload):
    """What `open_lane` found. `epoch` is None when a carried epoch is no longer in force."""

    epoch: int | None
    head: LaneHead
    progress: RunProgress | None = None
    more: bool = False


class Committed(Payload):
    """A commit's answer for the lane, and the durable events that it made, in order, for the bus."""

    reply: CommitReply
    events: tuple[DurableEvent, ...] = ()


class Written(Payload):
    """Where a fenced write landed, and the durable events it made. `settled` is where the end of the run landed, if
    a step wrote that."""

    version: int
    revision: int
    events: tuple[DurableEvent, ...] = ()
    settled: Landing | None = None


class StepStart(Payload):
    """Begin an attempt of a step: the operation record and the request evidence for the ledger.

    `model` says which of its agent's models the run speaks with from here on.
    `prepared` is kept for the run's later steps and attempts, in place of what it had; `seed` is planted
    in front of the history unless it was before. `catalog` counts, for the ledger, what the step offers.
    """

    fence: Fence
    assistant_message_id: RecordId
    operation: Operation
    evidence: JsonObject
    prepared: PreparedTurn | None = None
    seed: Seed | None = None
    model: int = 0
    catalog: JsonObject | None = None


class NewCall(Payload):
    """A tool call that a step asked for. `result` is set when it cannot run, `approval_id` when somebody must
    approve it first."""

    slot: int
    call_id: RecordId
    tool_name: Name
    result: ToolResultPart | None = None
    approval_id: RecordId | None = None
    approval_expires_at: Timestamp | None = None


class StepFinish(Payload):
    """End an attempt of a step. `parts` is the model's whole output of this step, in order.

    `usage` is this attempt's own figure (None: it never reported, and unless `unbilled` that makes the run's
    figures floors). A failed attempt that will be tried
    again leaves no parts. `evidence` is the response identity for the ledger. With `settles` the run ends with the
    step, as `success`, unless it was asked to stop by then.
    """

    fence: Fence
    assistant_message_id: RecordId
    operation: Operation
    parts: tuple[Part, ...]
    calls: tuple[NewCall, ...] = ()
    usage: Usage | None = None
    evidence: JsonObject
    keep_parts: bool = True
    unbilled: bool = False
    settles: bool = False


class CompactionStart(Payload):
    """Begin an attempt at a run's compaction."""

    fence: Fence
    assistant_message_id: RecordId
    operation: Operation


class CompactionFinish(Payload):
    """End an attempt at a run's compaction. `usage` is its own figure (None: it called nobody)."""

    fence: Fence
    assistant_message_id: RecordId
    operation: Operation
    usage: Usage | None = None
    evidence: JsonObject


class NewEvent(Payload):
    """A ledger event that is appended together with a record. It names and counts, and quotes nothing."""

    kind: Name
    payload: JsonObject


class CallStart(Payload):
    """A tool call as stored: its arguments, whether an earlier try began it, and its result if it has one."""

    input: Json
    started_before: bool
    result: ToolResultPart | None = None


class Spill(Payload):
    """What of a tool's output the model is not shown: kept as a blob under an id that follows from it."""

    data: bytes
    media_type: Name


class HistoryStep(Payload):
    """One step of an assistant message: the model's parts, then one result part per finished call, in call order.

    `open_calls` are calls without a result.
    """

    step: int
    parts: tuple[Part, ...]
    results: tuple[ToolResultPart, ...] = ()
    open_calls: tuple[RecordId, ...] = ()


class HistoryMessage(Payload):
    """A message as the projection needs it; `steps` is set on assistant messages, in order."""

    message: Message
    steps: tuple[HistoryStep, ...] = ()
    run_reason: TerminalReason | None = None


class RunContext(Payload):
    """What a provider step or a tool call needs to know of its run. `model` is the key that its conversation chose."""

    run: Run
    agent: Name
    tenant: Name | None
    context: JsonObject | None
    metadata: JsonObject | None
    prepared: PreparedTurn | None = None
    model: Name | None = None


class MessagePage(Payload):
    """A page of messages in causal order; pass `next_cursor` back to continue."""

    items: tuple[Message, ...]
    next_cursor: str | None = None


class ConversationLine(Payload):
    """One conversation in a list."""

    conversation_id: RecordId
    agent: Name | None
    tenant: Name | None
    version: int
    active_runs: int
    created_at: Timestamp
    updated_at: Timestamp


class ConversationPage(Payload):
    """A page of conversations; pass `next_cursor` back to continue."""

    items: tuple[ConversationLine, ...]
    next_cursor: str | None = None


class RecoverableRun(Payload):
    """An active run, and the conversation that it belongs to."""

    conversation_id: RecordId
    run_id: RecordId
    run: Run


class RecoverablePage(Payload):
    """A page of active runs; pass `next_cursor` back to continue."""

    items: tuple[RecoverableRun, ...]
    next_cursor: str | None = None


class StoredReceipt(Payload):
    """A receipt and the version at which it was admitted."""

    receipt: Receipt
    version: int


class StoredBlob(Payload):
    """A blob without its content; `size` in bytes."""

    media_type: Name
    size: int
