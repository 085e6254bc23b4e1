"""The short activities of a lane: opening, checking inputs, committing, looking up, closing calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pydantic import BaseModel, TypeAdapter, ValidationError
from temporalio import activity

from turnlane.activities.answer_checks import check_answers, refuse_hidden_answers
from turnlane.activities.budgets import check_budget
from turnlane.activities.clock import utc_now
from turnlane.activities.coded import LOST_CALL_MESSAGES, coded
from turnlane.activities.failing import as_failures
from turnlane.activities.file_checks import check_files
from turnlane.activities.operator_sink import OperatorSink
from turnlane.activities.operator_telling import Commits, ToldCommits
from turnlane.activities.patience import Patience
from turnlane.activities.publishing import tell
from turnlane.activities.resolving import preflight
from turnlane.agent.agent import Agent, PolicyContext
from turnlane.records.admissions import BlobRef, Input, Policy, Terminal
from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.errors import (
    AgentMismatchError,
    InputTooLargeError,
    InvalidInputError,
    PolicyFailedError,
    RecordIdCollisionError,
    StaleFenceError,
    TurnlaneError,
    UnknownAgentError,
)
from turnlane.records.lane import LaneSettings, RunStanding
from turnlane.records.messages import (
    FilePart,
    InputPart,
    Role,
    TextPart,
    ToolApprovalResponsePart,
    ToolOutcome,
    ToolResultPart,
)
from turnlane.records.misfits import misfits
from turnlane.records.mutations import (
    CommitAnswer,
    CommitBatch,
    CommitReply,
    Landing,
    LaneOpened,
    OpenLane,
    QueuePage,
    QueueRuns,
    RunLookup,
)
from turnlane.records.runs import RunView
from turnlane.records.steps import (
    KnownReceipt,
    ModelCheck,
    PrepareAdmissions,
    PreparedAdmissions,
    RefusedInput,
    SettleCalls,
)
from turnlane.store.bus import EventBus
from turnlane.store.payloads import StoredReceipt
from turnlane.store.protocol import Store

logger = logging.getLogger(__name__)

_PARTS: TypeAdapter[tuple[InputPart, ...]] = TypeAdapter(tuple[InputPart, ...])


class LaneWork:
    """What every lane needs of a worker. One instance serves all lanes of the process."""

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        bus: EventBus,
        settings: LaneSettings | None = None,
        sink: OperatorSink | None = None,
    ) -> None:
        self._store = store
        self._commits: Commits = store if sink is None else ToldCommits(store, sink)
        self._agents = agents
        self._bus = bus
        self._settings = settings or LaneSettings()

    # --- opening and committing -----------------------------------------------------------------

    @activity.defn(name="open_lane")
    @as_failures
    async def open_lane(self, request: OpenLane) -> LaneOpened:
        """Take an epoch for a lane and load its head, unless it carries one."""
        opened = await self._store.open_lane(request.conversation_id, request.owner, request.carried_epoch)
        agent = self._agents.get(opened.head.agent or request.agent or "")
        stale = agent is not None and agent.facts.digest != request.facts_digest
        carried = request.carried_epoch is not None and not opened.head.purged
        return LaneOpened(
            epoch=opened.epoch,
            head=None if carried else opened.head,
            progress=None if carried else opened.progress,
            more=not carried and opened.more,
            settings=self._settings,
            facts=agent.facts if agent is not None and stale else None,
        )

    @activity.defn(name="load_queue")
    @as_failures
    async def load_queue(self, request: QueuePage) -> QueueRuns:
        """Load the next page of a long queue."""
        runs, more = await self._store.load_queue(request.conversation_id, request.after_run_id)
        return QueueRuns(runs=runs, more=more)

    @activity.defn(name="commit")
    @as_failures
    async def commit(self, batch: CommitBatch) -> CommitAnswer:
        """Commit a batch; what it made known is news only afterwards."""
        committed = await self._commits.commit(batch, utc_now())
        tell(self._bus, committed.events)
        return _answer(batch, committed.reply)

    @activity.defn(name="find_run")
    @as_failures
    async def find_run(self, request: RunLookup) -> RunStanding:
        """Say how a run stands; an absorbed run stands where the one that absorbed it does."""
        view = await self._settled_view(request.conversation_id, request.run_id)
        if view is None:
            return RunStanding()
        return RunStanding(terminal=terminal_of(view), state=view.run.state, revision=view.run.revision)

    async def _settled_view(self, conversation_id: str, run_id: str) -> RunView | None:
        view = await self._store.load_run(conversation_id, run_id)
        if view is not None and view.run.absorbed_into_run_id is not None:
            return await self._store.load_run(conversation_id, view.run.absorbed_into_run_id)
        return view

    @activity.defn(name="settle_calls")
    @as_failures
    async def settle_calls(self, request: SettleCalls) -> bool:
        """Give calls that ended without a result a coded one. False when the fence was stale by then."""
        message = LOST_CALL_MESSAGES.get(request.code, "Tool execution failed")
        for call in request.calls:
            result = ToolResultPart(
                call_id=call.call_id,
                tool_name=call.tool_name,
                outcome=ToolOutcome.ERROR,
                output=coded(request.code, message),
            )
            try:
                written = await self._store.finish_call(
                    request.fence, request.assistant_message_id, call.slot, result, utc_now(), origin=call.origin
                )
            except StaleFenceError:
                return False
            tell(self._bus, written.events)
        return True

    # --- preparing admissions -------------------------------------------------------------------

    @activity.defn(name="prepare_admissions")
    @as_failures
    async def prepare_admissions(self, request: PrepareAdmissions) -> PreparedAdmissions:
        """Check inputs against store and agent, and choose the policy of each."""
        probed = [item.key for item, probe in zip(request.inputs, request.probe, strict=True) if probe]
        receipts = await self._store.find_receipts(request.conversation_id, probed) if probed else {}
        patience = Patience()
        prepared = [await self._prepare(request, item, receipts.get(item.key), patience) for item in request.inputs]
        agent = self._agent_of(request, request.inputs[0])
        stale = agent is not None and agent.facts.digest != request.facts_digest
        return PreparedAdmissions(inputs=tuple(prepared), facts=agent.facts if agent is not None and stale else None)

    async def _prepare(
        self, request: PrepareAdmissions, item: Input, receipt: StoredReceipt | None, patience: Patience
    ) -> Policy | KnownReceipt | RefusedInput:
        # Another answer to the same approval has the same key: its giver is told how that was decided.
        is_other = (
            item.role is Role.TOOL and receipt is not None and receipt.receipt.content_digest != item.content_digest
        )
        if receipt is not None and not is_other:
            return await self._known(receipt)
        try:
            return await self._check(request, item, patience)
        except TurnlaneError as error:
            if error.retryable:
                raise
            details = {name: fact for name, fact in error.details.items() if name != "fields"}
            fields = tuple(error.details.get("fields", ()))
            return RefusedInput(code=error.code, message=error.message, fields=fields, details=details or None)

    async def _known(self, stored: StoredReceipt) -> KnownReceipt:
        receipt = stored.receipt
        view = await self._settled_view(receipt.conversation_id, receipt.run_id)
        if view is None:
            raise InvalidInputError("the receipt names a run that is gone")
        return KnownReceipt(
            content_digest=receipt.content_digest,
            input_message_id=receipt.input_message_id,
            run_id=view.run.id,
            assistant_message_id=view.run.assistant_message_id,
            policy=receipt.policy,
            version=stored.version,
            run_state=view.run.state,
        )

    @activity.defn(name="check_model")
    @as_failures
    async def check_model(self, request: ModelCheck) -> bool:
        """Whether the conversation's agent has a model of this key."""
        agent = self._named(request.agent)
        if agent is None:
            raise UnknownAgentError("no agent of this name is served here; name one that a worker serves")
        return agent.models is not None and request.model in agent.models

    def _agent_of(self, request: PrepareAdmissions, item: Input) -> Agent | None:
        """The agent an input is for: the one it names, the conversation's, or the only one there is."""
        return self._named(request.agent or item.agent)

    def _named(self, name: str | None) -> Agent | None:
        if name is None and len(self._agents) == 1:
            return next(iter(self._agents.values()))
        return self._agents.get(name or "")

    async def _check(self, request: PrepareAdmissions, item: Input, patience: Patience) -> Policy:
        if request.agent is not None and item.agent not in (None, request.agent):
            raise AgentMismatchError("the conversation has another agent")
        if item.role is Role.TOOL and item.tenant not in (None, request.tenant):
            raise AgentMismatchError("the conversation has another tenant")
        agent = self._agent_of(request, item)
        if agent is None:
            raise UnknownAgentError("no agent of this name is served here; name one that a worker serves")
        if item.role is Role.TOOL:
            return await self._check_answer(request, item, agent, patience)
        _check_object("context", item.context, agent.context, agent.limits.metadata_bytes)
        _check_object("metadata", item.metadata, agent.metadata, agent.limits.metadata_bytes)
        parts = await self._check_content(request.conversation_id, item, agent)
        await preflight(agent, request, item, parts, patience)
        await self._check_ids(request.conversation_id, item)
        await check_budget(self._store, agent, request.conversation_id)
        return await _policy(agent, request, item, patience)

    async def _check_answer(self, request: PrepareAdmissions, item: Input, agent: Agent, patience: Patience) -> Policy:
        """Check an approval answer. It brings no context of its own as a rule, and joins no run in flight."""
        for name, value, model in (
            ("context", item.context, agent.context),
            ("metadata", item.metadata, agent.metadata),
        ):
            _check_object(name, value, None if value is None else model, agent.limits.metadata_bytes)
        await self._check_ids(request.conversation_id, item)
        await check_answers(self._store, agent, request, item, utc_now(), patience)
        return Policy.QUEUE if item.policy in (None, Policy.INJECT) else item.policy

    async def _check_content(self, conversation_id: str, item: Input, agent: Agent) -> tuple[InputPart, ...]:
        parts = item.content
        if item.blob is not None:
            parts = await self._blob_parts(conversation_id, item.blob, agent)
        refuse_hidden_answers(item, parts)
        await check_files(self._store, conversation_id, parts, agent.limits.files)
        return parts

    async def _blob_parts(self, conversation_id: str, blob: BlobRef, agent: Agent) -> tuple[InputPart, ...]:
        if blob.size > agent.limits.input_text_bytes:
            limit = agent.limits.input_text_bytes
            raise InputTooLargeError("the input is over the agent's limit", size=blob.size, limit=limit)
        data = await self._store.get_blob(conversation_id, blob.id)
        if data is None:
            raise InvalidInputError("the input's blob is not in this conversation", fields=["blob"])
        try:
            parts = _PARTS.validate_json(data)
        except ValidationError as error:
            raise InvalidInputError("the input's blob does not hold parts", fields=misfits(error, "blob")) from None
        if not any(_says_something(part) for part in parts):
            raise InvalidInputError("an input may not be empty or blank", fields=["blob"])
        return parts

    async def _check_ids(self, conversation_id: str, item: Input) -> None:
        if item.record_ids is None:
            return
        proposed = [value for value in item.record_ids.model_dump().values() if value is not None]
        if proposed and await self._store.find_collisions(conversation_id, proposed):
            raise RecordIdCollisionError("a proposed record id is in use in this conversation")


def _answer(batch: CommitBatch, reply: CommitReply) -> CommitAnswer:
    landed = zip(batch.mutations, reply.results, strict=False)
    landings = (Landing(result.version, result.revisions.get(mutation.run_id or "")) for mutation, result in landed)
    return CommitAnswer(outcome=reply.outcome, landings=tuple(landings))


def terminal_of(view: RunView) -> Terminal | None:
    """The terminal facts of a run, if it has ended."""
    run = view.run
    if run.terminal_reason is None:
        return None
    return Terminal(
        conversation_id=run.conversation_id,
        run_id=run.id,
        assistant_message_id=run.assistant_message_id,
        state=run.state,
        reason=run.terminal_reason,
        snapshot_version=view.snapshot_version,
        policy_name=run.terminal_policy_name,
        failure=run.failure,
        usage=run.usage,
    )


def _says_something(part: InputPart) -> bool:
    return isinstance(part, FilePart | ToolApprovalResponsePart) or (
        isinstance(part, TextPart) and bool(part.text.strip())
    )


async def _policy(agent: Agent, request: PrepareAdmissions, item: Input, patience: Patience) -> Policy:
    if item.policy is not None:
        return item.policy
    policy = agent.policy
    if isinstance(policy, Policy):
        return policy
    try:
        context = PolicyContext(request.conversation_id, item, request.has_live_run)
        return Policy(await patience.ask(lambda: policy(context)))
    except Exception as error:
        logger.error("the policy function of agent %s failed with %s", agent.name, type(error).__name__)
        raise PolicyFailedError("the agent's policy function failed") from None


def _check_object(name: str, value: JsonObject | None, model: type[BaseModel] | None, limit: int) -> None:
    if value is not None and len(canonical_json(value).encode()) > limit:
        raise InputTooLargeError(f"the {name} is over {limit} bytes", limit=limit)
    if model is None:
        return
    try:
        model.model_validate_json(canonical_json(value if value is not None else {}))
    except ValidationError as error:
        raise InvalidInputError(f"the {name} does not fit the agent", fields=misfits(error, name)) from None
