"""The loop of a run: what stops it behind a tool call, whether its answer is accepted, and what a step may change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import open_play
from tests.integration.stage import BOUND
from tests.replay.replaying import replay
from turnlane.agent import Agent, tool
from turnlane.agent.acceptance import Answer, require_output
from turnlane.agent.models import Action, Call, Say, ScriptedModel, ScriptedRequest, Stop, Think
from turnlane.agent.step_input import StepInput, StepOverrides
from turnlane.agent.stopping import StopContext, StopPolicy, called
from turnlane.client import Result
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.lane import LaneSettings
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import MessageStatus, ToolResultPart
from turnlane.records.runs import FailureClass, RunState, TerminalReason
from turnlane.testing.races import Barrier

pytestmark = pytest.mark.server

MARK = "xq7-never-to-be-seen-9"


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"


@tool(read_only=True)
def leap() -> str:
    """Leap."""
    return "leapt"


def scripted(*steps: Sequence[Action], **options: Any) -> Agent:
    """An agent whose model does this in its steps, and the last of it for ever."""
    model = ScriptedModel(script=lambda request: steps[min(request.step, len(steps) - 1)])
    options.setdefault("tools", [look, leap])
    return Agent(name="scripted", model=model, **options)


async def turn(bench: Bench, serve: Serve, conversation: str, agent: Agent, **options: Any) -> Result:
    """One turn of a conversation with an agent."""
    await serve(agent)
    ticket = await bench.client().submit(conversation, "hi", **options)
    return await ticket.result(BOUND)


async def requests(bench: Bench, conversation: str) -> int:
    """How many model calls the ledger tells of."""
    events = (await bench.store.read_events(conversation)).items
    return sum(event.kind == LedgerKind.PROVIDER_REQUEST for event in events)


def ended(result: Result) -> tuple[TerminalReason | None, str | None]:
    return result.reason, result.policy_name


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


# --- acceptance ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    [[Think("hm")], [Say("  \n ")], [], [Think("and then"), Stop("length")]],
    ids=["reasoning", "blank", "nothing", "reasoning to the limit"],
)
async def test_an_answer_without_output_is_rejected(
    bench: Bench, serve: Serve, conversation: str, actions: list[Action]
) -> None:
    result = await turn(bench, serve, conversation, scripted(actions, accept=require_output()))

    assert (TerminalReason.OUTPUT_REJECTED, RunState.FAILED) == (result.reason, result.state)
    assert result.message is not None
    assert MessageStatus.FAILED is result.message.status


async def test_an_answer_with_output_is_accepted_also_where_it_was_cut(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    agent = scripted([Say("as far as"), Stop("length")], accept=require_output())

    assert TerminalReason.PROVIDER_STOP is (await turn(bench, serve, conversation, agent)).reason


async def test_the_calls_of_a_stopped_run_are_output(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = scripted([Call("look")], max_steps=1, accept=require_output())

    assert (TerminalReason.POLICY_STOP, "max-steps") == ended(await turn(bench, serve, conversation, agent))


async def test_an_application_judges_the_whole_answer(bench: Bench, serve: Serve, conversation: str) -> None:
    judged: list[Answer] = []

    async def accept(answer: Answer) -> bool:
        judged.append(answer)
        return "seen" in answer.text

    agent = scripted([Say("I see. "), Call("look")], [Say("Nothing to be seen.")], accept=accept)

    result = await turn(bench, serve, conversation, agent)

    (answer,) = judged
    assert TerminalReason.SUCCESS is result.reason
    assert (TerminalReason.SUCCESS, "I see. Nothing to be seen.") == (answer.reason, answer.text)
    assert result.message is not None
    assert result.message.parts == answer.parts


async def test_a_stopped_run_may_be_rejected_and_then_names_no_policy(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    agent = scripted([Call("look")], stop_when={"looked": called("look")}, accept=lambda answer: False)

    assert (TerminalReason.OUTPUT_REJECTED, None) == ended(await turn(bench, serve, conversation, agent))


@pytest.mark.parametrize("steps", [1, 50], ids=["at a boundary", "at the end"])
async def test_an_acceptance_that_raises_fails_the_run_as_the_applications_fault(
    bench: Bench, serve: Serve, conversation: str, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    def accept(answer: Answer) -> bool:
        raise KeyError(MARK)

    agent = scripted([Call("look")], [Say("so")], max_steps=steps, accept=accept)

    result = await turn(bench, serve, conversation, agent)

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert "ACCEPTANCE_FAILED" == result.failure.code
    assert MARK not in caplog.text


# --- preparing steps ----------------------------------------------------------------------------


async def test_what_a_step_changes_reaches_the_model_and_the_steps_behind_it(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    heard: list[tuple[tuple[Any, ...], list[str]]] = []
    shown: list[StepInput] = []

    def script(request: ScriptedRequest) -> Sequence[Action]:
        heard.append((request.prompt.system, [spec.name for spec in request.prompt.tools]))
        return [Say("so")] if request.step == 2 else [Call("look")]

    def prepare(step: StepInput) -> StepOverrides | None:
        shown.append(step)
        return StepOverrides(instructions="Be brief.", active_tools=["look"]) if step.step_number == 1 else None

    agent = Agent(
        name="actor",
        model=ScriptedModel(script=script),
        instructions="Be kind.",
        tools=[look, leap],
        prepare_step=prepare,
    )

    result = await turn(bench, serve, conversation, agent)

    both = ["look", "leap"]
    assert TerminalReason.SUCCESS is result.reason
    assert [(("Be kind.",), both), (("Be brief.",), ["look"]), (("Be brief.",), both)] == heard
    assert [0, 1, 2] == [len(step.steps) for step in shown]
    assert shown[0].context_usage is None
    assert all(step.context_usage for step in shown[1:])


async def test_a_tool_that_is_not_on_offer_in_a_step_is_not_run(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = scripted(
        [Call("look"), Call("leap")], [Say("so")], prepare_step=lambda step: StepOverrides(active_tools=["leap"])
    )

    result = await turn(bench, serve, conversation, agent)

    assert result.message is not None
    outputs = [part.output for part in result.message.parts if isinstance(part, ToolResultPart)]
    assert isinstance(outputs[0], dict)
    assert ("INACTIVE_TOOL", "leapt") == (outputs[0]["error"], outputs[1])


async def test_a_step_that_cannot_be_prepared_fails_the_run_and_is_not_tried_again(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    tried: list[int] = []

    def prepare(step: StepInput) -> None:
        tried.append(step.step_number)
        raise KeyError(MARK)

    fallback = ScriptedModel(name="second", script=lambda request: [Say("never")])
    agent = scripted([Say("never")], prepare_step=prepare, fallbacks=[fallback])

    result = await turn(bench, serve, conversation, agent)

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert ("PREPARE_STEP_FAILED", [0], 0) == (result.failure.code, tried, await requests(bench, conversation))


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
    play = await open_play(bench, serve, conversation, **options[where])
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
    await replay(json.loads(history.to_json()))


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
