"""The loop of a run: what stops it behind a tool call, while the application thinks, and what does not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.looping import MARK, ended, requests, scripted, turn
from tests.integration.play import open_play
from tests.integration.stage import BOUND
from tests.replay.replaying import divergence
from turnlane.agent import tool
from turnlane.agent.models import Call, Say
from turnlane.agent.step_input import StepInput
from turnlane.agent.stopping import StopContext, StopPolicy, called
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.lane import LaneSettings
from turnlane.records.messages import MessageStatus, ToolResultPart
from turnlane.records.runs import FailureClass, TerminalReason
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server


# --- stop policies ------------------------------------------------------------------------------


async def test_a_policy_stops_a_run_behind_its_tool_calls(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = scripted([Call("look")], [Call("leap")], [Say("never")], stop_when={"leapt": called("leap")})

    result = await turn(bench, serve, conversation, agent)

    assert (TerminalReason.POLICY_STOP, "leapt") == ended(result)
    assert result.message is not None
    assert MessageStatus.COMPLETED is result.message.status
    assert ["seen", "leapt"] == [part.output for part in result.message.parts if isinstance(part, ToolResultPart)]
    assert 2 == await requests(bench, conversation)


async def test_the_first_policy_that_is_true_is_named_and_all_are_heard(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    heard: list[str] = []

    def says(name: str, stops: bool) -> StopPolicy:
        async def condition(context: StopContext) -> bool:
            heard.append(f"{name} {context.step_number}")
            return stops

        return StopPolicy(name, condition)

    agent = scripted([Call("look")], stop_when=[says("no", False), says("yes", True), says("also", True)])

    result = await turn(bench, serve, conversation, agent)

    assert (TerminalReason.POLICY_STOP, "yes") == ended(result)
    assert ["no 0", "yes 0", "also 0"] == heard


async def test_the_step_limit_is_named_before_any_other_policy(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = scripted([Call("look")], max_steps=1, stop_when={"looked": called("look")})

    assert (TerminalReason.POLICY_STOP, "max-steps") == ended(await turn(bench, serve, conversation, agent))


async def test_an_answer_at_the_step_limit_is_a_success(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = scripted([Call("look")], [Say("so")], max_steps=2)

    result = await turn(bench, serve, conversation, agent)

    assert ((TerminalReason.SUCCESS, None), "so") == (ended(result), result.text)


async def test_a_run_without_tool_calls_is_not_judged(bench: Bench, serve: Serve, conversation: str) -> None:
    def always(context: StopContext) -> bool:
        raise AssertionError("a plain answer has no boundary")

    assert (TerminalReason.SUCCESS, None) == ended(
        await turn(bench, serve, conversation, scripted([Say("so")], stop_when={"always": always}))
    )


async def test_a_policy_sees_what_the_run_did_and_what_it_was_asked_with(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    seen: list[StopContext] = []

    def watch(context: StopContext) -> bool:
        seen.append(context)
        return False

    agent = scripted([Say("Let me see."), Call("look")], [Say("so")], stop_when={"watch": watch})

    result = await turn(bench, serve, conversation, agent, context={"plan": "free"}, metadata={"m": 1})

    (context,) = seen
    assert (TerminalReason.SUCCESS, None) == ended(result)
    assert (conversation, result.run_id) == (context.conversation_id, context.run_id)
    assert ({"plan": "free"}, {"m": 1}) == (context.context, context.metadata)
    assert (["Let me see."], ["look"], ["seen"]) == (
        [step.text for step in context.steps],
        [call.tool_name for call in context.calls],
        [result.output for result in context.results],
    )
    assert context.usage.input_tokens.value


async def test_a_policy_that_raises_fails_the_run_as_the_applications_fault(
    bench: Bench, serve: Serve, conversation: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: StopContext) -> bool:
        raise KeyError(MARK)

    result = await turn(bench, serve, conversation, scripted([Call("look")], stop_when={"broken": broken}))

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert (FailureClass.APPLICATION, "STOP_POLICY_FAILED") == (result.failure.failure_class, result.failure.code)
    assert MARK not in caplog.text


async def test_an_input_that_waits_at_the_boundary_where_a_run_stops_has_a_run_of_its_own(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await open_play(bench, serve, conversation, stop_when={"looked": called("look")})
    first = await play.submit("A")
    call = await play.stage.call(1)
    second = await play.submit("B", policy="inject")
    call.use(("c1", "look", "{}"))
    (await play.stage.call(2)).answer("to B")
    stopped, answered = await first.result(BOUND), await second.result(BOUND)

    assert (TerminalReason.POLICY_STOP, "looked") == ended(stopped)
    assert (TerminalReason.SUCCESS, "to B") == (answered.reason, answered.text)
    assert (["A"], ["B"]) == (await play.inputs(stopped), await play.inputs(answered))


# --- while the application thinks ---------------------------------------------------------------


@pytest.mark.parametrize("where", ["a policy", "an acceptance", "a preparation"])
async def test_an_interrupt_while_the_application_thinks_ends_the_run_as_interrupted(
    bench: Bench, serve: Serve, conversation: str, where: str
) -> None:
    thinking = Barrier("thinking", BOUND)

    async def judge(given: object) -> bool:
        await thinking.wait()
        return True

    async def prepare(step: StepInput) -> None:
        await thinking.wait()

    options: dict[str, dict[str, Any]] = {
        "a policy": {"stop_when": {"thought": judge}},
        "an acceptance": {"accept": judge},
        "a preparation": {"prepare_step": prepare},
    }
    # An interrupt is heard once a judgement that takes long has become an activity.
    settings = LaneSettings(local_seconds=0.5)
    play = await open_play(bench, serve, conversation, settings=settings, **options[where])
    ticket = await play.submit("A")
    if where != "a preparation":
        call = await play.stage.call(1)
        if where == "a policy":
            call.use(("c1", "look", "{}"))
        else:
            call.answer("so")
    await thinking.until_reached()
    await play.client.interrupt(conversation)
    thinking.release()
    result = await ticket.result(BOUND)

    assert (TerminalReason.INTERRUPTED, None) == ended(result)


async def test_a_lane_that_is_lost_while_a_boundary_is_judged_has_it_judged_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    thinking = Barrier("thinking", BOUND)

    async def judge(context: StopContext) -> bool:
        await thinking.wait()
        return True

    await serve(scripted([Call("look")], [Say("never")], stop_when={"thought": judge}))
    client = bench.client()
    first = await client.submit(conversation, "hi")
    await thinking.until_reached()
    await bench.temporal.get_workflow_handle(f"lane/{conversation}").terminate("the test needs a lost lane")
    thinking.release()
    await (await client.submit(conversation, "and")).result(BOUND)
    result = await first.result(BOUND)

    assert (TerminalReason.POLICY_STOP, "thought") == ended(result)
    assert result.message is not None
    assert ["seen"] == [part.output for part in result.message.parts if isinstance(part, ToolResultPart)]


async def test_a_policy_that_takes_long_is_judged_as_an_activity_and_its_history_replays(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    tried, judged = asyncio.Event(), Barrier("judged", BOUND)

    async def judge(context: StopContext) -> bool:
        if tried.is_set():
            await judged.wait()
            return True
        tried.set()
        await asyncio.Event().wait()
        raise AssertionError("the first try is cancelled when it took too long")

    settings = LaneSettings(local_seconds=0.3)
    play = await open_play(bench, serve, conversation, stop_when={"slow": judge}, settings=settings)
    ticket = await play.submit("A")
    (await play.stage.call(1)).use(("c1", "look", "{}"))
    await judged.until_reached()
    waiting = await play.submit("B")
    judged.release()
    result = await ticket.result(BOUND)
    (await play.stage.call(2)).answer("to B")
    await waiting.result(BOUND)
    history = await play.lane.fetch_history()

    assert (TerminalReason.POLICY_STOP, "slow") == ended(result)
    assert await divergence(json.loads(history.to_json())) is None


# --- the silence of a model ---------------------------------------------------------------------


async def test_the_clock_of_silence_stands_still_while_others_work(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    @tool(read_only=True)
    async def ponder() -> str:
        """Ponder."""
        await asyncio.sleep(0.6)
        return "pondered"

    async def prepare(step: StepInput) -> None:
        await asyncio.sleep(0.6)

    agent = scripted([Call("ponder")], [Say("so")], tools=[ponder], prepare_step=prepare, idle_timeout=0.3)

    result = await turn(bench, serve, conversation, agent)

    assert (TerminalReason.SUCCESS, "so") == (result.reason, result.text)


async def test_a_tool_that_takes_too_long_is_told_so_and_the_run_goes_on(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    @tool(timeout=0.1)
    async def dawdle() -> None:
        """Dawdle."""
        await asyncio.sleep(30)

    result = await turn(bench, serve, conversation, scripted([Call("dawdle")], [Say("so")], tools=[dawdle]))

    assert (TerminalReason.SUCCESS, "so") == (result.reason, result.text)
    assert result.message is not None
    (output,) = [part.output for part in result.message.parts if isinstance(part, ToolResultPart)]
    assert isinstance(output, dict)
    assert "TIMEOUT" == output["error"]


# --- writes that are refused --------------------------------------------------------------------


class _Refusing:
    """A store that refuses to keep drafts."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def checkpoint(self, *args: Any) -> None:
        raise StoreIntegrityError("no draft is kept here")


async def test_a_draft_that_cannot_be_stored_fails_the_run_as_our_own_fault(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    client = bench.client()
    bench.store = _Refusing(bench.store)  # type: ignore[assignment]
    await serve(scripted([Say("word by word", chunk=1)], checkpoint_every=2))

    result = await (await client.submit(conversation, "hi")).result(BOUND)

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert "STORE_INTEGRITY" == result.failure.code
