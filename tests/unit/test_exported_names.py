"""The public names, frozen: one is added or taken away on purpose, with a line in the changelog."""

from __future__ import annotations

import types

import pytest

import turnlane
import turnlane.agent
import turnlane.client
import turnlane.testing
import turnlane.workflows
from turnlane import worker
from turnlane.activities import invocations, operator_sink

AGENT = [
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
OPERATOR_SINK = ["OperatorSink"]
INVOCATIONS = ["AuthorizationRequest", "Completion", "ModelInvocations", "current_attempt"]
CLIENT = ["Result", "Ticket", "Turnlane"]
WORKER = ["SEARCH_ATTRIBUTES", "TASK_QUEUE", "build_worker", "has_search_attributes", "run_worker"]


def own_names(module: types.ModuleType) -> list[str]:
    """What a module offers: the names it lists, or else what it defines without an underscore."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (getattr(value, "__module__", None) == module.__name__ or (name.isupper() and name in vars(module)))
    )


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (turnlane.agent, AGENT),
        (turnlane.client, CLIENT),
        (worker, WORKER),
        (invocations, INVOCATIONS),
        (operator_sink, OPERATOR_SINK),
    ],
    ids=["agent", "client", "worker", "invocations", "operator_sink"],
)
def test_a_door_opens_on_exactly_these_names(module: types.ModuleType, names: list[str]) -> None:
    assert names == own_names(module)


@pytest.mark.parametrize("module", [turnlane.agent, turnlane.client], ids=["agent", "client"])
def test_every_listed_name_is_there(module: types.ModuleType) -> None:
    assert [] == [name for name in own_names(module) if not hasattr(module, name)]


@pytest.mark.parametrize("module", [turnlane, turnlane.testing, turnlane.workflows], ids=lambda module: module.__name__)
def test_these_packages_are_doorways_without_names_of_their_own(module: types.ModuleType) -> None:
    assert [] == own_names(module)
