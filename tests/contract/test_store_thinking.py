"""Thinking that a provider signed comes back to it as it was: through our records, the store and a compaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import JsonValue

from turnlane.activities.projection import project
from turnlane.activities.providers.anthropic_prompt import anthropic_request
from turnlane.activities.providers.openai_responses import responses_request
from turnlane.agent import AnthropicModel, OpenAIModel
from turnlane.records.base import JsonObject, ProviderEnvelope
from turnlane.records.messages import Part, ReasoningPart, TextPart, ToolCallPart
from turnlane.records.prompt import Prompt
from turnlane.store.payloads import NewCall

if TYPE_CHECKING:
    from tests.contract.conftest import Lane

THOUGHTS = ["  leading, trailing \n\n", 'ünï\u2028code \U0001f600 \\ud83d "quoted" </tag>', "", "\tx" * 3000]


def thinking(text: str) -> JsonObject:
    return {"type": "thinking", "thinking": text, "signature": f"sig+/=={text[:3]}"}


def reasoning(text: str) -> JsonObject:
    summary: list[JsonValue] = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_{len(text)}", "summary": summary, "encrypted_content": f"enc+/=={text[:3]}"}


def blocks_of(prompt: Prompt) -> list[Any]:
    messages = anthropic_request(AnthropicModel(name="m"), prompt)["messages"]
    return [block for message in messages for block in message["content"] if block["type"] == "thinking"]


def items_of(prompt: Prompt) -> list[Any]:
    items = responses_request(OpenAIModel(name="m"), prompt)["input"]
    return [item for item in items if item["type"] == "reasoning"]


def seal_of(given: list[Any]) -> str:
    """SHA-256 over what was thought, its signatures and their order."""
    return hashlib.sha256(json.dumps(given, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize(
    ("provider", "made", "sent"),
    [("anthropic", thinking, blocks_of), ("openai", reasoning, items_of)],
    ids=["anthropic", "responses"],
)
async def test_signed_thinking_survives_the_store_and_a_compaction_byte_for_byte(
    lane: Lane, provider: str, made: Callable[[str], JsonObject], sent: Callable[[Prompt], list[Any]]
) -> None:
    first = [made(text) for text in THOUGHTS]
    await lane.answer("old")
    await lane.begin_run("a")
    for step, block in enumerate(first):
        fence = lane.fence("run-a", step=step)
        await lane.begin_step(fence)
        parts: list[Part] = [ReasoningPart(text="shown", provider=ProviderEnvelope(provider=provider, data=block))]
        call_id = f"c{step}"
        parts.append(ToolCallPart(call_id=call_id, tool_name="look", input={}))
        await lane.finish_step(fence, *parts, calls=[NewCall(slot=1, call_id=call_id, tool_name="look")])
        await lane.store.finish_call(fence, "out-a", 1, lane.result(call_id), lane.clock())
    running = await replayed(lane, "run-a", step=len(first))
    await lane.apply(lane.settle("run-a"), lane.compact("sum", "in-old", "out-old"))
    await lane.begin_run("b")
    later = await replayed(lane, "run-b")

    assert {seal_of(first)} == {seal_of(sent(running)), seal_of(sent(later))}
    assert ("in short",) == later.system


async def test_thinking_that_was_cut_is_kept_for_show_and_not_sent(lane: Lane) -> None:
    fence = await lane.begin_run("a")
    await lane.begin_step(fence)
    await lane.finish_step(fence, ReasoningPart(text="hm, this is"), TextPart(text="Half"))
    await lane.apply(lane.settle("run-a"))
    await lane.begin_run("b")
    snapshot = await lane.store.load_snapshot(lane.conversation_id)
    prompt = await replayed(lane, "run-b")

    assert ["reasoning", "text"] == [part.type for part in snapshot.messages[1].parts]
    assert "hm, this is" not in prompt.model_dump_json()


async def replayed(lane: Lane, run_id: str, step: int = 0) -> Prompt:
    """What a step of a run is asked, from the store."""
    history = await lane.store.load_history(lane.conversation_id, run_id, ())
    return project(history, taken=(), instructions="", tools=(), step=step)
