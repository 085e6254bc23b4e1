"""The lane head: the bounded control state that the workflow holds."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from turnlane.records.admissions import Admission, BlobRef, Input, Policy, Terminal
from turnlane.records.approvals import AskedApproval
from turnlane.records.base import UNSAID, Name, Payload, RecordId, derived_id, digest
from turnlane.records.durable import SuspendedCall
from turnlane.records.errors import InvalidInputError
from turnlane.records.runs import RunState


class AbortReason(StrEnum):
    """Why a live run was asked to stop. The first reason stands."""

    INTERRUPT = "interrupt"
    SUPERSEDE = "supersede"
    SHUTDOWN = "shutdown"


class ApprovalAnswer(NamedTuple):
    """An approval that an input answers, and how."""

    approval_id: str
    approved: bool


class LaneRun(Payload):
    """An active run as the lane needs it: control facts, no content.

    `order` is the admission counter. `offered` are inputs with the inject policy that no boundary has
    taken yet; `coalescable` means a later input may still join this queued run. `answers` are the approvals
    that its inputs answer.
    """

    id: RecordId
    assistant_message_id: RecordId
    input_ids: tuple[RecordId, ...]
    order: int
    state: RunState = RunState.QUEUED
    urgent: bool = False
    started: bool = False
    coalescable: bool = False
    token: int = 0
    revision: int = 0
    offered: tuple[RecordId, ...] = ()
    abort: AbortReason | None = None
    answers: tuple[ApprovalAnswer, ...] = ()


class HeadReceipt(NamedTuple):
    """A recent admission, packed for the head. An empty id is the one derived from the key."""

    key: str
    digest: str
    policy: str
    version: int
    input_message_id: str = ""
    run_id: str = ""
    assistant_message_id: str = ""


class NamedIds(NamedTuple):
    """The three ids of one admission."""

    input_message_id: str
    run_id: str
    assistant_message_id: str


@lru_cache(maxsize=1024)
def ids_for_key(conversation_id: str, key: str) -> NamedIds:
    """Return the ids an admission has unless the caller proposed others.

    They follow from conversation and key alone, so a resend, a replay on another worker or a second
    client proposes the same records without asking anybody.
    """
    return NamedIds(
        derived_id("in", conversation_id, key),
        derived_id("run", conversation_id, key),
        derived_id("out", conversation_id, key),
    )


class LaneHead(Payload):
    """The control state of a conversation.

    `version` is the store's counter as last heard, `seq` the lane's own counter of mutations,
    `order` the admission counter. `runs` holds every active run, in queue order: the live one first,
    started before unstarted, urgent before ordinary, then by admission. `approvals` are the latest ones
    that wait for an answer. `model` is the key of the model
    that the conversation chose.
    """

    conversation_id: RecordId
    agent: Name | None = None
    tenant: Name | None = None
    version: int = 0
    seq: int = 0
    order: int = 0
    purged: bool = False
    runs: tuple[LaneRun, ...] = ()
    receipts: tuple[HeadReceipt, ...] = ()
    receipts_complete: bool = True
    approvals: tuple[AskedApproval, ...] = ()
    model: Name | None = None

    def run(self, run_id: str) -> LaneRun | None:
        """The active run with this id, if there is one."""
        return next((run for run in self.runs if run.id == run_id), None)

    @property
    def live(self) -> LaneRun | None:
        """The run that holds the lane: running or asked to stop."""
        return next((run for run in self.runs if run.state.is_live), None)

    @property
    def queued(self) -> tuple[LaneRun, ...]:
        """The waiting runs, in the order in which they will be acquired."""
        return tuple(run for run in self.runs if run.state is RunState.QUEUED)

    def receipt(self, key: str) -> HeadReceipt | None:
        """The recent admission under this key, if the head still has it."""
        return next((receipt for receipt in reversed(self.receipts) if receipt.key == key), None)


class Taken(Payload):
    """An injected input that a boundary of the live run took, before the step it joined."""

    run_id: RecordId
    input_id: RecordId
    step: int


class CompleteStep(Payload):
    """How the answer ended of a step that is complete: its finish reason, and of one that was cut or refused why."""

    finish: Name
    code: Name | None = None
    provider: Name | None = None


class RunProgress(Payload):
    """How far the live run got: the next step, its next attempt, and what it took on the way.

    `tries` counts the tries of this step on this model; `model` is 0 for the agent's own, then its fallbacks.
    `last_input_tokens` is what the provider reported for the step just finished, if it did. `judged` is the last
    step that was allowed to begin: a lane that was lost behind a tool round did not hear whether the next one is.
    `compacted` says that the compaction before its first step was seen to.
    `without_files` says that a provider refused a file, so that files are told by their names from now on.
    `answered` says that the approvals it answers were acted on, at a step before the first one, and `waits` that
    others must be answered before a model is called. `asked` are approvals that its last step waits for, so
    that no step follows.
    With `suspended` the step itself is made, and these of its tool calls wait for something. With `complete` it is
    made and was the run's last: a lane was lost behind it, before the run could end.
    """

    run_id: RecordId
    step: int = 0
    attempt: int = 1
    tries: int = 0
    taken: tuple[Taken, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    compacted: bool = False
    answered: bool = False
    asked: tuple[AskedApproval, ...] = ()
    waits: bool = False
    model: int = 0
    without_files: bool = False
    suspended: tuple[SuspendedCall, ...] = ()
    last_input_tokens: int | None = None
    judged: int = 0
    operation_id: RecordId | None = None
    complete: CompleteStep | None = None


class RetryFacts(Payload):
    """When a failed step is tried again: total tries, first wait, growth and longest wait in seconds."""

    max_tries: Annotated[int, Field(ge=1)] = 4
    initial_seconds: Annotated[float, Field(gt=0)] = 1.0
    backoff: Annotated[float, Field(ge=1)] = 2.0
    max_seconds: Annotated[float, Field(gt=0)] = 60.0


class CompactionFacts(Payload):
    """How an agent's conversations are compacted: by themselves before a run, or only when asked; how often an
    attempt that met a conflict is made; how many seconds one may take."""

    automatic: bool = False
    max_attempts: Annotated[int, Field(ge=1)] = 3
    seconds: Annotated[float, Field(gt=0)] = 300.0


class AgentFacts(Payload):
    """What the lane must know of an agent to decide: told by a worker, so that replay repeats it.

    `policy` is set when the agent has a constant one and checks neither context nor metadata: then an
    ordinary input of a warm lane needs no word from a worker to be admitted. `judges` says that a boundary
    is judged by a worker; `fallbacks` names the models that take over from the agent's own, in order.
    """

    name: Name
    policy: Policy | None = None
    coalesce: bool = False
    max_steps: Annotated[int, Field(ge=1)] = 50
    retry: RetryFacts = RetryFacts()
    queued_runs: Annotated[int, Field(ge=1)] = 1000
    recent_receipts: Annotated[int, Field(ge=1)] = 512
    step_seconds: Annotated[float, Field(gt=0)] = 3600.0
    compaction: CompactionFacts | None = None
    judges: bool = False
    fallbacks: tuple[Name, ...] = ()

    @property
    def digest(self) -> str:
        """Changes when the facts do, so that a worker can tell whether a lane's copy is out of date."""
        return digest(self.model_dump(mode="json"))


class LaneSettings(Payload):
    """How a lane behaves whatever its agent; told by the worker that opened it.

    Continue-as-new is considered between runs from `events_between_runs` history events on, and
    between steps from `events_between_steps` on. `invocations` says that its worker keeps receipts of runs.
    """

    idle_close_seconds: Annotated[float, Field(gt=0)] | None = 900.0
    events_between_runs: Annotated[int, Field(ge=1)] = 1000
    events_between_steps: Annotated[int, Field(ge=1)] = 4000
    wait_seconds: Annotated[float, Field(gt=0)] = 30.0
    carried_head_bytes: Annotated[int, Field(ge=0)] = 64 * 1024
    local_seconds: Annotated[float, Field(gt=0)] = 5.0
    heartbeat_seconds: Annotated[float, Field(gt=0)] = 8.0
    search_attributes: bool = False
    invocations: bool = False


def _or_invalid_input(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """A start under an id that cannot be fails with our error, which ends the lane: others are tried for ever."""
    try:
        return check(value)
    except ValidationError:
        raise InvalidInputError("does not fit: conversation_id", fields=["conversation_id"]) from None


class RunRequest(Payload):
    """Name a run, and the revision the caller saw if that matters. No run means the live one."""

    run_id: RecordId | None = None
    expected_revision: int | None = None


class LaneStart(Payload):
    """The argument of the lane workflow. A caller gives the conversation, or nothing: it is in the workflow's id.

    The rest travels on continue-as-new. `inbox` and `interrupts` are what was signalled to a lane that was refused
    by its store before it could store them; `pages` are blobs of the inputs that were signalled before those in
    `inbox`, where they are too many to travel.
    """

    conversation_id: Annotated[RecordId, WrapValidator(_or_invalid_input)] | None = None
    epoch: int | None = None
    head: LaneHead | None = None
    progress: RunProgress | None = None
    facts: AgentFacts | None = None
    inbox: tuple[Input, ...] = ()
    reopened: int = 0
    interrupts: tuple[RunRequest, ...] = ()
    pages: Annotated[tuple[BlobRef, ...], UNSAID] = ()


class LaneReport(Payload):
    """What a lane workflow returns when it closes."""

    conversation_id: RecordId
    outcome: str
    version: int


class RunLine(Payload):
    """One active run, as the `runs` query shows it."""

    run_id: RecordId
    state: RunState
    urgent: bool
    inputs: int
    revision: int
    step: int | None = None


class WaitRequest(Payload):
    """Ask to be answered when a run is terminal."""

    run_id: RecordId


class WaitReply(Payload):
    """A terminal, or `again`: ask once more."""

    terminal: Terminal | None = None
    again: bool = False


class AbandonRequest(Payload):
    """Give a run up. `stale_owner` is the caller's statement that nobody works on it any more."""

    run_id: RecordId
    expected_revision: int
    stale_owner: bool


class ModelRequest(Payload):
    """Choose the model of the runs to come by its key; None goes back to the agent's own.

    `agent` says whose key it is, for a conversation that has no agent yet.
    """

    model: Name | None = None
    agent: Name | None = None


class PurgeRequest(Payload):
    """Delete the conversation for ever, if it is at this version (any, if none is given)."""

    expected_version: int | None = None


class ControlReply(Payload):
    """What a control call did: the run it touched, its state, and the versions after it."""

    run_id: RecordId | None = None
    state: RunState | None = None
    head_version: int
    run_revision: int | None = None


class RunStanding(Payload):
    """How a run stands in the store: terminal, still active, or unknown (both absent)."""

    terminal: Terminal | None = None
    state: RunState | None = None
    revision: int | None = None


class AdmissionQuery(Payload):
    """What became of a key: its admission, the code with which a signal under it was refused, or nothing yet.

    `content_digest` tells which content the admission was for, while the lane remembers it.
    """

    admission: Admission | None = None
    content_digest: str | None = None
    refusal: Name | None = None
