"""Conversations that live long: past the server's limits, flat in history, all of them back at once."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tests.conftest import Bench, Serve
from tests.integration.stage import MANY_LANES
from turnlane.agent import Agent, ScriptedModel, tool
from turnlane.agent.models import Action, Call, Say, ScriptedRequest
from turnlane.client import Turnlane

pytestmark = pytest.mark.server

INPUTS = 2_001
"""One more than the updates that a server lets one workflow run have in its life."""


def _echo(request: ScriptedRequest) -> list[Say]:
    return [Say(f"I have {len(request.prompt.messages)} messages.", chunk=1000)]


def _agent(**options: object) -> Agent:
    return Agent(name="echo", model=ScriptedModel(script=_echo), **options)  # type: ignore[arg-type]


async def _run_ids(bench: Bench, conversation: str) -> list[str]:
    query = f'WorkflowId = "lane/{conversation}"'
    return [item.run_id async for item in bench.temporal.list_workflows(query)]


async def _history_bytes(bench: Bench, conversation: str) -> int:
    described = await bench.temporal.get_workflow_handle(f"lane/{conversation}").describe()
    return described.raw_description.workflow_execution_info.history_size_bytes


@pytest.mark.timeout(300)
async def test_more_inputs_than_a_workflow_may_have_updates_are_all_admitted_in_one_conversation(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    await serve(_agent(coalesce_pending=True))
    client = bench.client(answer_seconds=60)
    free = asyncio.Semaphore(8)

    async def submit(number: int) -> str:
        async with free:
            ticket = await client.submit(conversation, f"input {number}", key=f"key-{number}")
            return (await ticket.admitted(timeout=60)).input_message_id

    admitted = await asyncio.gather(*(submit(number) for number in range(INPUTS)))
    last = await client.submit(conversation, "are you still there?")
    result = await last.result(timeout=60)
    snapshot = await client.snapshot(conversation)

    users = [message.id for message in snapshot.messages if message.role.value == "user"]
    assert INPUTS == len(set(admitted))
    assert sorted([*admitted, last.admission.input_message_id if last.admission else ""]) == sorted(users)
    assert "success" == result.reason.value
    assert 1 < len(await _run_ids(bench, conversation))


async def test_a_history_stays_flat_however_many_turns_a_conversation_has(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    await serve(_agent())
    client = bench.client(answer_seconds=30)
    sizes: dict[int, int] = {}

    for number in range(91):
        if number in (10, 30, 70, 90):
            sizes[number] = await _history_bytes(bench, conversation)
        ticket = await client.submit(conversation, f"turn {number}: " + "x" * 1000)
        await ticket.result(timeout=30)

    early, late = sizes[30] - sizes[10], sizes[90] - sizes[70]
    assert late <= early * 1.05
    assert await _history_bytes(bench, conversation) < 512 * 1024


async def _turn(client: Turnlane, conversation: str) -> str:
    ticket = await client.submit(conversation, "hello again")
    return (await ticket.result(timeout=60)).reason.value


async def test_many_conversations_replayed_at_once_by_a_fresh_worker_all_go_on(bench: Bench) -> None:
    client = bench.client(answer_seconds=60)
    conversations = [f"c-{uuid.uuid4().hex[:12]}" for _ in range(20)]
    async with bench.worker(_agent(), max_cached_workflows=MANY_LANES):
        for _ in range(3):
            await asyncio.gather(*(_turn(client, conversation) for conversation in conversations))

    async with bench.worker(_agent(), max_cached_workflows=MANY_LANES):
        reasons = await asyncio.gather(*(_turn(client, conversation) for conversation in conversations))

    assert ["success"] * 20 == reasons
    assert 8 == len((await client.snapshot(conversations[0])).messages)


@tool(read_only=True)
def length(text: str) -> int:
    """The length of a text."""
    return len(text)


def _works_hard(request: ScriptedRequest) -> list[Action]:
    if request.step == 0:
        return [Call("length", {"text": "x" * number}) for number in range(100)]
    return [Say(f"{sum(len(message.parts) for message in request.prompt.messages)} parts")]


async def test_a_turn_with_a_large_context_and_a_hundred_calls_finishes_with_a_small_history(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    await serve(Agent(name="worker", model=ScriptedModel(script=_works_hard), tools=[length]))
    client = bench.client(answer_seconds=30)
    ticket = await client.submit(conversation, "word " * 160_000)
    result = await ticket.result(timeout=90)
    events = [
        event async for event in bench.temporal.get_workflow_handle(f"lane/{conversation}").fetch_history_events()
    ]

    assert ("success", "201 parts") == (result.reason.value, result.text)
    assert max(event.ByteSize() for event in events) < 128 * 1024
