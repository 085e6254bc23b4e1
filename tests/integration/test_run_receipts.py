"""Receipts of agent runs: one invocation a run, whoever works on it, and nothing of it twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.stage import Stage
from turnlane.activities.invocations import AuthorizationRequest, ModelInvocations
from turnlane.agent import ScriptedModel, ToolContext, tool
from turnlane.agent.models import Say
from turnlane.records.invocations import (
    Caller,
    CompletionRequest,
    InvocationAttempt,
    InvocationFinished,
    InvocationReceipt,
    InvocationStarted,
    InvocationTrace,
    ProviderRequested,
    ProviderResponded,
)
from turnlane.records.lane import RetryFacts
from turnlane.records.runs import Failure, FailureClass
from turnlane.store.payloads import RunContext

KEY = bytes(range(32))
SOON = RetryFacts(initial_seconds=0.01, max_seconds=0.02)


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"


def allow(asked: AuthorizationRequest) -> Caller:
    return Caller(subject="ada")


def traced(run: RunContext) -> InvocationTrace:
    return InvocationTrace(operation_id="op-9", purpose="chat", project="notes")


def ledger_of(bench: Bench, **options: Any) -> ModelInvocations:
    return ModelInvocations(bench.store, **{"payload_key": KEY, "authorize": allow, "agent_trace": traced, **options})


async def receipts(invocations: ModelInvocations, conversation: str) -> list[InvocationReceipt]:
    return [entry.receipt for entry in (await invocations.read(conversation)).items]


def told(found: list[InvocationReceipt]) -> list[tuple[str, str | None]]:
    """Each receipt's type, and its status if it has one."""
    return [(receipt.type, getattr(receipt, "status", None)) for receipt in found]


async def test_a_run_leaves_one_invocation_with_a_receipt_of_each_attempt(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    stage, invocations = Stage(), ledger_of(bench)
    await serve(stage.agent(tools=[look], retry=SOON), providers=stage.providers, invocations=invocations)
    ticket = await bench.client().submit(conversation, "hello")
    (await stage.call(1)).use(("c1", "look", "{}"))
    (await stage.call(2)).fail(Failure(failure_class=FailureClass.OVERLOADED, status=529, retryable=True))
    (await stage.call(3)).answer("done")
    result = await ticket.result()

    found = await receipts(invocations, conversation)
    events = (await bench.store.read_events(conversation)).items

    assert [
        ("invocation/started", None),
        ("provider/request", None),
        ("provider/response", "succeeded"),
        ("provider/request", None),
        ("provider/response", "failed"),
        ("provider/request", None),
        ("provider/response", "succeeded"),
        ("invocation/finished", "succeeded"),
    ] == told(found)
    assert {("op-9", result.run_id)} == {(receipt.operation_id, receipt.run_id) for receipt in found}
    assert 1 == len({receipt.invocation_id for receipt in found})
    assert [0, 1, 1] == [receipt.step for receipt in found if isinstance(receipt, ProviderResponded)]
    assert [3, 3] == [[event.kind for event in events].count(f"provider/{kind}") for kind in ("request", "response")]


async def test_what_a_run_said_is_encrypted_in_its_receipts(bench: Bench, serve: Serve, conversation: str) -> None:
    stage, invocations = Stage(), ledger_of(bench)
    await serve(stage.agent(tools=[look]), providers=stage.providers, invocations=invocations)
    ticket = await bench.client().submit(conversation, "MARKER question")
    (await stage.call(1)).answer("MARKER answer")
    await ticket.result()

    found = await receipts(invocations, conversation)
    requested = next(receipt for receipt in found if isinstance(receipt, ProviderRequested))
    responded = next(receipt for receipt in found if isinstance(receipt, ProviderResponded))
    sent = await invocations.read_payload(conversation, requested.sent.artifact_id)
    heard = await invocations.read_payload(conversation, responded.artifact_id or "")
    events = (await bench.store.read_events(conversation)).items

    assert 1 == requested.sent.tools
    assert "MARKER question" in sent.model_dump_json()
    assert "MARKER answer" in heard.model_dump_json()
    assert "MARKER" not in "".join(event.model_dump_json() for event in events)


@pytest.mark.parametrize(("steps", "expected"), [(1, "succeeded")])
async def test_a_run_that_a_policy_stopped_succeeded(
    bench: Bench, serve: Serve, conversation: str, steps: int, expected: str
) -> None:
    stage, invocations = Stage(), ledger_of(bench)
    agent = stage.agent(tools=[look], max_steps=steps)
    await serve(agent, providers=stage.providers, invocations=invocations)
    ticket = await bench.client().submit(conversation, "hello")
    (await stage.call(1)).use(("c1", "look", "{}"))
    result = await ticket.result()

    *_, finished = await receipts(invocations, conversation)

    assert "policy_stop" == result.reason.value
    assert isinstance(finished, InvocationFinished)
    assert expected == finished.status


async def test_a_run_that_was_interrupted_is_cancelled(bench: Bench, serve: Serve, conversation: str) -> None:
    stage, invocations, client = Stage(), ledger_of(bench), bench.client()
    await serve(stage.agent(), providers=stage.providers, invocations=invocations)
    ticket = await client.submit(conversation, "hello")
    (await stage.call(1)).say("I was")
    await client.interrupt(conversation)
    await ticket.result()

    *_, responded, finished = await receipts(invocations, conversation)

    assert [("provider/response", "cancelled"), ("invocation/finished", "cancelled")] == told([responded, finished])


async def test_a_hook_that_raises_fails_the_run_and_calls_nobody(bench: Bench, serve: Serve, conversation: str) -> None:
    def refuse(attempt: InvocationAttempt) -> None:
        raise RuntimeError("MARKER")

    stage, invocations = Stage(), ledger_of(bench, on_attempt=refuse)
    await serve(stage.agent(), providers=stage.providers, invocations=invocations)
    result = await (await bench.client().submit(conversation, "hello")).result()

    found = await receipts(invocations, conversation)

    assert ("runtime_failure", []) == (result.reason.value, stage.calls)
    assert result.failure is not None
    assert ("INVOCATION_REFUSED", False) == (result.failure.code, result.failure.retryable)
    assert [("provider/response", "failed"), ("invocation/finished", "failed")] == told(found[-2:])
    assert 1 == sum(isinstance(receipt, ProviderRequested) for receipt in found)


@pytest.mark.parametrize("part", ["authorize", "agent_trace"])
async def test_an_application_that_raises_before_the_call_fails_the_run(
    bench: Bench, serve: Serve, conversation: str, part: str
) -> None:
    def fail(asked: Any) -> Any:
        if getattr(asked, "action", "agent") == "agent":
            raise PermissionError("MARKER")
        return Caller(subject="reader")

    stage, invocations = Stage(), ledger_of(bench, **{part: fail})
    await serve(stage.agent(), providers=stage.providers, invocations=invocations)
    result = await (await bench.client().submit(conversation, "hello")).result()

    assert ("runtime_failure", []) == (result.reason.value, stage.calls)
    assert result.failure is not None
    assert "INVOCATION_FAILED" == result.failure.code
    assert [] == await receipts(invocations, conversation)


async def test_a_run_that_moves_to_another_caller_is_a_conflict(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    names = iter(["ada", "bob"])

    def turncoat(asked: AuthorizationRequest) -> Caller:
        return Caller(subject=next(names, "reader"))

    invocations = ledger_of(bench, authorize=turncoat)
    await serve(stage.agent(tools=[look]), providers=stage.providers, invocations=invocations)
    ticket = await bench.client().submit(conversation, "hello")
    (await stage.call(1)).use(("c1", "look", "{}"))
    result = await ticket.result()

    assert ("runtime_failure", 1) == (result.reason.value, len(stage.calls))
    started = [told for told in await receipts(invocations, conversation) if isinstance(told, InvocationStarted)]
    assert ["ada"] == [receipt.caller.subject for receipt in started]


async def test_invocations_of_another_store_are_refused(bench: Bench) -> None:
    stage = Stage()
    invocations = ModelInvocations(bench.store, payload_key=KEY, authorize=allow)
    bench.store = object()  # type: ignore[assignment]

    with pytest.raises(TypeError):
        bench.worker(stage.agent(), invocations=invocations)
    bench.store = invocations.store  # type: ignore[assignment]


async def test_a_tool_may_ask_a_model_of_its_own(bench: Bench, serve: Serve, conversation: str) -> None:
    titles = ScriptedModel(script=lambda request: [Say("Tides")])
    invocations = ledger_of(bench, models={"title": titles})

    @tool
    async def title(ctx: ToolContext) -> str | None:
        """Name the conversation."""
        asked = CompletionRequest(
            conversation_id=ctx.conversation_id,
            idempotency_key=ctx.idempotency_key,
            trace=traced_tool(ctx),
            prompt="Name it.",
            models=("title",),
        )
        return (await invocations.complete(asked, signal=ctx.cancelled)).text

    stage = Stage()
    await serve(stage.agent(tools=[title]), providers=stage.providers)
    ticket = await bench.client().submit(conversation, "hello")
    (await stage.call(1)).use(("c1", "title", "{}"))
    (await stage.call(2)).answer("done")
    result = await ticket.result()

    found = await receipts(invocations, conversation)
    history = await bench.store.load_history(conversation, result.run_id, ())

    assert ("success", 4, None) == (result.reason.value, len(found), found[0].run_id)
    assert ["Tides"] == [step.results[0].output for message in history for step in message.steps if step.results]


def traced_tool(ctx: ToolContext) -> InvocationTrace:
    return InvocationTrace(operation_id=ctx.run_id, purpose="title", project="notes")


async def test_a_run_that_a_dead_worker_left_is_one_invocation(bench: Bench, serve: Serve, conversation: str) -> None:
    stage, invocations = Stage(), ledger_of(bench)
    agent = stage.agent(tools=[look])
    async with bench.worker(agent, providers=stage.providers, invocations=invocations):
        ticket = await bench.client().submit(conversation, "hello")
        (await stage.call(1)).use(("c1", "look", "{}"))
        await stage.call(2)
    await serve(agent, providers=stage.providers, invocations=invocations)
    (await stage.call(3)).answer("done")
    await ticket.result()

    found = await receipts(invocations, conversation)

    assert (1, 1) == (
        sum(isinstance(receipt, InvocationStarted) for receipt in found),
        sum(isinstance(receipt, InvocationFinished) for receipt in found),
    )
    attempts = [receipt.attempt_id for receipt in found if isinstance(receipt, ProviderRequested)]
    assert (3, 3) == (len(attempts), len(set(attempts)))
