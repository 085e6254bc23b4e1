"""Tool calls on a real lane: many and large ones, what a tool knows, and what the model is shown of an output."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest
from temporalio.api.history.v1 import HistoryEvent

from tests.conftest import Bench, Serve
from tests.integration.calling import calling, code, heard, history, outputs, results, scheduled, size, turn
from tests.integration.play import look
from tests.integration.stage import BOUND
from turnlane.agent import tool
from turnlane.agent.models import Call, ScriptedRequest
from turnlane.agent.tools import ToolContext
from turnlane.records.base import canonical_json
from turnlane.records.limits import Limits
from turnlane.records.messages import ToolCallPart, ToolOutcome
from turnlane.records.runs import TerminalReason

pytestmark = pytest.mark.server

LARGEST_PAYLOAD = 128 * 1024


def largest_event(events: Sequence[HistoryEvent]) -> int:
    """The size of the largest event, which no payload in it can exceed."""
    return max(event.ByteSize() for event in events)


# --- many and large -------------------------------------------------------------------------------


async def test_thirty_large_calls_run_in_parallel_and_the_history_stays_small(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    lengths = [30_000 + number for number in range(30)]
    agent = calling([Call("size", {"text": "x" * length}) for length in lengths], size)

    answered = results(await turn(bench, serve, conversation, agent))

    events = await history(bench, conversation)
    assert lengths == [part.output for part in answered]
    assert ["provider_step", *["size"] * 30, "provider_step"] == scheduled(events)
    assert largest_event(events) < LARGEST_PAYLOAD


async def test_a_hundred_calls_of_one_step_are_each_answered_once(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    calls = [Call("size", {"text": "x" * number}) for number in range(100)]

    assert list(range(100)) == await outputs(bench, serve, conversation, calls, size)


async def test_calls_over_the_limit_of_a_step_are_told_so(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = calling([Call("look")] * 3, look, limits=Limits(tool_calls_per_step=2))

    answered = results(await turn(bench, serve, conversation, agent))

    assert ["seen", "seen"] == [part.output for part in answered if part.outcome is ToolOutcome.SUCCESS]
    assert ["TOO_MANY_CALLS"] == [code(part.output) for part in answered if part.outcome is ToolOutcome.ERROR]


async def test_results_stand_in_the_order_of_the_calls_whoever_is_first(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    last_is_done = asyncio.Event()

    @tool
    async def first() -> str:
        """Finish after the last."""
        await last_is_done.wait()
        return "first"

    @tool
    async def last() -> str:
        """Finish before the first."""
        last_is_done.set()
        return "last"

    prompts: list[ScriptedRequest] = []
    agent = calling([Call("first"), Call("look"), Call("last")], first, look, last, prompts=prompts)

    answered = results(await turn(bench, serve, conversation, agent))

    assert ["first", "seen", "last"] == [part.output for part in answered]
    assert ["first", "seen", "last"] == heard(prompts[1])


# --- what the model is shown ----------------------------------------------------------------------


async def test_a_large_output_is_cut_to_what_a_model_can_be_shown(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    @tool(read_only=True)
    def dump() -> str:
        """Return four million characters."""
        return "a" + "x" * 4_000_000 + "z"

    (output,) = await outputs(bench, serve, conversation, [Call("dump")], dump)

    assert (True, 4_000_002) == (output["truncated"], output["bytes"])
    assert ("a", "z") == (output["head"][0], output["tail"][-1])
    assert len(canonical_json(output)) <= Limits().tool_output_bytes
    assert largest_event(await history(bench, conversation)) < LARGEST_PAYLOAD


async def test_all_of_a_cut_output_can_be_read_by_its_reference(bench: Bench, serve: Serve, conversation: str) -> None:
    @tool(read_only=True)
    def dump() -> str:
        """Return more than a model is shown."""
        return "é" * 60_000

    agent = calling([Call("dump"), Call("dump")], dump)
    first, second = results(await turn(bench, serve, conversation, agent))

    assert isinstance(first.output, dict)
    whole = await bench.client().read_blob(conversation, str(first.output["reference"]))
    assert ("é" * 60_000).encode() == whole
    assert first.output == second.output


async def test_the_limit_of_an_output_is_the_agents(bench: Bench, serve: Serve, conversation: str) -> None:
    @tool(read_only=True)
    def listing() -> list[str]:
        """Return a list."""
        return ["entry"] * 500

    agent = calling([Call("listing")], listing, limits=Limits(tool_output_bytes=1000))
    (answered,) = results(await turn(bench, serve, conversation, agent))

    assert isinstance(answered.output, dict)
    whole = await bench.client().read_blob(conversation, str(answered.output["reference"]))
    assert whole is not None
    assert ["entry"] * 500 == json.loads(whole)
    assert len(canonical_json(answered.output).encode()) <= 1000


async def test_a_success_that_looks_like_an_error_is_a_success(bench: Bench, serve: Serve, conversation: str) -> None:
    @tool
    def lookup() -> dict[str, str]:
        """Say that something is wrong with what was looked up."""
        return {"error": "NOT_THE_TOOLS"}

    (answered,) = results(await turn(bench, serve, conversation, calling([Call("lookup")], lookup)))

    assert (ToolOutcome.SUCCESS, {"error": "NOT_THE_TOOLS"}) == (answered.outcome, answered.output)


async def test_a_lone_surrogate_in_an_output_is_cleaned_once_and_the_conversation_goes_on(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    @tool
    def emoji() -> dict[str, str]:
        """Return half an emoji."""
        return {"\ud83d": "half \ud83d\x00"}

    await serve(calling([Call("emoji")], emoji))
    client = bench.client()
    first = await (await client.submit(conversation, "hi")).result(BOUND)
    second = await (await client.submit(conversation, "hi again")).result(BOUND)

    assert [{"\N{REPLACEMENT CHARACTER}": "half \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"}] == [
        part.output for part in results(first)
    ]
    assert TerminalReason.SUCCESS is second.reason


# --- which call is which --------------------------------------------------------------------------


async def test_one_id_used_twice_in_a_step_names_two_calls(bench: Bench, serve: Serve, conversation: str) -> None:
    calls = [Call("size", {"text": "x"}, "call_1"), Call("size", {"text": "xx"}, "call_1")]

    result = await turn(bench, serve, conversation, calling(calls, size))

    assert result.message is not None
    named = [part.call_id for part in result.message.parts if isinstance(part, ToolCallPart)]
    assert 2 == len(set(named))
    assert list(zip(named, [1, 2], strict=True)) == [(part.call_id, part.output) for part in results(result)]


async def test_one_call_id_in_two_conversations_is_two_calls(bench: Bench, serve: Serve, conversation: str) -> None:
    keys: list[str] = []

    @tool
    def charge(ctx: ToolContext) -> None:
        """Charge."""
        keys.append(ctx.idempotency_key)

    await serve(calling([Call("charge", call_id="call_1")], charge))
    client = bench.client()
    tickets = [await client.submit(f"{conversation}-{number}", "hi") for number in (1, 2)]

    reasons = [(await ticket.result(BOUND)).reason for ticket in tickets]

    assert [TerminalReason.SUCCESS] * 2 == reasons
    assert 2 == len(set(keys)) == len(keys)


async def test_a_tool_knows_which_call_of_which_run_it_works_for(bench: Bench, serve: Serve, conversation: str) -> None:
    seen: list[ToolContext] = []

    @tool
    def note(ctx: ToolContext) -> None:
        """Note the context."""
        seen.append(ctx)

    await serve(calling([Call("note", call_id="call_7")], note))
    ticket = await bench.client().submit(
        conversation, "hi", context={"user": "u1"}, metadata={"page": 3}, tenant="acme"
    )
    result = await ticket.result(BOUND)

    expected = ToolContext(
        conversation_id=conversation,
        run_id=result.run_id,
        step_number=0,
        call_id="call_7",
        agent="caller",
        tenant="acme",
        context={"user": "u1"},
        metadata={"page": 3},
        attempt=1,
    )
    assert [expected] == seen


async def test_a_tool_in_a_thread_does_not_hold_up_the_loop(bench: Bench, serve: Serve, conversation: str) -> None:
    released = threading.Event()

    @tool
    def block() -> bool:
        """Block a thread until somebody on the loop lets it go."""
        return released.wait(BOUND)

    @tool
    async def release() -> str:
        """Let the blocked thread go, from the loop that it must not hold."""
        released.set()
        return "released"

    assert [True, "released"] == await outputs(
        bench, serve, conversation, [Call("block"), Call("release")], block, release
    )
