"""Steps: what the lane asks of provider and tool activities, and what they tell it. Ids and codes only."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from turnlane.records.admissions import Input, Policy
from turnlane.records.approvals import AskedApproval, CallOrigin
from turnlane.records.base import UNSAID, JsonObject, Name, Payload, RecordId
from turnlane.records.calls import CallRef
from turnlane.records.durable import Suspension
from turnlane.records.lane import AgentFacts, CompleteStep, Taken
from turnlane.records.messages import ToolOutcome
from turnlane.records.mutations import Landing
from turnlane.records.runs import Failure, FailureClass, RunState


class Fence(Payload):
    """The right to write on behalf of a run: refused as soon as any of it is out of date."""

    conversation_id: RecordId
    epoch: int
    run_id: RecordId
    token: int
    step: int
    attempt: int

    @property
    def publisher(self) -> str:
        """Names one publisher of transient events; tool calls append their call id instead of `model`."""
        return f"{self.run_id}:{self.token}:{self.step}"


class FinishReason(StrEnum):
    """Why the model stopped, in one vocabulary for all providers."""

    STOP = "stop"
    TOOL_CALLS = "tool-calls"
    LENGTH = "length"
    CONTENT_FILTER = "content-filter"
    ERROR = "error"
    OTHER = "other"
    PAUSED = "paused"
    """The provider paused in tools that it runs itself: asked again, it goes on where it was."""


RUNS_CALLS = frozenset({FinishReason.STOP, FinishReason.TOOL_CALLS})
"""The finish reasons of an answer that is whole: any other runs none of the calls that came with it."""


class StepRequest(Payload):
    """Make one model call for a run. The fence's attempt is that of the activity's first try.

    `facts_digest` tells which facts of the agent the lane goes by; the outcome brings newer ones. `model` is 0
    for the agent's own model, 1 for its first fallback and so on. `used_tokens` is what the provider reported as
    the input of the step before, if there was one and it did. `without_files` has files told by their names,
    because the provider refused one of them. `complete` is set where the step's answer is in the store already.
    With `may_settle` the step that turns out to be the run's last ends the run as well, if it ends it well.
    """

    agent: Name
    fence: Fence
    assistant_message_id: RecordId
    taken: Annotated[tuple[Taken, ...], UNSAID] = ()
    facts_digest: str | None = None
    model: int = 0
    used_tokens: Annotated[int | None, UNSAID] = None
    without_files: Annotated[bool, UNSAID] = False
    complete: Annotated[CompleteStep | None, UNSAID] = None
    may_settle: Annotated[bool, UNSAID] = False


class StepEnd(StrEnum):
    """How a step ended. `aborted`: it was told to stop. `stale`: its fence was no longer valid. `stopped`: it was
    not made, since a policy stops the run."""

    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"
    TIMED_OUT = "timed-out"
    STALE = "stale"
    STOPPED = "stopped"


class StepOutcome(Payload):
    """What came of a step. The content is in the store already.

    A finished step has a failure as well where its answer was cut or refused, or where judging it failed;
    `rejected` says that the agent does not accept it. `asked` are the approvals of its awaiting calls. `stop`
    names the policy that stops the run before the call. `settled` says where the end of the run landed in the
    store, if the step wrote that as well.
    """

    end: StepEnd
    attempt: int
    finish: FinishReason | None = None
    calls: Annotated[tuple[CallRef, ...], UNSAID] = ()
    failure: Annotated[Failure | None, UNSAID] = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    facts: Annotated[AgentFacts | None, UNSAID] = None
    asked: Annotated[tuple[AskedApproval, ...], UNSAID] = ()
    rejected: Annotated[bool, UNSAID] = False
    stop: Annotated[Name | None, UNSAID] = None
    operation_id: Annotated[RecordId | None, UNSAID] = None
    settled: Annotated[Landing | None, UNSAID] = None

    @property
    def fault(self) -> Failure:
        """Its failure; of one that has none, that nobody knows it."""
        return self.failure or Failure(failure_class=FailureClass.UNKNOWN)

    @property
    def runs_its_calls(self) -> bool:
        """Whether the step's tool calls are executed: an answer that was cut off runs none of them."""
        return self.end is StepEnd.FINISHED and bool(self.calls) and self.finish in RUNS_CALLS

    @property
    def is_paused(self) -> bool:
        """Whether the answer goes on in the next step."""
        return self.end is StepEnd.FINISHED and self.finish is FinishReason.PAUSED


class JudgeBoundary(Payload):
    """Judge whether a run goes on behind a round of tool calls.

    `stop` names what ends it already (`max-steps`): the judges are heard all the same.
    """

    agent: Name
    fence: Fence
    assistant_message_id: RecordId
    stop: Name | None = None


class Judgement(Payload):
    """What was judged: the name of the first policy that stops the run, or that judging failed.

    `rejected` says that the agent does not accept the answer with which the run stops.
    """

    stop: Name | None = None
    rejected: bool = False
    failure: Failure | None = None


class OpenAnswers(Payload):
    """Act on the approval answers among a run's inputs, before its first step."""

    agent: Name
    fence: Fence
    assistant_message_id: RecordId


class AnswersOpened(Payload):
    """What the answers of a run come to: the calls to make now, or why the run cannot go on.

    `waits`: other calls of the same step are still without an answer or a result, so no model call follows.
    """

    calls: tuple[CallRef, ...] = ()
    waits: bool = False
    failure: Failure | None = None
    stale: bool = False


class CallRequest(Payload):
    """Run one tool call of a step, or of the step of an earlier run that `origin` names.

    `tried` counts how often its body was run before it was suspended. `siblings` says how many calls began together
    in this round, this one included, where there are others.
    """

    agent: Name
    fence: Fence
    assistant_message_id: RecordId
    call_id: RecordId
    tool_name: Name
    slot: int
    origin: Annotated[CallOrigin | None, UNSAID] = None
    tried: int = 0
    siblings: Annotated[int | None, UNSAID] = None

    @property
    def asking_run_id(self) -> str:
        """The run that asked for the call: its own, or the one whose question was answered since."""
        return self.fence.run_id if self.origin is None else self.origin.run_id

    @property
    def asking_step(self) -> int:
        """The step in which the call was asked for."""
        return self.fence.step if self.origin is None else self.origin.step


class CallOutcome(Payload):
    """What came of a tool call. `stored`: its result is in the store; `stale`: it was not accepted.

    With `suspended` nothing came of it yet: its body waits and will be run again.
    """

    call_id: RecordId
    outcome: ToolOutcome
    code: Annotated[Name | None, UNSAID] = None
    stale: Annotated[bool, UNSAID] = False
    stored: bool = True
    suspended: Annotated[Suspension | None, UNSAID] = None


class SettleCalls(Payload):
    """Write a coded error result for calls whose activity ended without one."""

    fence: Fence
    assistant_message_id: RecordId
    calls: Annotated[tuple[CallRef, ...], Field(min_length=1)]
    code: Name


class PrepareAdmissions(Payload):
    """Check inputs against store and agent before the reducer sees them, in the order given."""

    conversation_id: RecordId
    agent: Name | None = None
    tenant: Name | None = None
    facts_digest: str | None = None
    inputs: Annotated[tuple[Input, ...], Field(min_length=1)]
    probe: tuple[bool, ...]
    has_live_run: bool = False
    model: Name | None = None


class ModelCheck(Payload):
    """Ask whether a conversation's agent has a model of this key. No agent means the only one there is."""

    conversation_id: RecordId
    agent: Name | None = None
    model: Name


class KnownReceipt(Payload):
    """An admission the store has under a key: the facts a duplicate is answered with."""

    content_digest: str
    input_message_id: RecordId
    run_id: RecordId
    assistant_message_id: RecordId
    policy: Policy
    version: int
    run_state: RunState


class RefusedInput(Payload):
    """An input that does not fit its agent, or its conversation: the error's code, message and details."""

    code: Name
    message: str
    fields: tuple[str, ...] = ()
    details: JsonObject | None = None


class PreparedAdmissions(Payload):
    """One answer per input, in order: the policy it gets, the admission its key has already, or a refusal.

    `facts` is set when the lane's copy is out of date.
    """

    inputs: tuple[Policy | KnownReceipt | RefusedInput, ...]
    facts: AgentFacts | None = None
