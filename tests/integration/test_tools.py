"""Tool calls on a real lane: what the model is told, what the history holds, and what a retry keeps."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from tests.conftest import Bench, Serve
from tests.integration.play import open_play, until_answered
from tests.integration.stage import BOUND
from turnlane.agent import Agent, Tool, tool
from turnlane.agent.models import Action, Call, Say, ScriptedModel, ScriptedRequest
from turnlane.agent.tools import ToolContext, ToolError
from turnlane.client import Result
from turnlane.records.base import Json, canonical_json
from turnlane.records.limits import Limits
from turnlane.records.messages import ToolCallPart, ToolOutcome, ToolResultPart
from turnlane.records.runs import TerminalReason
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server

LARGEST_PAYLOAD = 128 * 1024


def calling(calls: Sequence[Call], *tools: Tool, prompts: list[ScriptedRequest] | None = None, **options: Any) -> Agent:
    """An agent whose model makes these calls, and then has nothing to add."""

    def script(request: ScriptedRequest) -> Sequence[Action]:
        if prompts is not None:
            prompts.append(request)
        return calls if request.step == 0 else [Say("done")]

    return Agent(name="caller", model=ScriptedModel(script=script), tools=tools, **options)


async def turn(bench: Bench, serve: Serve, conversation: str, agent: Agent) -> Result:
    """One turn of a conversation with an agent."""
    await serve(agent)
    ticket = await bench.client().submit(conversation, "hi")
    return await ticket.result(BOUND)


async def outputs(bench: Bench, serve: Serve, conversation: str, calls: Sequence[Call], *tools: Tool) -> list[Any]:
    """What the calls of one step were answered, as the message tells it."""
    return [part.output for part in results(await turn(bench, serve, conversation, calling(calls, *tools)))]


def results(result: Result) -> list[ToolResultPart]:
    assert TerminalReason.SUCCESS is result.reason
    assert result.message is not None
    return [part for part in result.message.parts if isinstance(part, ToolResultPart)]


def heard(request: ScriptedRequest) -> list[Json]:
    """The results that a prompt holds."""
    parts = [part for message in request.prompt.messages for part in message.parts]
    return [part.output for part in parts if isinstance(part, ToolResultPart)]


async def history(bench: Bench, conversation: str) -> Sequence[HistoryEvent]:
    handle = bench.temporal.get_workflow_handle(f"lane/{conversation}")
    return (await handle.fetch_history()).events


def largest_event(events: Sequence[HistoryEvent]) -> int:
    """The size of the largest event, which no payload in it can exceed."""
    return max(event.ByteSize() for event in events)


def scheduled(events: Sequence[HistoryEvent]) -> list[str]:
    """The types of the activities that were scheduled, in order."""
    wanted = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in events
        if event.event_type == wanted
    ]


@tool(read_only=True)
def size(text: str) -> int:
    """Count the characters of a text."""
    return len(text)


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"


# --- many and large -----------------------------------------------------------------------------


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


# --- what goes wrong ----------------------------------------------------------------------------


def code(output: Any) -> str | None:
    return output.get("error") if isinstance(output, dict) else None


@tool
def refuse() -> None:
    """Refuse."""
    raise ToolError("SOLD_OUT", "there are none left", retryable=True, details={"left": 0}, hint="Try tomorrow.")


@tool
def crash() -> None:
    """Crash."""
    raise RuntimeError("secret")


@tool
def unspeakable() -> object:
    """Return what is not JSON."""
    return object()


@tool(timeout=0.2)
async def dawdle() -> None:
    """Take too long."""
    await asyncio.Event().wait()


FAULTS = {
    "unknown tool": (Call("no_such_tool"), "UNKNOWN_TOOL"),
    "broken arguments": (Call("look", '{"at": '), "VALIDATION_ERROR"),
    "arguments that are a list": (Call("look", "[1]"), "VALIDATION_ERROR"),
    "arguments that do not fit": (Call("size", {"text": 7}), "VALIDATION_ERROR"),
    "arguments nobody asked for": (Call("look", {"at": "x"}), "VALIDATION_ERROR"),
    "a refusal": (Call("refuse"), "SOLD_OUT"),
    "a crash": (Call("crash"), "INTERNAL_ERROR"),
    "a result that is not JSON": (Call("unspeakable"), "INVALID_OUTPUT"),
    "too slow": (Call("dawdle"), "TIMEOUT"),
}


async def test_whatever_goes_wrong_in_a_call_is_told_and_the_others_go_on(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    calls = [call for call, _ in FAULTS.values()]
    tools = (look, size, refuse, crash, unspeakable, dawdle)

    told = await outputs(bench, serve, conversation, [*calls, Call("look")], *tools)

    assert {name: expected for name, (_, expected) in FAULTS.items()} == {
        name: code(output) for name, output in zip(FAULTS, told, strict=False)
    }
    assert "seen" == told[-1]
    assert "secret" not in json.dumps(told)


async def test_a_refusal_tells_the_model_what_it_may_do(bench: Bench, serve: Serve, conversation: str) -> None:
    (told,) = await outputs(bench, serve, conversation, [Call("refuse")], refuse)

    assert {
        "error": "SOLD_OUT",
        "retryable": True,
        "details": {"message": "there are none left", "left": 0},
        "_hint": "Try tomorrow.",
    } == told


async def test_a_call_that_cannot_run_starts_no_activity(bench: Bench, serve: Serve, conversation: str) -> None:
    await outputs(bench, serve, conversation, [Call("no_such_tool"), Call("look", "nonsense")], look)

    assert ["provider_step", "provider_step"] == scheduled(await history(bench, conversation))


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


# --- what a tool knows --------------------------------------------------------------------------


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


async def test_a_retried_call_keeps_its_idempotency_key(bench: Bench, serve: Serve, conversation: str) -> None:
    seen: list[tuple[int, str]] = []
    begun = asyncio.Event()

    @tool(read_only=True)
    async def fetch(ctx: ToolContext) -> str:
        """Fetch; the first try takes for ever."""
        seen.append((ctx.attempt, ctx.idempotency_key))
        if ctx.attempt == 1:
            begun.set()
            await asyncio.Event().wait()
        return "fetched"

    agent = calling([Call("fetch")], fetch)
    async with bench.worker(agent, graceful_seconds=0.1):
        ticket = await bench.client().submit(conversation, "hi")
        async with asyncio.timeout(BOUND):
            await begun.wait()
    await serve(agent)

    answered = results(await ticket.result(BOUND))

    assert ["fetched"] == [part.output for part in answered]
    assert [1, 2] == [attempt for attempt, _ in seen]
    assert 1 == len({key for _, key in seen})


async def test_a_worker_that_leaves_does_not_repeat_a_call_that_may_have_had_its_effect(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    begun = asyncio.Event()
    charged: list[int] = []

    @tool
    async def charge(ctx: ToolContext) -> None:
        """Charge, and take for ever to say so."""
        charged.append(ctx.attempt)
        begun.set()
        await asyncio.Event().wait()

    agent = calling([Call("charge")], charge)
    async with bench.worker(agent, graceful_seconds=0.1):
        ticket = await bench.client().submit(conversation, "hi")
        async with asyncio.timeout(BOUND):
            await begun.wait()
    await serve(agent)

    answered = results(await ticket.result(BOUND))

    assert ["OUTCOME_UNKNOWN"] == [code(part.output) for part in answered]
    assert [1] == charged


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


# --- interrupts ---------------------------------------------------------------------------------


async def test_a_finished_call_keeps_its_result_when_the_run_is_interrupted(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    hold = Barrier("hold", BOUND)

    @tool
    async def wait() -> str:
        """Wait until somebody says so."""
        await hold.wait()
        return "waited"

    await serve(calling([Call("look"), Call("wait")], look, wait))
    client = bench.client()
    ticket = await client.submit(conversation, "hi")
    await hold.until_reached()
    await until_answered(client, conversation, "seen")

    await client.interrupt(conversation)
    result = await ticket.result(BOUND)

    assert TerminalReason.INTERRUPTED is result.reason
    assert result.message is not None
    told = [part for part in result.message.parts if isinstance(part, ToolResultPart)]
    assert [("look", ToolOutcome.SUCCESS), ("wait", ToolOutcome.INTERRUPTED)] == [
        (part.tool_name, part.outcome) for part in told
    ]


# --- what the model is not shown ----------------------------------------------------------------


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


# --- one envelope -------------------------------------------------------------------------------


async def test_a_refusal_is_the_same_in_the_event_the_history_the_next_step_and_after_a_reopening(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    prompts: list[ScriptedRequest] = []
    await serve(calling([Call("refuse")], refuse, prompts=prompts))
    client = bench.client()
    ticket = await client.submit(conversation, "hi")
    told: list[Json] = []
    async for event in ticket.events():
        if getattr(event, "status", None) == "failed":
            told.append(event.output)  # type: ignore[union-attr]

    stored = [part.output for part in results(await ticket.result(BOUND))]
    await bench.temporal.get_workflow_handle(f"lane/{conversation}").terminate("the test reopens the lane")
    await (await client.submit(conversation, "again")).result(BOUND)

    envelope = {
        "error": "SOLD_OUT",
        "retryable": True,
        "details": {"message": "there are none left", "left": 0},
        "_hint": "Try tomorrow.",
    }
    assert [[envelope]] * 3 == [told, stored, heard(prompts[1])]
    assert envelope == heard(prompts[2])[0]


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


# --- the fence ----------------------------------------------------------------------------------


async def test_a_tool_whose_run_was_taken_away_before_is_not_run(bench: Bench, serve: Serve, conversation: str) -> None:
    effects: list[str] = []

    @tool
    def charge() -> None:
        """Charge."""
        effects.append("charged")

    play = await open_play(bench, serve, conversation, hold="begin_call", hold_answer=False, tools=[charge])
    ticket = await play.submit("A")
    (await play.stage.call(1)).use(("call_1", "charge", "{}"))
    await play.barrier.until_reached()

    await play.client.interrupt(conversation)
    play.barrier.release()
    result = await ticket.result(BOUND)

    assert result.message is not None
    told = [part.output for part in result.message.parts if isinstance(part, ToolResultPart)]
    assert ([], ["INTERRUPTED"]) == (effects, [code(output) for output in told])


async def test_a_result_whose_run_was_taken_away_meanwhile_is_discarded(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    hold = Barrier("hold", BOUND)
    effects: list[str] = []

    @tool
    async def charge() -> str:
        """Charge, and take a while to say so."""
        effects.append("charged")
        try:
            await hold.wait()
        except asyncio.CancelledError:
            return "charged all the same"
        return "charged"

    await serve(calling([Call("charge")], charge))
    client = bench.client()
    ticket = await client.submit(conversation, "hi")
    await hold.until_reached()
    await client.interrupt(conversation)
    result = await ticket.result(BOUND)

    assert result.message is not None
    told = [part for part in result.message.parts if isinstance(part, ToolResultPart)]
    assert (["charged"], [ToolOutcome.INTERRUPTED]) == (effects, [part.outcome for part in told])
    assert ["INTERRUPTED"] == [code(part.output) for part in told]


async def test_a_hook_of_the_agent_refuses_a_call_before_its_tool_is_run(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    ran: list[str] = []

    @tool
    def wipe(disk: str) -> None:
        """Wipe a disk."""
        ran.append(disk)

    def guard(ctx: ToolContext, name: str, arguments: Any) -> Any:
        if arguments["disk"] == "/":
            raise ToolError("FORBIDDEN", "not that one")
        return {"disk": arguments["disk"].upper()}

    agent = calling([Call("wipe", {"disk": "/"}), Call("wipe", {"disk": "/tmp/x"})], wipe, before_call=guard)
    refused, done = results(await turn(bench, serve, conversation, agent))

    assert ("FORBIDDEN", {"status": "ok"}) == (code(refused.output), done.output)
    assert ["/TMP/X"] == ran


async def test_an_effect_of_an_interrupted_run_is_told_to_the_next_one_and_not_made_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    charged: list[str] = []
    stuck = asyncio.Event()

    @tool
    def charge() -> str:
        """Charge."""
        charged.append("once")
        return "charged"

    @tool
    async def hang() -> None:
        """Take for ever."""
        stuck.set()
        await asyncio.Event().wait()

    play = await open_play(bench, serve, conversation, tools=[charge, hang])
    first = await play.submit("A")
    (await play.stage.call(1)).use(("t1", "charge", "{}"), ("t2", "hang", "{}"))
    await asyncio.gather(until_answered(play.client, conversation, "charged"), stuck.wait())
    await play.client.interrupt(conversation)
    await first.result(BOUND)

    second = await play.submit("B")
    call = await play.stage.call(2)
    heard_parts = [part for message in call.request.prompt.messages for part in message.parts]
    call.answer("Yes.")
    await second.result(BOUND)

    told = {part.call_id: part for part in heard_parts if isinstance(part, ToolResultPart)}
    assert ["t1", "t2"] == list(told)
    assert ("charged", "INTERRUPTED") == (told["t1"].output, code(told["t2"].output))
    assert ["once"] == charged
