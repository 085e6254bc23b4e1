"""Refusals: what is wrong with an input is said by name, and nothing of it is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from tests.conftest import Bench, Serve
from tests.integration.play import Play, at_rest, open_play, run_id
from tests.integration.stage import BOUND, Stage
from turnlane.agent import PolicyContext
from turnlane.records.admissions import RecordIds
from turnlane.records.errors import (
    AgentMismatchError,
    ConversationPurgedError,
    InputTooLargeError,
    InvalidInputError,
    PolicyFailedError,
    QueueFullError,
    RecordIdCollisionError,
    TurnlaneError,
    UnknownAgentError,
)
from turnlane.records.ledger import LedgerKind
from turnlane.records.limits import Limits
from turnlane.records.runs import Snapshot

pytestmark = pytest.mark.server


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with one finished turn, and a model that answers."""
    opened = await open_play(bench, serve, conversation)
    opened.stage.play()
    await (await opened.submit("A")).result(BOUND)
    yield opened


async def refused(play: Play, kind: type[TurnlaneError], *args: Any, **options: Any) -> TurnlaneError:
    """Submit what must be refused; the conversation has to be as it was."""
    before = await play.client.snapshot(play.conversation)
    with pytest.raises(kind) as caught:
        await play.client.submit(play.conversation, *args, **options)
    assert before == await play.client.snapshot(play.conversation)
    return caught.value


async def history(play: Play) -> list[int]:
    """The ids of the lane's history events, once it is at rest."""
    return [event.event_id for event in await at_rest(play.lane)]


async def raw(play: Play, given: dict[str, Any]) -> ApplicationError:
    """Send an update as another language would, and return the failure that comes back."""
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await play.lane.execute_update("submit", given)
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    return cause


# --- agents and tenants -------------------------------------------------------------------------


async def test_an_agent_that_nobody_serves_is_unknown(bench: Bench, serve: Serve, conversation: str) -> None:
    await open_play(bench, serve, conversation)
    client = bench.client()
    with pytest.raises(UnknownAgentError):
        await client.submit(conversation, "A", agent="nobody")

    assert Snapshot(conversation_id=conversation, version=0) == await client.snapshot(conversation)


async def test_an_input_must_name_its_agent_where_there_are_two(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    await serve(stage.agent(name="one"), stage.agent(name="two"), providers=stage.providers)
    stage.play()
    client = bench.client()
    with pytest.raises(UnknownAgentError):
        await client.submit(conversation, "A")
    await (await client.submit(conversation, "A", agent="two")).result(BOUND)

    assert "two" == (await client.snapshot(conversation)).agent


async def test_a_conversation_keeps_its_agent(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    await serve(stage.agent(name="one"), stage.agent(name="two"), providers=stage.providers)
    stage.play()
    client = bench.client()
    await (await client.submit(conversation, "A", agent="one")).result(BOUND)
    with pytest.raises(AgentMismatchError):
        await client.submit(conversation, "B", agent="two")

    assert 2 == len((await client.messages(conversation)).items)


async def test_a_conversation_keeps_its_tenant(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation)
    play.stage.play()
    await (await play.submit("A", tenant="acme")).result(BOUND)

    await refused(play, AgentMismatchError, "B", tenant="globex")
    assert () == (await play.client.messages(conversation, tenant="globex")).items
    assert 2 == len((await play.client.messages(conversation, tenant="acme")).items)


# --- what an input says -------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "  \n\t ", []])
async def test_an_input_without_words_is_refused(play: Play, content: Any) -> None:
    error = await refused(play, InvalidInputError, content)

    assert error.details["fields"]


async def test_a_policy_that_does_not_exist_is_refused(play: Play) -> None:
    error = await refused(play, InvalidInputError, "B", policy="whenever")

    assert ["policy"] == error.details["fields"]


@pytest.mark.parametrize(
    "given",
    [
        {"text": "no key"},
        {"key": "", "text": "an empty key"},
        {"key": "k"},
        {"key": "k", "text": "  "},
        {"key": "k", "text": "B", "parts": [{"type": "text", "text": "B"}]},
        {"key": "k", "text": "B", "policy": "whenever"},
        {"key": "k", "text": "B", "unknown": 1},
        {"key": "k", "text": "B", "role": "assistant"},
        {"key": "k", "text": "B", "schema_version": 2},
        {"key": "k", "parts": [{"type": "tool-call", "call_id": "c", "tool_name": "look", "input": {}}]},
        {"key": "k", "role": "tool", "text": "no answer"},
    ],
    ids=lambda given: ",".join(given),
)
async def test_a_malformed_update_leaves_no_trace(play: Play, given: dict[str, Any]) -> None:
    before = await history(play)
    await raw(play, given)
    after = await history(play)
    ticket = await play.submit("C")

    assert before == after
    assert ["success"] == await play.reasons(ticket)
    assert ["A", "C"] == await play.answered()


async def test_a_malformed_signal_is_dropped_and_the_lane_goes_on(play: Play) -> None:
    await play.lane.signal("submit", {"key": "", "text": 1})
    ticket = await play.submit("C")

    assert ["success"] == await play.reasons(ticket)
    assert ["A", "C"] == await play.answered()


# --- size ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [True, False], ids=["with a store", "without a store"])
async def test_three_megabytes_are_too_large(play: Play, store: bool) -> None:
    play.client = play.bench.client(store=store)
    with pytest.raises(InputTooLargeError) as caught:
        await play.submit("x" * 3_000_000, key="large")

    assert 3_000_000 < caught.value.details["size"]
    assert 1024 * 1024 == caught.value.details["limit"]


async def test_what_is_too_large_for_a_history_travels_through_the_store(play: Play) -> None:
    text = "x" * 200_000
    ended = await (await play.submit(text, key="large")).result(BOUND)
    again = await play.submit(text, key="large")

    assert f"answer to {text}" == ended.text
    assert ended.run_id == run_id(again)
    assert text == (await play.answered())[-1]
    assert max([event.ByteSize() async for event in play.lane.fetch_history_events()]) < 64 * 1024


async def test_what_is_too_large_for_a_history_needs_a_store(play: Play) -> None:
    client = play.bench.client(store=False)
    with pytest.raises(InputTooLargeError):
        await client.submit(play.conversation, "x" * 200_000)

    assert ["A"] == await play.answered()


async def test_a_large_update_is_refused_without_a_trace(play: Play) -> None:
    before = await history(play)
    cause = await raw(play, {"key": "large", "text": "x" * 70_000})

    assert "INPUT_TOO_LARGE" == cause.type
    assert before == await history(play)


async def test_a_large_signal_is_refused_in_the_ledger(play: Play) -> None:
    await play.lane.signal("submit", {"key": "large", "text": "x" * 70_000})
    ticket = await play.submit("C")
    await ticket.result(BOUND)

    assert [{"key": "large", "code": "INPUT_TOO_LARGE"}] == await _refusals(play)
    assert ["A", "C"] == await play.answered()


async def test_an_agents_own_limit_binds_what_travels_through_the_store(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, limits=Limits(input_text_bytes=100_000))
    play.stage.play()
    with pytest.raises(InputTooLargeError):
        await play.submit("x" * 200_000, key="large")

    assert [] == await play.answered()


# --- ids and shapes -----------------------------------------------------------------------------


async def test_ids_that_are_in_use_collide(play: Play) -> None:
    question, answer = await play.messages()
    ended = await (await play.submit("A")).result(BOUND)
    for ids in (
        RecordIds(run_id=ended.run_id),
        RecordIds(input_message_id=question.id),
        RecordIds(input_message_id=answer.id),
        RecordIds(assistant_message_id=answer.id),
        RecordIds(assistant_message_id=question.id),
        RecordIds(input_message_id="same", assistant_message_id="same"),
    ):
        await refused(play, RecordIdCollisionError, "B", record_ids=ids)

    assert ["A"] == await play.answered()


async def test_ids_of_runs_that_wait_collide(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation)
    a = await play.submit("A")
    await play.stage.call(1)
    b = await play.submit("B")
    for ticket in (a, b):
        await refused(play, RecordIdCollisionError, "C", record_ids=RecordIds(run_id=run_id(ticket)))
    play.stage.play()

    assert ["success", "success"] == await play.reasons(a, b)


class Order(BaseModel):
    number: int
    urgent: bool = False


@pytest.mark.parametrize("name", ["context", "metadata"])
async def test_what_does_not_fit_the_agents_shapes_is_refused_by_field(
    bench: Bench, serve: Serve, conversation: str, name: str
) -> None:
    shapes: dict[str, Any] = {name: Order}
    play = await open_play(bench, serve, conversation, **shapes)
    play.stage.play()
    missing = await refused(play, InvalidInputError, "B")
    wrong = await refused(play, InvalidInputError, "B", **{name: {"number": "many", "urgent": "secret words"}})
    given: dict[str, Any] = {name: {"number": 7}}
    fits = await play.submit("A", **given)

    assert [f"{name}.number: missing"] == missing.details["fields"]
    assert [f"{name}.number: int_parsing", f"{name}.urgent: bool_parsing"] == wrong.details["fields"]
    assert ["success"] == await play.reasons(fits)


async def test_large_metadata_is_refused(play: Play) -> None:
    await refused(play, InputTooLargeError, "B", metadata={"words": "x" * 20_000})

    assert ["A"] == await play.answered()


# --- policies and queues ------------------------------------------------------------------------


def raising(context: PolicyContext) -> str:
    raise RuntimeError("secret words")


def nonsense(context: PolicyContext) -> str:
    return "whenever"


@pytest.mark.parametrize("policy", [raising, nonsense])
async def test_a_policy_function_that_fails_admits_nothing(
    bench: Bench, serve: Serve, conversation: str, policy: Any
) -> None:
    play = await open_play(bench, serve, conversation, policy=policy)
    play.stage.play()
    with pytest.raises(PolicyFailedError) as caught:
        await play.submit("A")
    named = await play.submit("A", "queue")

    assert "secret" not in str(caught.value)
    assert ["success"] == await play.reasons(named)


async def test_a_full_queue_refuses_until_a_run_has_ended(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, limits=Limits(queued_runs=2))
    a = await play.submit("A")
    await play.stage.call(1)
    b, c = await play.submit("B"), await play.submit("C")
    error = await refused(play, QueueFullError, "D", key="D")
    play.stage.play()
    reasons = await play.reasons(a, b, c)
    d = await play.submit("D")

    assert error.retryable
    assert ["success"] * 4 == [*reasons, *await play.reasons(d)]
    assert ["A", "B", "C", "D"] == await play.answered()


# --- signals and purged conversations -----------------------------------------------------------


async def test_a_refused_signal_is_told_in_the_ledger_and_to_its_sender(play: Play) -> None:
    ticket = await play.submit("B", agent="nobody", via="signal")
    with pytest.raises(AgentMismatchError):
        await ticket.admitted(BOUND)

    assert [{"key": "B", "code": "AGENT_MISMATCH"}] == await _refusals(play)
    assert ["A"] == await play.answered()


async def test_a_signal_refused_on_a_new_conversation_is_told_to_its_sender(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation)
    ticket = await play.submit("A", agent="nobody", via="signal")
    with pytest.raises(UnknownAgentError):
        await ticket.admitted(BOUND)
    play.stage.play()
    again = await play.submit("A")

    assert ["success"] == await play.reasons(again)


async def test_a_purged_conversation_takes_nothing(play: Play) -> None:
    await play.client.purge(play.conversation)
    with pytest.raises(ConversationPurgedError):
        await play.submit("B")
    signalled = await play.submit("C", via="signal")
    with pytest.raises(ConversationPurgedError):
        await signalled.admitted(BOUND)
    with pytest.raises(ConversationPurgedError):
        await play.submit("x" * 200_000, key="large")

    assert Snapshot(conversation_id=play.conversation, version=0) == await play.client.snapshot(play.conversation)
    assert [] == list(await play.ledger())


async def _refusals(play: Play) -> list[dict[str, Any]]:
    return [dict(event.payload) for event in await play.ledger() if event.kind == LedgerKind.ADMISSION_REFUSED]
