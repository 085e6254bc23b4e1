"""Tool calls that go wrong: each is told to the model in one envelope, and the others go on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.calling import calling, code, heard, history, outputs, results, scheduled, size, turn
from tests.integration.play import look
from tests.integration.stage import BOUND
from turnlane.agent import tool
from turnlane.agent.models import Call, ScriptedRequest
from turnlane.agent.tools import ToolContext, ToolError
from turnlane.records.base import Json

pytestmark = pytest.mark.server


@tool
def refuse() -> None:
    """Refuse."""
    raise ToolError("SOLD_OUT", "there are none left", retryable=True, details={"left": 0}, hint="Try tomorrow.")


REFUSAL = {
    "error": "SOLD_OUT",
    "retryable": True,
    "details": {"message": "there are none left", "left": 0},
    "_hint": "Try tomorrow.",
}
"""What the model is told of it."""


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


async def test_a_call_that_cannot_run_starts_no_activity(bench: Bench, serve: Serve, conversation: str) -> None:
    await outputs(bench, serve, conversation, [Call("no_such_tool"), Call("look", "nonsense")], look)

    assert ["provider_step", "provider_step"] == scheduled(await history(bench, conversation))


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


# --- one envelope ---------------------------------------------------------------------------------


async def test_a_refusal_tells_the_model_what_it_may_do(bench: Bench, serve: Serve, conversation: str) -> None:
    (told,) = await outputs(bench, serve, conversation, [Call("refuse")], refuse)

    assert REFUSAL == told


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

    assert [[REFUSAL]] * 3 == [told, stored, heard(prompts[1])]
    assert REFUSAL == heard(prompts[2])[0]
