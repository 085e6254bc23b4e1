"""Fallback models: who takes a step over, when, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.stage import BOUND
from tests.integration.watching import Watch
from turnlane.agent import Agent, ModelDescriptor, ModelRegistry, tool
from turnlane.agent.context import ContextBudget
from turnlane.agent.models import Action, Call, Fail, Pause, Say, ScriptedModel, ScriptedRequest
from turnlane.agent.tokens import TextCounter
from turnlane.client import Result
from turnlane.records.events import AssistantDeltaEvent, AttemptResetEvent
from turnlane.records.lane import RetryFacts
from turnlane.records.ledger import LedgerKind
from turnlane.records.runs import Failure, FailureClass, RunState, TerminalReason

pytestmark = pytest.mark.server

OVERLOADED = Failure(failure_class=FailureClass.OVERLOADED, code="overloaded_error", status=529, retryable=True)
REFUSED_KEY = Failure(failure_class=FailureClass.AUTHENTICATION, code="invalid_api_key", status=401)
LATER = OVERLOADED.model_copy(update={"retry_after_seconds": 3600.0})


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"


class Cast:
    """Models that take part, each playing its own script, and which of them was asked in which order."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def model(self, name: str, play: Callable[[ScriptedRequest], Sequence[Action]]) -> ScriptedModel:
        def script(request: ScriptedRequest) -> Sequence[Action]:
            self.asked.append(name)
            return play(request)

        return ScriptedModel(name=name, script=script)

    def failing(self, name: str, failure: Failure) -> ScriptedModel:
        """A model that says half of something and fails."""
        return self.model(name, lambda request: [Say("half "), Fail(failure)])

    def saying(self, name: str) -> ScriptedModel:
        """A model that answers."""
        return self.model(name, lambda request: [Say(f"from {name}")])


def agent(*models: ScriptedModel, **options: Any) -> Agent:
    """An agent with its model and the fallbacks behind it; two tries each."""
    first, *others = models
    retry = RetryFacts(max_tries=2, initial_seconds=0.01)
    return Agent(name="actor", model=first, fallbacks=others, retry=retry, tools=[look], **options)


async def turn(bench: Bench, serve: Serve, conversation: str, given: Agent) -> Result:
    await serve(given)
    return await (await bench.client().submit(conversation, "hi")).result(BOUND)


async def payloads(bench: Bench, conversation: str, kind: LedgerKind) -> list[dict[str, Any]]:
    events = (await bench.store.read_events(conversation)).items
    return [event.payload for event in events if event.kind == kind]


async def test_the_next_model_takes_over_when_the_tries_are_used_up(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    cast = Cast()

    result = await turn(
        bench,
        serve,
        conversation,
        agent(cast.failing("one", OVERLOADED), cast.failing("two", OVERLOADED), cast.saying("three")),
    )

    assert (TerminalReason.SUCCESS, "from three") == (result.reason, result.text)
    assert ["one", "one", "two", "two", "three"] == cast.asked
    scheduled = await payloads(bench, conversation, LedgerKind.RETRY_SCHEDULED)
    assert [None, "two", None, "three"] == [event.get("model") for event in scheduled]
    assert [0, 0] == [event["delay_ms"] for event in scheduled if "model" in event]
    asked = await payloads(bench, conversation, LedgerKind.PROVIDER_REQUEST)
    assert [(1, "one"), (2, "one"), (3, "two"), (4, "two"), (5, "three")] == [
        (event["attempt"], event["model"]) for event in asked
    ]
    answered = await payloads(bench, conversation, LedgerKind.PROVIDER_RESPONSE)
    assert "three" == answered[-1]["response"]["model"]


@pytest.mark.parametrize("failure", [REFUSED_KEY, LATER], ids=["a refused key", "a wait that is too long"])
async def test_a_failure_that_is_not_tried_again_is_handed_over_at_once(
    bench: Bench, serve: Serve, conversation: str, failure: Failure
) -> None:
    cast = Cast()

    result = await turn(bench, serve, conversation, agent(cast.failing("one", failure), cast.saying("two")))

    assert ("from two", ["one", "two"]) == (result.text, cast.asked)


async def test_a_model_that_falls_silent_is_taken_over(bench: Bench, serve: Serve, conversation: str) -> None:
    cast = Cast()
    silent = cast.model("one", lambda request: [Say("half "), Pause(60.0)])

    result = await turn(bench, serve, conversation, agent(silent, cast.saying("two"), idle_timeout=0.2))

    assert (TerminalReason.SUCCESS, "from two") == (result.reason, result.text)


async def test_the_last_models_failure_ends_the_run(bench: Bench, serve: Serve, conversation: str) -> None:
    cast = Cast()

    models = (cast.failing("one", OVERLOADED), cast.failing("two", REFUSED_KEY))
    result = await turn(bench, serve, conversation, agent(*models))

    assert (TerminalReason.PROVIDER_FAILURE, REFUSED_KEY) == (result.reason, result.failure)
    assert ["one", "one", "two"] == cast.asked


@pytest.mark.parametrize(
    ("failure_class", "reason"),
    [
        (FailureClass.APPLICATION, TerminalReason.RUNTIME_FAILURE),
        (FailureClass.STORAGE, TerminalReason.STORAGE_CONFLICT),
        (FailureClass.CONTEXT_OVERFLOW, TerminalReason.CONTEXT_OVERFLOW),
    ],
)
async def test_what_is_not_the_providers_fault_is_not_handed_over(
    bench: Bench, serve: Serve, conversation: str, failure_class: FailureClass, reason: TerminalReason
) -> None:
    cast = Cast()
    failing = cast.failing("one", Failure(failure_class=failure_class))

    result = await turn(bench, serve, conversation, agent(failing, cast.saying("two")))

    assert (reason, ["one"]) == (result.reason, cast.asked)


async def test_a_run_stays_with_its_fallback_and_the_next_run_starts_with_the_first(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    cast = Cast()
    calling = cast.model("two", lambda request: [Say("so")] if request.step else [Call("look")])
    await serve(agent(cast.failing("one", REFUSED_KEY), calling))
    client = bench.client()

    for text in ("hi", "again"):
        result = await (await client.submit(conversation, text)).result(BOUND)
        assert "so" == result.text

    assert ["one", "two", "two"] * 2 == cast.asked


async def test_watchers_forget_what_the_first_model_said(bench: Bench, serve: Serve, conversation: str) -> None:
    cast = Cast()
    await serve(agent(cast.failing("one", REFUSED_KEY), cast.saying("two")))
    client = bench.client()
    watch = Watch(client.events(conversation, from_seq=0))
    await client.submit(conversation, "hi")
    heard = await watch.finished()

    (reset,) = [event for event in heard if isinstance(event, AttemptResetEvent)]
    deltas = [event for event in heard if isinstance(event, AssistantDeltaEvent)]
    assert "from two" == "".join(event.text_delta for event in deltas if event.epoch == reset.epoch)
    assert heard.index(reset) < min(heard.index(event) for event in deltas if event.epoch == reset.epoch)


async def test_spend_of_every_model_counts(bench: Bench, serve: Serve, conversation: str) -> None:
    cast = Cast()
    await serve(agent(cast.failing("one", REFUSED_KEY), cast.saying("two")))
    client = bench.client()

    result = await (await client.submit(conversation, "hi there, you two")).result(BOUND)

    assert result.usage is not None
    # Both were asked in four words; "half" was said by the one, "from two" by the other.
    assert (8, 3) == (result.usage.input_tokens.value, result.usage.output_tokens.value)


async def test_a_lost_lane_goes_on_with_the_model_that_took_over(bench: Bench, serve: Serve, conversation: str) -> None:
    cast = Cast()
    calls = iter([True])

    def answer(request: ScriptedRequest) -> Sequence[Action]:
        return [Say("half "), Pause(60.0)] if next(calls, False) else [Say("whole")]

    await serve(agent(cast.failing("one", REFUSED_KEY), cast.model("two", answer), checkpoint_every=1))
    client = bench.client()
    ticket = await client.submit(conversation, "hi")
    async for event in client.events(conversation, from_seq=0):
        if isinstance(event, AssistantDeltaEvent) and cast.asked[-1] == "two":
            break
    await bench.temporal.get_workflow_handle(f"lane/{conversation}").terminate("the test needs a lost lane")
    second = await client.submit(conversation, "and")
    await second.result(BOUND)
    result = await ticket.result(BOUND)

    assert ("whole", RunState.COMPLETED) == (result.text, result.state)
    assert ["one", "two", "two", "one", "two"] == cast.asked


# --- models by key, and their windows ---------------------------------------------------------------


def registered(window: int = 100_000, /, **models: tuple[ScriptedModel, dict[str, Any]]) -> ModelRegistry:
    """A registry of models that call tools and take this much, unless they say otherwise."""
    usual: dict[str, Any] = {"context_window": window, "capabilities": {"tools"}}
    found = {key: ModelDescriptor(model=model, **{**usual, **facts}) for key, (model, facts) in models.items()}
    return ModelRegistry(found, providers={"scripted"})


async def test_a_key_takes_over_as_its_model(bench: Bench, serve: Serve, conversation: str) -> None:
    cast = Cast()
    models = registered(first=(cast.failing("one", REFUSED_KEY), {}), second=(cast.saying("two"), {}))

    result = await turn(
        bench, serve, conversation, Agent(name="actor", model="first", models=models, fallbacks=["second"])
    )

    assert (TerminalReason.SUCCESS, "from two") == (result.reason, result.text)
    scheduled = await payloads(bench, conversation, LedgerKind.RETRY_SCHEDULED)
    assert ["second"] == [event["model"] for event in scheduled]


async def test_a_key_whose_model_is_not_available_is_passed_over(bench: Bench, serve: Serve, conversation: str) -> None:
    cast = Cast()
    models = registered(
        first=(cast.failing("one", REFUSED_KEY), {}),
        gone=(cast.saying("gone"), {"availability": "unavailable"}),
        third=(cast.saying("three"), {}),
    )
    agent = Agent(name="actor", model="first", models=models, fallbacks=["gone", "third"], tools=[look])

    result = await turn(bench, serve, conversation, agent)

    assert (TerminalReason.SUCCESS, "from three") == (result.reason, result.text)
    assert ["one", "three"] == cast.asked


async def test_a_run_whose_last_fallback_is_not_available_ends_as_such(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    cast = Cast()
    models = registered(
        first=(cast.failing("one", REFUSED_KEY), {}), gone=(cast.saying("gone"), {"availability": "unavailable"})
    )

    result = await turn(
        bench, serve, conversation, Agent(name="actor", model="first", models=models, fallbacks=["gone"])
    )

    assert result.failure is not None
    assert (TerminalReason.PROVIDER_FAILURE, FailureClass.MODEL_UNAVAILABLE, "unavailable") == (
        result.reason,
        result.failure.failure_class,
        result.failure.code,
    )


LONG = "many words " * 20


async def said_before(bench: Bench, serve: Serve, conversation: str, budget: ContextBudget) -> tuple[Cast, Result]:
    """A turn of 40 words, and one whose model fails and leaves it to one that takes 20."""
    cast, working = Cast(), {"one": True}

    def first(request: ScriptedRequest) -> Sequence[Action]:
        return [Say("Yes.")] if working["one"] else [Fail(REFUSED_KEY)]

    models = registered(first=(cast.model("one", first), {}), small=(cast.saying("two"), {"context_window": 20}))
    await serve(Agent(name="actor", model="first", models=models, fallbacks=["small"], budget=budget))
    client = bench.client()
    await (await client.submit(conversation, LONG)).result(BOUND)
    working["one"] = False
    return cast, await (await client.submit(conversation, "and now")).result(BOUND)


def words(text: str) -> int:
    return len(text.split())


async def test_a_fallback_that_takes_less_is_not_asked_what_it_cannot_take(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    budget = ContextBudget(reserved_output=2, counter=TextCounter(words), provider_overhead=0)

    cast, result = await said_before(bench, serve, conversation, budget)

    assert TerminalReason.CONTEXT_OVERFLOW is result.reason
    assert ["one", "one"] == cast.asked


async def test_for_a_fallback_that_takes_less_older_turns_are_left_out(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    selecting: dict[str, Any] = {"oversize": "select", "keep_recent_turns": 0}
    budget = ContextBudget(reserved_output=2, counter=TextCounter(words), provider_overhead=0, **selecting)

    cast, result = await said_before(bench, serve, conversation, budget)
    asked = await payloads(bench, conversation, LedgerKind.PROVIDER_REQUEST)

    assert (TerminalReason.SUCCESS, "from two") == (result.reason, result.text)
    assert ["one", "one", "two"] == cast.asked
    assert [(1, 100_000), (3, 100_000), (1, 20)] == [
        (event["messages"], event["context"]["context_window"]) for event in asked
    ]
