"""What an application's functions do wrong in the middle of a run: hang, hear nothing, break out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import open_play, run_id
from tests.integration.stage import BOUND, until
from tests.replay.replaying import divergence
from turnlane.activities import asking, patience
from turnlane.agent import Approvals
from turnlane.agent.compaction import Compaction
from turnlane.records.errors import PolicyFailedError, PreflightFailedError
from turnlane.records.lane import LaneSettings, RetryFacts
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import Failure, FailureClass, TerminalReason

pytestmark = pytest.mark.server

WHERE = ["a policy", "an acceptance", "a preparation", "an approval policy", "instructions"]


def options(where: str, function: Any) -> dict[str, Any]:
    """The options of an agent that asks the function there."""
    return {
        "a policy": {"stop_when": {"thought": function}},
        "an acceptance": {"accept": function},
        "a preparation": {"prepare_step": function},
        "an approval policy": {"approvals": Approvals(policy=function)},
        "instructions": {"instructions": function},
    }[where]


async def answered_there(play: Any, where: str) -> None:
    """Have the model answer, so that the function is asked."""
    if where in ("a preparation", "instructions"):
        return
    call = await play.stage.call(1)
    if where == "an acceptance":
        call.answer("so")
    else:
        call.use(("c1", "look", "{}"))


@pytest.mark.parametrize("where", WHERE)
async def test_an_interrupt_ends_a_run_whose_application_hears_nothing(
    bench: Bench, serve: Serve, conversation: str, where: str
) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def deaf(given: object) -> Any:
        began.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    settings = LaneSettings(local_seconds=0.5)
    play = await open_play(bench, serve, conversation, settings=settings, **options(where, deaf))
    ticket = await play.submit("A")
    await answered_there(play, where)
    await asyncio.wait_for(began.wait(), BOUND)
    await play.client.interrupt(conversation)
    result = await ticket.result(patience.PATIENCE_SECONDS / 2)
    history = await play.lane.fetch_history()
    release.set()

    assert TerminalReason.INTERRUPTED is result.reason
    assert await divergence(json.loads(history.to_json())) is None


CODES = {
    "a policy": "STOP_POLICY_FAILED",
    "an acceptance": "ACCEPTANCE_FAILED",
    "a preparation": "PREPARE_STEP_FAILED",
    "an approval policy": "APPROVAL_POLICY_FAILED",
    "instructions": "INSTRUCTIONS_FAILED",
}


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=["exit", "cancelled"])
@pytest.mark.parametrize("where", WHERE)
async def test_what_breaks_out_of_the_application_fails_the_run_once_and_ends_no_worker(
    bench: Bench, serve: Serve, conversation: str, where: str, error: BaseException
) -> None:
    async def breaking(given: object) -> Any:
        await asyncio.sleep(0)
        raise error

    play = await open_play(bench, serve, conversation, **options(where, breaking))
    ticket = await play.submit("A")
    await answered_there(play, where)
    result = await ticket.result(BOUND)

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert CODES[where] == result.failure.code
    assert len(play.stage.calls) <= 1


@pytest.mark.parametrize("where", ["an acceptance", "a preparation", "instructions"])
async def test_a_function_that_never_answers_fails_the_run(
    bench: Bench, serve: Serve, conversation: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hanging(given: object) -> Any:
        await asyncio.Event().wait()

    asked = asking.asked
    for module in ("judging", "step_overrides", "turn"):
        monkeypatch.setattr(f"turnlane.activities.{module}.asked", lambda ask, seconds=0.0: asked(ask, 0.2))
    play = await open_play(bench, serve, conversation, **options(where, hanging))
    ticket = await play.submit("A")
    await answered_there(play, where)
    result = await ticket.result(BOUND)

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert CODES[where] == result.failure.code


async def test_a_preflight_that_hears_nothing_refuses_its_input_and_holds_up_no_other(
    bench: Bench, serve: Serve, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()

    async def preflight(question: Any) -> None:
        if question.metadata:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 1.0)
    settings = LaneSettings(local_seconds=0.5)
    play = await open_play(bench, serve, conversation, settings=settings, preflight=preflight)
    with pytest.raises(PreflightFailedError):
        await play.submit("A", metadata={"slow": True})
    ticket = await play.submit("B")
    (await play.stage.call(1)).answer("to B")
    release.set()

    assert TerminalReason.SUCCESS is (await ticket.result(BOUND)).reason


async def test_a_policy_function_that_breaks_out_refuses_the_input(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    def policy(context: Any) -> Any:
        raise SystemExit(3)

    play = await open_play(bench, serve, conversation, policy=policy)

    with pytest.raises(PolicyFailedError):
        await play.submit("A")


async def test_a_try_that_an_interrupt_forestalls_is_not_told_as_begun(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, retry=RetryFacts(initial_seconds=60.0))
    ticket = await play.submit("A")
    call = await play.stage.call(1)
    call.fail(Failure(failure_class=FailureClass.OVERLOADED, retryable=True))

    async def is_scheduled() -> bool:
        return any(event.kind == LedgerKind.RETRY_SCHEDULED for event in await play.ledger())

    await until(is_scheduled)
    await play.client.interrupt(conversation, run_id(ticket))
    result = await ticket.result(BOUND)

    assert TerminalReason.INTERRUPTED is result.reason
    assert LedgerKind.RETRY_STARTED not in [event.kind for event in await play.ledger()]


@pytest.mark.parametrize("what", ["hears nothing", "breaks out"])
async def test_a_summary_that_never_comes_fails_its_compaction_and_no_run(
    bench: Bench, serve: Serve, conversation: str, what: str
) -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    async def summarize(context: Any) -> Any:
        begun.set()
        if what == "breaks out":
            raise SystemExit(3)
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    compaction = Compaction(turns=1, keep_recent_turns=1, summarize=summarize, seconds=0.3)
    play = await open_play(bench, serve, conversation, compaction=compaction)
    play.stage.play()
    reasons = [await play.reasons(await play.submit(name)) for name in "ABC"]
    release.set()

    assert begun.is_set()
    assert [["success"]] * 3 == reasons
