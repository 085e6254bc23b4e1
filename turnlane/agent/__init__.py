"""What an application writes: agents, tools, models and policies."""

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
from turnlane.agent.registry import ModelDescriptor, ModelRegistry
from turnlane.agent.tools import Tool, ToolContext, ToolError, tool

__all__ = [
    "Agent",
    "AnthropicModel",
    "ApprovalKeys",
    "ApprovalQuestion",
    "ApprovalResponse",
    "ApprovalStatus",
    "Approvals",
    "FileBytes",
    "FileText",
    "FileUrl",
    "HistoryOptions",
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
    "ProviderFile",
    "ResponseRejected",
    "Ruling",
    "ScriptedModel",
    "SpendLimits",
    "Tool",
    "ToolContext",
    "ToolError",
    "Upload",
    "resolve_reference",
    "tool",
]
