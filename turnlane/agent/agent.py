"""The agent: instructions, a model, tools, and what an input does to the run in flight."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import BaseModel

from turnlane.agent.acceptance import Acceptance
from turnlane.agent.approvals import Approvals
from turnlane.agent.budgets import SpendLimits
from turnlane.agent.caching import PromptCache
from turnlane.agent.call_hooks import BeforeCall, CallHooks, CallReturned, CallStarted
from turnlane.agent.catalog import DeferredCatalog, check_catalog
from turnlane.agent.compaction import Compaction
from turnlane.agent.context import ContextBudget
from turnlane.agent.files import PersistFile
from turnlane.agent.history import HistoryOptions
from turnlane.agent.model_choice import Preflight, ResolveModel, check_choice, check_fallbacks
from turnlane.agent.models import Model
from turnlane.agent.prices import Prices
from turnlane.agent.pricing import PriceList
from turnlane.agent.prompt import AdaptInstructions, PromptSection
from turnlane.agent.registry import Capability, ModelDescriptor, ModelRegistry
from turnlane.agent.step_input import PrepareStep
from turnlane.agent.stopping import StopCondition, StopPolicy, stop_policies
from turnlane.agent.tools import RESERVED_TOOL_NAMES, Tool
from turnlane.records.admissions import Input, Policy
from turnlane.records.base import JsonObject
from turnlane.records.errors import ModelRefusedError
from turnlane.records.lane import AgentFacts, RetryFacts
from turnlane.records.limits import Limits


@dataclass(frozen=True)
class PolicyContext:
    """What a policy function sees: the input, and whether a run is in flight."""

    conversation_id: str
    input: Input
    has_live_run: bool


@dataclass(frozen=True)
class PromptContext:
    """What an instructions function sees."""

    conversation_id: str
    run_id: str
    context: JsonObject | None
    metadata: JsonObject | None


PolicyFunction = Callable[[PolicyContext], Policy]
Instructions = str | Callable[[PromptContext], str | Awaitable[str]]


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An application's agent.

    `policy` applies to inputs that name none: a constant, or a function of the input. With
    `coalesce_pending`, inputs that wait behind a run are answered together by one successor.
    `history` says how what was said before is told to the model.
    `context` and `metadata` are pydantic models that an input's context and metadata must fit.
    `idle_timeout` is how many seconds the model may be silent; None means for ever. A draft is stored
    after every `checkpoint_every` stream parts. `persist_generated_file` says where files go that the model
    makes; without it they are blobs of the conversation. `approvals` are the rules for calls that wait for
    somebody's word.

    `fallbacks` are the models that take a step over, in order, when the one before them will not be tried again:
    models, or keys of `models`.
    `stop_when` are conditions under which a run ends behind a round of tool calls; `accept` judges the answer of
    a run that would complete; `prepare_step` may change what a step sends.

    `before_call` may refuse a tool call or replace its arguments; `call_started` and
    `call_returned` are told of each try of one. `prices` are what models cost, by the name under which they
    answer; `spend_limits` are what runs and conversations may spend. `compaction` says when and how the older part
    of a conversation is summed up.

    With `models`, `model` may be the key of one and a conversation may choose another; `preflight` may refuse an
    input before it is admitted, and `resolve_model` decides on the model of each run. `catalog` stands in
    the place of `tools` where there are too many to show.

    `prompt` are sections behind the instructions, and `adapt_instructions` has the last word on both; they are put
    together once for a run. `budget` is judged before a run's first call; `cache` marks what a provider may keep.
    Raises ValueError for names that cannot work.
    """

    name: str
    model: Model | str
    instructions: Instructions = ""
    tools: Sequence[Tool] = ()
    policy: Policy | PolicyFunction = Policy.QUEUE
    coalesce_pending: bool = False
    max_steps: int = 50
    checkpoint_every: int = 20
    idle_timeout: float | None = 60.0
    retry: RetryFacts = field(default_factory=RetryFacts)
    context: type[BaseModel] | None = None
    metadata: type[BaseModel] | None = None
    limits: Limits = field(default_factory=Limits)
    persist_generated_file: PersistFile | None = None
    approvals: Approvals | None = None
    fallbacks: Sequence[Model | str] = ()
    stop_when: Mapping[str, StopCondition] | Sequence[StopPolicy] = ()
    accept: Acceptance | None = None
    prepare_step: PrepareStep | None = None
    history: HistoryOptions = field(default_factory=HistoryOptions)
    before_call: BeforeCall | None = None
    call_started: CallStarted | None = None
    call_returned: CallReturned | None = None
    models: ModelRegistry | None = None
    preflight: Preflight | None = None
    resolve_model: ResolveModel | None = None
    prices: Mapping[str, Prices] = field(default_factory=dict)
    spend_limits: SpendLimits | None = None
    prompt: Sequence[PromptSection] = ()
    adapt_instructions: AdaptInstructions | None = None
    budget: ContextBudget | None = None
    cache: PromptCache | None = None
    compaction: Compaction | None = None
    catalog: DeferredCatalog | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= 128:
            raise ValueError("an agent's name has 1 to 128 characters")
        if self.max_steps < 1 or self.checkpoint_every < 1:
            raise ValueError("max_steps and checkpoint_every are at least 1")
        if self.idle_timeout is not None and self.idle_timeout <= 0:
            raise ValueError("idle_timeout is positive, or None for no deadline")
        check_choice(self.model, self.models, self.resolve_model)
        check_fallbacks(self.fallbacks, self.models, self.required)
        if self.catalog is not None:
            check_catalog(self.catalog, self.tools, self.limits)
        names = [tool.name for tool in self.every_tool]
        if len(set(names)) != len(names):
            raise ValueError(f"agent {self.name!r} has two tools of one name")
        stop_policies(self.stop_when)
        sections = [section.name for section in self.prompt]
        if len(set(sections)) != len(sections):
            raise ValueError(f"agent {self.name!r} has two prompt sections of one name")
        for name in RESERVED_TOOL_NAMES.intersection(names):
            raise ValueError(f"{name!r} is the name of an activity of turnlane; call the tool something else")

    @property
    def every_tool(self) -> Sequence[Tool]:
        """Everything that can be called: the agent's tools, or those of its catalog with the search tool."""
        return self.tools if self.catalog is None else self.catalog.every_tool

    def tool(self, name: str) -> Tool | None:
        """The tool with this name, if the agent has it."""
        if self.catalog is not None:
            return self.catalog.tool(name)
        return next((tool for tool in self.tools if tool.name == name), None)

    @cached_property
    def approval_rules(self) -> Approvals | None:
        """The rules of approval that hold: the agent's, or the usual ones where only its tools say something."""
        if self.approvals is None and any(tool.approval is not None for tool in self.every_tool):
            return Approvals()
        return self.approvals

    @property
    def required(self) -> tuple[Capability, ...]:
        """What every model of it must be able to do."""
        return ("tools",) if self.every_tool else ()

    @property
    def own_model(self) -> Model:
        """The model of a run for which nobody chose another."""
        return self.model_under(None)

    @property
    def model_key(self) -> str | None:
        """The key of the agent's own model, if it has a registry."""
        if isinstance(self.model, str):
            return self.model
        return None if self.models is None else self.models.key_of(self.model)

    def described(self, key: str | None) -> ModelDescriptor | None:
        """What is known of the model under a key, None for the agent's own; None without a registry."""
        named = key if key is not None else self.model_key
        return self.models.descriptor(named) if self.models is not None and named is not None else None

    def model_under(self, key: str | None) -> Model:
        """The model under a key, None for the agent's own. Raises `ModelRefusedError` for a key that is not there."""
        if key is None and isinstance(self.model, Model):
            return self.model
        described = self.described(key)
        if described is None:
            raise ModelRefusedError("the agent has no registry of models", key=key, reason="unknown-model")
        return described.model

    @property
    def prepares(self) -> bool:
        """Whether something is prepared once for each run, and kept with it: constant instructions are not."""
        return (
            not isinstance(self.instructions, str)
            or self.models is not None
            or self.prepare_step is not None
            or bool(self.prompt)
            or self.adapt_instructions is not None
            or self.budget is not None
            or (self.catalog is not None and bool(self.catalog.surfaces))
        )

    @property
    def reads_run(self) -> bool:
        """Whether each step is prepared from the run's own facts."""
        return self.prepares or (self.catalog is not None and self.catalog.pins is not None)

    @cached_property
    def stop_policies(self) -> tuple[StopPolicy, ...]:
        """The named conditions of `stop_when`, in order."""
        return stop_policies(self.stop_when)

    @cached_property
    def price_list(self) -> PriceList:
        """What the models of this agent cost, as far as that is known."""
        return PriceList(self.prices, self.models)

    @property
    def call_hooks(self) -> CallHooks:
        """The hooks around its tool calls."""
        return CallHooks(before=self.before_call, started=self.call_started, returned=self.call_returned)

    @property
    def _checks_nothing(self) -> bool:
        has_budget = self.spend_limits is not None and self.spend_limits.of_conversation
        has_models = self.models is not None or self.preflight is not None
        return self.context is None and self.metadata is None and not has_models and not has_budget

    @cached_property
    def facts(self) -> AgentFacts:
        """What a lane needs to know of this agent."""
        return AgentFacts(
            name=self.name,
            policy=self.policy if isinstance(self.policy, Policy) and self._checks_nothing else None,
            coalesce=self.coalesce_pending,
            max_steps=min(self.max_steps, self.limits.steps_per_run),
            retry=self.retry,
            queued_runs=self.limits.queued_runs,
            recent_receipts=self.limits.recent_receipts,
            judges=bool(self.stop_policies) or self.accept is not None or self.spend_limits is not None,
            fallbacks=tuple(each if isinstance(each, str) else each.name[:128] for each in self.fallbacks),
            compaction=self.compaction.facts if self.compaction is not None else None,
        )
