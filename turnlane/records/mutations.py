"""Mutations: what the lane commits to the store, and what the store answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from turnlane.records.admissions import BlobRef, Input, Receipt
from turnlane.records.base import UNSAID, JsonObject, Name, Payload, RecordId, Timestamp, canonical_json, digest
from turnlane.records.lane import AbortReason, AgentFacts, LaneHead, LaneRun, LaneSettings, RunProgress
from turnlane.records.messages import ControlReason, Message
from turnlane.records.runs import Failure, QueuePriority, TerminalReason


class NewRun(Payload):
    """A run as admission creates it: queued, revision 0."""

    id: RecordId
    assistant_message_id: RecordId
    admission_order: int
    queue_priority: QueuePriority | None = None
    context: JsonObject | None = None


class AdmitInput(Payload):
    """Append an input and its receipt; create `run`, or append to the queued run `coalesce_into`.

    With `blob` the message comes without parts: the store takes them from the blob.
    """

    type: Literal["admit-input"] = "admit-input"
    message: Message
    receipt: Receipt
    blob: BlobRef | None = None
    run: NewRun | None = None
    coalesce_into: RecordId | None = None
    agent: Name
    tenant: Name | None = None


class StartRun(Payload):
    """Acquire a queued run: running, its token, its place in the history, and an empty draft.

    `resumes` keeps the finished steps of an earlier acquisition; without it the draft is emptied.
    """

    type: Literal["start-run"] = "start-run"
    run_id: RecordId
    token: int
    owner_id: str
    resumes: bool = False


class RequestInterrupt(Payload):
    """Ask a running run to stop. From now on checkpoints conflict."""

    type: Literal["request-interrupt"] = "request-interrupt"
    run_id: RecordId
    reason: AbortReason


class RequeueRun(Payload):
    """Put a run whose owner is gone back into the queue; everything but the owner stays."""

    type: Literal["requeue-run"] = "requeue-run"
    run_id: RecordId


class Absorption(Payload):
    """A queued run whose inputs another run answered: all of them, in this order."""

    run_id: RecordId
    input_ids: Annotated[tuple[RecordId, ...], Field(min_length=1)]


class SettleRun(Payload):
    """End a run. State, message status and the closing of open tool calls follow from `reason`.

    `answers` says that its inputs answer approvals: calls that it was to act on, and did not, are closed too.
    """

    type: Literal["settle-run"] = "settle-run"
    run_id: RecordId
    reason: TerminalReason
    policy_name: Name | None = None
    control: ControlReason | None = None
    failure: Failure | None = None
    absorbed: tuple[Absorption, ...] = ()
    answers: bool = False


class CompactRange(Payload):
    """Mark messages as compacted and put a summary where the last of them stood.

    With `blob` the summary comes without parts: the store takes them, and the ids of what it replaces, from
    the `CompactedRange` in the blob, so that neither size nor content of a conversation is in a history.
    """

    type: Literal["compact-range"] = "compact-range"
    message_ids: tuple[RecordId, ...]
    summary: Message
    blob: BlobRef | None = None


class SeedInputs(Payload):
    """Prepend unowned user messages once under a key."""

    type: Literal["seed-inputs"] = "seed-inputs"
    seed_key: RecordId
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]


class PurgeConversation(Payload):
    """Delete everything of the conversation and leave a tombstone."""

    type: Literal["purge-conversation"] = "purge-conversation"


class ChooseModel(Payload):
    """Keep the key of the model for the runs to come; None is the agent's own."""

    type: Literal["choose-model"] = "choose-model"
    model: Name | None = None


class AppendEvent(Payload):
    """Append a ledger event that changes no record; the version stays."""

    type: Literal["append-event"] = "append-event"
    kind: Name
    payload: JsonObject


Effect = Annotated[
    AdmitInput
    | StartRun
    | RequestInterrupt
    | RequeueRun
    | SettleRun
    | CompactRange
    | SeedInputs
    | PurgeConversation
    | ChooseModel
    | AppendEvent,
    Field(discriminator="type"),
]


class MutationKind(StrEnum):
    """The kinds of a `runtime/transition` ledger event; `note` mutations append their own kind."""

    ACCEPT = "accept"
    ACQUIRE = "acquire"
    INTERRUPT = "interrupt"
    CANCEL = "cancel"
    RECOVER = "recover"
    TERMINAL = "terminal"
    COMPACT = "compact"
    SEED = "seed"
    PURGE = "purge"
    MODEL = "model"
    NOTE = "note"
    CHECKPOINT = "checkpoint"
    OPERATION = "operation"


class Mutation(Payload):
    """One transition as it is committed: applied whole or not at all, once, in the order of `seq`."""

    seq: int
    kind: MutationKind
    at: Timestamp
    effect: Effect

    @property
    def run_id(self) -> str | None:
        """The run it is about, if it is about one."""
        effect = self.effect
        if isinstance(effect, AdmitInput):
            return effect.run.id if effect.run is not None else effect.coalesce_into
        return getattr(effect, "run_id", None)

    @property
    def digest(self) -> str:
        """Tells this mutation from another one at the same place; clocks do not count."""
        plain = self.model_dump(mode="json", exclude={"at": True})
        message = plain["effect"].get("message") or plain["effect"].get("summary")
        for record in [message, *plain["effect"].get("messages", [])]:
            if record is not None:
                record.pop("created_at")
                record.pop("updated_at")
        return digest(plain)

    @property
    def size(self) -> int:
        """Bytes of JSON, for keeping a batch under the payload limit."""
        return len(canonical_json(self.model_dump(mode="json")).encode())


class CommitBatch(Payload):
    """Mutations of one conversation in order, under the epoch that may commit them."""

    conversation_id: RecordId
    epoch: int
    mutations: Annotated[tuple[Mutation, ...], Field(min_length=1)]


class CommitOutcome(StrEnum):
    """`superseded`: another epoch owns the conversation. `diverged`: another mutation stands at this seq."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"
    DIVERGED = "diverged"
    PURGED = "purged"


class MutationResult(Payload):
    """Where a mutation landed: the version after it, its ledger seq, the revisions of the runs it touched."""

    seq: int
    version: int
    ledger_seq: int
    revisions: dict[str, int] = Field(default_factory=dict)


class CommitReply(Payload):
    """What a store answers to a batch."""

    outcome: CommitOutcome
    results: tuple[MutationResult, ...] = ()


class Landing(NamedTuple):
    """Where a mutation landed, as the lane's history keeps it: the version, and the revision of the run it is about.

    One about a run that changed nothing has no revision: the run's last step had ended it by then.
    """

    version: int
    revision: int | None = None


class CommitAnswer(Payload):
    """What the lane is told of a commit: short, since every turn keeps two of them."""

    outcome: CommitOutcome
    landings: tuple[Landing, ...] = ()


class OpenLane(Payload):
    """Take the next epoch of a conversation.

    `owner` identifies the workflow run: the same owner asking twice gets the same epoch. With
    `carried_epoch` the caller is a successor by continue-as-new and must find that epoch still in force.
    `agent` is the one that the first input names: whose facts are told, should the conversation have none yet.
    """

    conversation_id: RecordId
    owner: str
    carried_epoch: int | None = None
    facts_digest: str | None = None
    agent: Annotated[Name | None, UNSAID] = None


class LaneOpened(Payload):
    """An epoch, and the head from the store unless the caller carried one.

    `more` means that active runs remain to be loaded after the last one of `head.runs`. `progress` is how
    far a live run got before its lane was lost. `epoch` is None when the carried epoch was superseded.
    """

    epoch: int | None
    head: LaneHead | None = None
    progress: RunProgress | None = None
    more: bool = False
    settings: LaneSettings = LaneSettings()
    facts: AgentFacts | None = None


class QueuePage(Payload):
    """Ask for the active runs behind one of them, in queue order."""

    conversation_id: RecordId
    after_run_id: RecordId


class QueueRuns(Payload):
    runs: tuple[LaneRun, ...]
    more: bool


class SignalPage(Payload):
    """Signalled inputs that nobody but a lane has, in their order."""

    conversation_id: RecordId
    inputs: tuple[Input, ...]


class PageRequest(Payload):
    """Ask for a page of signalled inputs that was kept."""

    conversation_id: RecordId
    page: BlobRef


class RunLookup(Payload):
    """Ask how a run stands that the head has let go."""

    conversation_id: RecordId
    run_id: RecordId
