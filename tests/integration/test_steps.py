"""The steps of a run: what is written when, how steps end, and when they are tried again."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from tests.conftest import Bench, Serve
from tests.integration.play import Play, open_play, run_id
from tests.integration.stage import BOUND
from turnlane.activities.providers.base import ProviderRequest, StreamPart, TextDelta
from turnlane.activities.providers.registry import Providers
from turnlane.agent import Agent, tool
from turnlane.agent.agent import PromptContext
from turnlane.agent.models import Action, Call, Fail, Pause, Say, ScriptedModel, ScriptedRequest, Stop
from turnlane.agent.tools import ToolError
from turnlane.client import Result
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.events import AssistantDeltaEvent, AttemptResetEvent, Event, RunOperationEvent
from turnlane.records.lane import RetryFacts
from turnlane.records.ledger import LedgerEvent, LedgerKind
from turnlane.records.messages import MessageStatus, TextPart, ToolResultPart
from turnlane.records.mutations import MutationKind
from turnlane.records.prompt import SystemText
from turnlane.records.runs import Failure, FailureClass, OperationPhase, RunState, TerminalReason
from turnlane.records.usage import Provenance, UsageValue

pytestmark = pytest.mark.server

MARK = "xq7-never-to-be-seen-9"
OVERLOADED = Failure(failure_class=FailureClass.OVERLOADED, code="overloaded_error", status=529, retryable=True)
SOON = RetryFacts(initial_seconds=0.01)


async def turn(bench: Bench, serve: Serve, conversation: str, agent: Agent, text: str = "hi", **options: Any) -> Result:
    """One turn of a conversation with an agent."""
    await serve(agent, **options)
    ticket = await bench.client().submit(conversation, text)
    return await ticket.result(BOUND)


def scripted(*steps: Sequence[Action], **options: Any) -> Agent:
    """An agent whose model does this in its steps, and the last of it for ever."""
    model = ScriptedModel(script=lambda request: steps[min(request.step, len(steps) - 1)])
    return Agent(name="scripted", model=model, **options)


async def ledger(bench: Bench, conversation: str) -> Sequence[LedgerEvent]:
    return (await bench.store.read_events(conversation)).items


def kinds(events: Sequence[LedgerEvent]) -> list[str]:
    """What the ledger tells of provider calls and retries, in order."""
    return [event.kind for event in events if event.kind != LedgerKind.TRANSITION]


@pytest.fixture
async def play(bench: Bench, serve: Serve, conversation: str) -> AsyncIterator[Play]:
    """A conversation with a model that is held; what is still held when the test ends is let go."""
    opened = await open_play(bench, serve, conversation, checkpoint_every=20, retry=SOON)
    yield opened
    opened.stage.play()


# --- what is written when -----------------------------------------------------------------------


async def test_a_draft_is_written_at_the_start_every_twenty_parts_and_at_the_end(play: Play) -> None:
    ticket = await play.submit("A")
    call = await play.stage.call(1)
    for number in range(45):
        call.say(f"{number} ")
    call.answer()
    await ticket.result(BOUND)

    drafts = {MutationKind.OPERATION.value, MutationKind.CHECKPOINT.value}
    types = [event.payload.get("type") for event in await play.ledger()]
    assert ["operation", "checkpoint", "checkpoint", "checkpoint"] == [name for name in types if name in drafts]


async def test_the_request_is_in_the_ledger_before_the_model_is_called(play: Play) -> None:
    ticket = await play.submit("A")
    call = await play.stage.call(1)

    requests = [event for event in await play.ledger() if event.kind == LedgerKind.PROVIDER_REQUEST]
    call.answer("yes")
    await ticket.result(BOUND)
    assert [(run_id(ticket), 0, 1)] == [
        (event.payload["run_id"], event.payload["step"], event.payload["attempt"]) for event in requests
    ]
    assert [LedgerKind.PROVIDER_REQUEST, LedgerKind.PROVIDER_RESPONSE] == kinds(await play.ledger())


async def test_no_model_is_called_before_its_request_is_stored(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, hold="begin_step")
    assert play.held is not None
    ticket = await play.submit("A")
    await play.held.barrier.until_reached()

    called_early = list(play.stage.calls)
    play.held.barrier.release()
    (await play.stage.call(1)).answer("yes")

    assert [] == called_early
    assert "yes" == (await ticket.result(BOUND)).text


class _NoRequests:
    """A store that takes no request. Everything else is the store's own."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def begin_step(self, *args: Any) -> None:
        raise StoreIntegrityError("the request does not fit")


async def test_a_request_that_cannot_be_stored_is_never_made(bench: Bench, serve: Serve, conversation: str) -> None:
    bench.store = _NoRequests(bench.store)  # type: ignore[assignment]
    play = await open_play(bench, serve, conversation)

    result = await (await play.submit("A")).result(BOUND)

    assert (TerminalReason.RUNTIME_FAILURE, []) == (result.reason, play.stage.calls)
    assert result.failure is not None
    assert "STORE_INTEGRITY" == result.failure.code


async def test_who_answered_and_what_it_cost_is_recorded(bench: Bench, serve: Serve, conversation: str) -> None:
    result = await turn(bench, serve, conversation, scripted([Say("three words here")]))

    (response,) = [event for event in await ledger(bench, conversation) if event.kind == LedgerKind.PROVIDER_RESPONSE]
    expected = {"id": f"scripted_{result.run_id}_0_1", "provider": "scripted", "model": "scripted"}
    assert expected == response.payload["response"]
    assert result.usage is not None
    spent = [result.usage.input_tokens, result.usage.output_tokens]
    assert [UsageValue(value=count, provenance=Provenance.COMPUTED) for count in (1, 3)] == spent


async def test_a_step_is_an_operation_that_starts_speaks_and_completes(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    await serve(scripted([Say("one two", chunk=1)], checkpoint_every=3))
    ticket = await bench.client().submit(conversation, "hi")

    told = [event.operation async for event in ticket.events() if isinstance(event, RunOperationEvent)]

    phases = [operation.phase for operation in told]
    assert OperationPhase.STARTED is phases[0]
    assert {OperationPhase.FIRST_OUTPUT} == set(phases[1:-1])
    assert OperationPhase.COMPLETED is phases[-1]
    assert 1 == len({operation.operation_id for operation in told})
    last = told[-1]
    assert last.first_output_at is not None and last.finished_at is not None
    assert last.started_at <= last.first_output_at <= last.finished_at


# --- how steps end ------------------------------------------------------------------------------


async def test_a_model_that_falls_silent_ends_the_run_as_timeout(bench: Bench, serve: Serve, conversation: str) -> None:
    result = await turn(bench, serve, conversation, scripted([Say("well"), Pause(3600)], idle_timeout=0.3))

    assert (TerminalReason.TIMEOUT, RunState.CANCELLED) == (result.reason, result.state)
    assert result.message is not None
    assert (MessageStatus.FAILED, "well") == (result.message.status, result.text)


async def test_a_model_that_keeps_talking_is_not_silent(bench: Bench, serve: Serve, conversation: str) -> None:
    talk = [Say("a slow answer", chunk=1, delay=0.2)]

    result = await turn(bench, serve, conversation, scripted(talk, idle_timeout=2.0))

    assert (TerminalReason.SUCCESS, "a slow answer") == (result.reason, result.text)


@tool(read_only=True)
def look(at: str = "") -> str:
    """Look."""
    return "seen"


async def test_the_last_allowed_step_ends_the_run_with_its_calls_made(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    result = await turn(bench, serve, conversation, scripted([Call("look")], tools=[look], max_steps=2))

    assert (TerminalReason.POLICY_STOP, "max-steps") == (result.reason, result.policy_name)
    assert result.message is not None
    assert MessageStatus.COMPLETED is result.message.status
    assert ["seen", "seen"] == [part.output for part in result.message.parts if isinstance(part, ToolResultPart)]


async def test_an_answer_at_the_output_limit_is_a_provider_stop(bench: Bench, serve: Serve, conversation: str) -> None:
    result = await turn(bench, serve, conversation, scripted([Say("as far as"), Stop("length")]))

    assert (TerminalReason.PROVIDER_STOP, RunState.COMPLETED) == (result.reason, result.state)
    assert "as far as" == result.text


async def test_an_output_limit_behind_tool_calls_runs_none_of_them(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    made: list[str] = []

    @tool
    def effect() -> None:
        """Have an effect."""
        made.append("effect")

    agent = scripted([Call("effect"), Call("effect", '{"at": '), Stop("length")], tools=[effect])

    result = await turn(bench, serve, conversation, agent)

    assert (TerminalReason.PROVIDER_STOP, []) == (result.reason, made)


async def test_a_failure_that_cannot_pass_ends_the_run_with_its_code(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    failure = Failure(failure_class=FailureClass.AUTHENTICATION, code="invalid_api_key", status=401)

    result = await turn(bench, serve, conversation, scripted([Fail(failure)]))

    assert (TerminalReason.PROVIDER_FAILURE, failure) == (result.reason, result.failure)
    assert [LedgerKind.PROVIDER_REQUEST, LedgerKind.PROVIDER_RESPONSE] == kinds(await ledger(bench, conversation))


class _Broken:
    """An adapter with a bug, whose exception tells what it should not."""

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        yield TextDelta("so ")
        raise ValueError(f"what I was told is {MARK}")

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_a_bug_in_an_adapter_is_a_provider_failure(
    bench: Bench, serve: Serve, conversation: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = await turn(bench, serve, conversation, scripted([]), providers=Providers({"scripted": _Broken}))

    assert TerminalReason.PROVIDER_FAILURE is result.reason
    assert result.failure is not None
    assert "ADAPTER_FAILED" == result.failure.code
    assert "ValueError" in caplog.text
    assert MARK not in caplog.text


# --- instructions -------------------------------------------------------------------------------


async def test_instructions_may_follow_from_the_context(bench: Bench, serve: Serve, conversation: str) -> None:
    heard: list[tuple[str | SystemText, ...]] = []

    async def instructions(context: PromptContext) -> str:
        return f"Speak {(context.context or {})['language']} about {(context.metadata or {})['topic']}."

    def script(request: ScriptedRequest) -> Sequence[Action]:
        heard.append(request.prompt.system)
        return [Say("ja")]

    await serve(Agent(name="polyglot", model=ScriptedModel(script=script), instructions=instructions))
    ticket = await bench.client().submit(conversation, "hi", context={"language": "German"}, metadata={"topic": "rain"})
    result = await ticket.result(BOUND)

    assert TerminalReason.SUCCESS is result.reason
    assert [("Speak German about rain.",)] == heard


async def test_instructions_that_raise_fail_the_run_before_any_call(
    bench: Bench, serve: Serve, conversation: str, caplog: pytest.LogCaptureFixture
) -> None:
    def instructions(context: PromptContext) -> str:
        raise KeyError(MARK)

    result = await turn(bench, serve, conversation, scripted([Say("never")], instructions=instructions))

    assert TerminalReason.RUNTIME_FAILURE is result.reason
    assert result.failure is not None
    assert "INSTRUCTIONS_FAILED" == result.failure.code
    assert [] == kinds(await ledger(bench, conversation))
    assert MARK not in caplog.text


# --- retries ------------------------------------------------------------------------------------


async def test_a_step_is_tried_again_and_what_the_failed_attempt_said_is_dropped(play: Play) -> None:
    ticket = await play.submit("A")
    call = await play.stage.call(1)
    call.say("half of it")
    call.fail(OVERLOADED)
    again = await play.stage.call(2)

    draft = [message.parts for message in await play.messages() if message.role == "assistant"]
    again.answer("all of it")
    result = await ticket.result(BOUND)

    assert [()] == draft
    assert result.message is not None
    assert (TextPart(text="all of it"),) == result.message.parts
    events = [event for event in await play.ledger() if event.kind != LedgerKind.TRANSITION]
    assert [
        LedgerKind.PROVIDER_REQUEST,
        LedgerKind.PROVIDER_RESPONSE,
        LedgerKind.RETRY_SCHEDULED,
        LedgerKind.RETRY_STARTED,
        LedgerKind.PROVIDER_REQUEST,
        LedgerKind.PROVIDER_RESPONSE,
    ] == [event.kind for event in events]
    scheduled = events[2].payload
    assert (2, "overloaded") == (scheduled["attempt"], scheduled["reason"])


async def test_watchers_are_told_to_forget_an_attempt_before_they_hear_the_next(play: Play) -> None:
    ticket = await play.submit("A")
    call = await play.stage.call(1)
    heard: list[Event] = []
    async for event in ticket.events():
        if not heard:
            call.say("half ")
            call.say("of it")
            call.fail(OVERLOADED)
        heard.append(event)
        if isinstance(event, AttemptResetEvent):
            (await play.stage.call(2)).answer("all of it")

    (reset,) = [event for event in heard if isinstance(event, AttemptResetEvent)]
    deltas = [event for event in heard if isinstance(event, AssistantDeltaEvent)]
    after = [event for event in deltas if heard.index(event) > heard.index(reset)]
    assert (0, 2, 1) == (reset.step, reset.attempt, reset.sequence)
    assert [("all of it", reset.epoch, 2)] == [(event.text_delta, event.epoch, event.sequence) for event in after]
    assert ["half ", "of it"] == [event.text_delta for event in deltas if event.epoch == reset.withdrawn]
    assert 3 == len(deltas)


async def test_a_provider_that_asks_for_time_is_given_it(play: Play) -> None:
    asked = OVERLOADED.model_copy(update={"retry_after_seconds": 0.7})
    ticket = await play.submit("A")
    (await play.stage.call(1)).fail(asked)
    (await play.stage.call(2)).answer("now")
    await ticket.result(BOUND)

    events = await play.ledger()
    (scheduled,) = [event for event in events if event.kind == LedgerKind.RETRY_SCHEDULED]
    (started,) = [event for event in events if event.kind == LedgerKind.RETRY_STARTED]
    assert 700 == scheduled.payload["delay_ms"]
    assert (started.occurred_at - scheduled.occurred_at).total_seconds() >= 0.7


async def test_a_provider_that_asks_for_too_much_time_ends_the_run(play: Play) -> None:
    asked = OVERLOADED.model_copy(update={"retry_after_seconds": 3600.0})
    ticket = await play.submit("A")
    (await play.stage.call(1)).fail(asked)
    result = await ticket.result(BOUND)

    assert (TerminalReason.PROVIDER_FAILURE, asked) == (result.reason, result.failure)
    assert LedgerKind.RETRY_SCHEDULED not in kinds(await play.ledger())


async def test_a_step_is_given_up_after_the_last_try(bench: Bench, serve: Serve, conversation: str) -> None:
    agent = scripted([Fail(OVERLOADED)], retry=RetryFacts(max_tries=3, initial_seconds=0.01))

    result = await turn(bench, serve, conversation, agent)

    assert (TerminalReason.PROVIDER_FAILURE, OVERLOADED) == (result.reason, result.failure)
    assert 3 == kinds(await ledger(bench, conversation)).count(LedgerKind.PROVIDER_REQUEST)


# --- content stays in the store -----------------------------------------------------------------


@tool
def tell(secret: str) -> str:
    """Tell a secret."""
    return f"told {secret}"


@tool
def crash(secret: str) -> None:
    """Crash with a secret."""
    raise RuntimeError(secret)


@tool
def refuse(secret: str) -> None:
    """Refuse with a secret."""
    raise ToolError("REFUSED", f"no {secret}", details={"secret": secret})


async def test_no_history_and_no_log_holds_content(
    bench: Bench, serve: Serve, conversation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="turnlane")
    names = ("tell", "crash", "refuse", "no_such_tool", MARK)
    calls: list[Action] = [
        *(Call(name, {"secret": MARK}) for name in names),
        Call("tell", f"{{{MARK}"),
        Call("tell", {"other": MARK}),
    ]
    said = [Say(f"and {MARK}")]
    agent = scripted([Say(MARK), *calls], said, tools=[tell, crash, refuse], instructions=f"Never say {MARK}.")

    result = await turn(bench, serve, conversation, agent, text=f"my secret is {MARK}")
    history = await bench.temporal.get_workflow_handle(f"lane/{conversation}").fetch_history()

    holding = [event.event_type for event in history.events if MARK.encode() in event.SerializeToString()]
    assert TerminalReason.SUCCESS is result.reason
    assert [EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED] == holding
    assert MARK not in caplog.text
