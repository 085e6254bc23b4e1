"""What an application writes: agents, tools, models and policies."""

from turnlane.agent.acceptance import Acceptance, Answer, require_output
from turnlane.agent.agent import Agent, PolicyContext
from turnlane.agent.approval_keys import ApprovalKeys
from turnlane.agent.approvals import (
    ApprovalQuestion,
    ApprovalResponse,
    Approvals,
    ApprovalStatus,
    ResponseRejected,
    Ruling,
)
from turnlane.agent.budgets import SpendLimits
from turnlane.agent.caching import PromptCache
from turnlane.agent.catalog import DeferredCatalog, Surface
from turnlane.agent.compactable import CompactableHistory, select_compactable_history
from turnlane.agent.compaction import (
    Compaction,
    CompactionState,
    ConversationSummary,
    Judged,
    Summarized,
    SummaryContext,
)
from turnlane.agent.context import ContextBudget, PromptBudget
from turnlane.agent.durable import EffectResult, EffectStatus
from turnlane.agent.files import Upload
from turnlane.agent.history import (
    FileBytes,
    FileText,
    FileUrl,
    HistoryOptions,
    OwnProjection,
    ProviderFile,
    resolve_reference,
)
from turnlane.agent.model_choice import ModelContext, ModelQuestion
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel, ScriptedModel
from turnlane.agent.prices import Prices
from turnlane.agent.prompt import (
    ComposedPrompt,
    Instructions,
    PromptSection,
    RenderedSection,
    SectionContext,
    compose_prompt,
)
from turnlane.agent.registry import ModelDescriptor, ModelRegistry
from turnlane.agent.selection import (
    Selection,
    SelectionDecision,
    SelectionOutcome,
    SelectionReason,
    select_history,
)
from turnlane.agent.step_input import ContextOverflowError, StepInput, StepOverrides
from turnlane.agent.stopping import StepResult, StopContext, StopPolicy, called
from turnlane.agent.tokens import ProviderCounter, TextCounter, TiktokenCounter, TokenCounter
from turnlane.agent.tool_search import Activation, SearchTool
from turnlane.agent.tools import Tool, ToolContext, ToolError, tool
from turnlane.records.prompt import SystemText
from turnlane.records.tokens import CountSource, TokenCount
from turnlane.records.turns import ContextDecision

__all__ = [
    "Acceptance",
    "Activation",
    "Agent",
    "Answer",
    "AnthropicModel",
    "ApprovalKeys",
    "ApprovalQuestion",
    "ApprovalResponse",
    "ApprovalStatus",
    "Approvals",
    "CompactableHistory",
    "Compaction",
    "CompactionState",
    "ComposedPrompt",
    "ContextBudget",
    "ContextDecision",
    "ContextOverflowError",
    "ConversationSummary",
    "CountSource",
    "DeferredCatalog",
    "EffectResult",
    "EffectStatus",
    "FileBytes",
    "FileText",
    "FileUrl",
    "HistoryOptions",
    "Instructions",
    "Judged",
    "Model",
    "ModelContext",
    "ModelDescriptor",
    "ModelQuestion",
    "ModelRegistry",
    "OpenAIChatModel",
    "OpenAIModel",
    "OwnProjection",
    "PolicyContext",
    "Prices",
    "PromptBudget",
    "PromptCache",
    "PromptSection",
    "ProviderCounter",
    "ProviderFile",
    "RenderedSection",
    "ResponseRejected",
    "Ruling",
    "ScriptedModel",
    "SearchTool",
    "SectionContext",
    "Selection",
    "SelectionDecision",
    "SelectionOutcome",
    "SelectionReason",
    "SpendLimits",
    "StepInput",
    "StepOverrides",
    "StepResult",
    "StopContext",
    "StopPolicy",
    "Summarized",
    "SummaryContext",
    "Surface",
    "SystemText",
    "TextCounter",
    "TiktokenCounter",
    "TokenCount",
    "TokenCounter",
    "Tool",
    "ToolContext",
    "ToolError",
    "Upload",
    "called",
    "compose_prompt",
    "require_output",
    "resolve_reference",
    "select_compactable_history",
    "select_history",
    "tool",
]
