"""What an application writes: agents, tools, models and policies."""

from turnlane.agent.agent import Agent, PolicyContext
from turnlane.agent.models import AnthropicModel, Model, OpenAIChatModel, OpenAIModel, ScriptedModel
from turnlane.agent.tools import Tool, ToolContext, ToolError, tool

__all__ = [
    "Agent",
    "AnthropicModel",
    "Model",
    "OpenAIChatModel",
    "OpenAIModel",
    "PolicyContext",
    "ScriptedModel",
    "Tool",
    "ToolContext",
    "ToolError",
    "tool",
]
