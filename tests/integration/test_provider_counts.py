"""What a provider does with a prompt: it counts it for a budget, and caches what is marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import look
from tests.integration.prompt_stage import ending
from tests.integration.stage import BOUND
from turnlane.agent import (
    Agent,
    AnthropicModel,
    ContextBudget,
    OpenAIModel,
    PromptCache,
    PromptSection,
    ProviderCounter,
)
from turnlane.client import Result
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import TerminalReason
from turnlane.testing.fault_plan import HttpError, Pass, Step
from turnlane.testing.fault_server import FaultServer

pytestmark = pytest.mark.server

KEY_NAME = "PROMPT_TEST_KEY"


def request_words(body: Mapping[str, Any]) -> int:
    """The words of everything that a request to count says: a server's way of counting."""
    blocks = [*body.get("system", ()), *(block for message in body["messages"] for block in message["content"])]
    schemas = [tool["description"] for tool in body.get("tools", ())]
    return sum(len(text.split()) for text in [*(block["text"] for block in blocks), *schemas])


async def ask(
    bench: Bench, serve: Serve, conversation: str, model: AnthropicModel | OpenAIModel, **options: Any
) -> tuple[Result, Any]:
    """One turn with a model; the result, and the figures of its budget if the ledger has any."""
    await serve(Agent(name="asked", model=model, **options))
    result = await (await bench.client().submit(conversation, "two words")).result(BOUND)
    events = (await bench.store.read_events(conversation)).items
    sent = [event.payload for event in events if event.kind == LedgerKind.PROVIDER_REQUEST]
    return result, sent[-1].get("context") if sent else None


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key for providers on the loopback."""
    monkeypatch.setenv(KEY_NAME, "sk-prompt-test")


PASS: Sequence[Step] = [Pass("ok")]


@pytest.mark.usefixtures("key")
async def test_anthropic_counts_instructions_tools_and_history(bench: Bench, serve: Serve, conversation: str) -> None:
    async with FaultServer(PASS, counts=request_words) as server:
        model = AnthropicModel(name="m", base_url=server.anthropic_url, api_key_env=KEY_NAME, max_output_tokens=50)
        budget = ContextBudget(context_window=100, counter=ProviderCounter())
        result, counted = await ask(
            bench, serve, conversation, model, budget=budget, instructions="Be kind.", tools=[look]
        )

        assert TerminalReason.SUCCESS is result.reason
        expected = {"decision": "fits", "instructions": 2, "tool_schemas": 1, "history": 2, "available_history": 47}
        assert expected == {name: counted[name] for name in expected}
        assert 4 == len(server.counted)
        assert [] == server.refusals


@pytest.mark.usefixtures("key")
async def test_what_anthropic_counts_as_too_much_is_not_sent(bench: Bench, serve: Serve, conversation: str) -> None:
    async with FaultServer(PASS, counts=lambda body: 101) as server:
        model = AnthropicModel(name="m", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        budget = ContextBudget(context_window=100, reserved_output=0, counter=ProviderCounter(), oversize="refuse")
        result, _ = await ask(bench, serve, conversation, model, budget=budget)

        assert (TerminalReason.CONTEXT_OVERFLOW, "OVERSIZED") == ending(result)
        assert [] == server.requests


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("said", [3.5, -1, None, "7", True, HttpError(529), HttpError(400)], ids=str)
async def test_a_count_that_is_none_leaves_the_run_alone(
    bench: Bench, serve: Serve, conversation: str, said: object
) -> None:
    async with FaultServer(PASS, counts=lambda body: said) as server:
        model = AnthropicModel(name="m", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        budget = ContextBudget(context_window=1, reserved_output=0, counter=ProviderCounter())
        result, counted = await ask(bench, serve, conversation, model, budget=budget, instructions="Be kind.")

        assert TerminalReason.SUCCESS is result.reason
        assert ("unavailable", None, None) == (counted["decision"], counted["instructions"], counted["history"])


@pytest.mark.usefixtures("key")
async def test_cache_marks_reach_the_providers(bench: Bench, serve: Serve, conversation: str) -> None:
    sections = [PromptSection(name="a", render="Be kind."), PromptSection(name="b", render="Now.", stability="dynamic")]
    async with FaultServer(PASS) as server:
        anthropic = AnthropicModel(name="m", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        openai = OpenAIModel(name="m", base_url=server.openai_url, api_key_env=KEY_NAME)
        agents = [
            Agent(name=f"cached-{number}", model=model, prompt=sections, cache=PromptCache())
            for number, model in enumerate((anthropic, openai))
        ]
        await serve(*agents)
        for number, agent in enumerate(agents):
            ticket = await bench.client().submit(f"{conversation}-{number}", "hi", agent=agent.name)
            assert TerminalReason.SUCCESS is (await ticket.result(BOUND)).reason
        first, second = (request.body for request in server.requests)

    mark = {"cache_control": {"type": "ephemeral"}}
    assert [{"type": "text", "text": "Be kind.", **mark}, {"type": "text", "text": "Now."}] == first["system"]
    assert mark["cache_control"] == first["cache_control"]
    assert "Be kind.\n\nNow." == second["instructions"]
    assert second["prompt_cache_key"].startswith("cache-")
