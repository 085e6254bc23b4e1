"""Models of a registry: refused before an input is admitted, chosen by a conversation, resolved once for a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.conftest import Bench, Serve
from tests.integration.play import Play, open_play
from tests.integration.stage import BOUND, Stage
from turnlane.agent import ModelDescriptor, ModelRegistry, ScriptedModel
from turnlane.agent.model_choice import ModelContext, ModelQuestion
from turnlane.agent.models import Action, ScriptedRequest
from turnlane.records.errors import ModelRefusedError, PreflightFailedError, TurnlaneError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import FilePart, TextPart
from turnlane.records.runs import FailureClass, TerminalReason

pytestmark = pytest.mark.server

PICTURE = FilePart(media_type="image/png", reference="https://example.org/a.png")
PAPER = FilePart(media_type="application/pdf", reference="https://example.org/a.pdf")


def silent(request: ScriptedRequest) -> Sequence[Action]:
    return ()


def registered(**capabilities: Any) -> ModelRegistry:
    """A registry of scripted models: their keys, and what each can do."""
    return ModelRegistry(
        {
            key: ModelDescriptor(
                model=ScriptedModel(name=f"model-{key}", script=silent), context_window=1000, capabilities=can
            )
            for key, can in capabilities.items()
        }
    )


MODELS = registered(fast={"tools"}, deep={"tools", "vision", "files"}, plain=())


async def opened(bench: Bench, serve: Serve, conversation: str, **agent: Any) -> Play:
    """A conversation whose agent has a registry, with a model that answers."""
    play = await open_play(bench, serve, conversation, **{"model": "fast", "models": MODELS, "tools": [], **agent})
    play.stage.play()
    return play


def asked(play: Play) -> list[str]:
    """The models that were called, in order."""
    return [call.request.model.name for call in play.stage.calls]


# --- before an input is admitted ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ValueError("no"), PreflightFailedError), (ModelRefusedError("no"), ModelRefusedError)],
    ids=["of its own", "of ours"],
)
async def test_a_preflight_that_raises_refuses_the_input_and_stores_nothing(
    bench: Bench, serve: Serve, conversation: str, raised: Exception, expected: type[TurnlaneError]
) -> None:
    questions: list[ModelQuestion] = []

    async def preflight(question: ModelQuestion) -> None:
        questions.append(question)
        raise raised

    play = await opened(bench, serve, conversation, preflight=preflight)
    with pytest.raises(expected):
        await play.submit("A", context={"tier": "free"}, tenant="acme")

    assert ((), ()) == ((await play.client.snapshot(conversation)).messages, tuple(play.stage.calls))
    assert [(conversation, {"tier": "free"}, "acme", None)] == [
        (item.conversation_id, item.context, item.tenant, item.chosen) for item in questions
    ]


async def test_a_preflight_is_asked_about_every_input_of_a_warm_lane(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    is_open = True

    def preflight(question: ModelQuestion) -> None:
        if not is_open:
            raise ValueError

    play = await opened(bench, serve, conversation, preflight=preflight, model=MODELS["fast"].model, models=None)
    await (await play.submit("A")).result(BOUND)
    is_open = False
    with pytest.raises(PreflightFailedError):
        await play.submit("B")
    is_open = True

    assert ["success"] == await play.reasons(await play.submit("C"))
    assert ["A", "C"] == await play.answered()


@pytest.mark.parametrize(
    ("part", "missing"), [(PICTURE, ["vision"]), (PAPER, ["files"])], ids=["an image", "a document"]
)
async def test_an_input_that_the_model_cannot_read_is_refused(
    bench: Bench, serve: Serve, conversation: str, part: FilePart, missing: list[str]
) -> None:
    play = await opened(bench, serve, conversation)
    with pytest.raises(ModelRefusedError) as refused:
        await play.client.submit(conversation, [TextPart(text="look"), part])

    assert (missing, 0) == (refused.value.details["fields"], (await play.client.snapshot(conversation)).version)


async def test_an_input_with_files_reaches_a_model_that_reads_them(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await opened(bench, serve, conversation, model="deep")
    ticket = await play.client.submit(conversation, [TextPart(text="look"), PICTURE, PAPER])

    assert (["success"], ["model-deep"]) == (await play.reasons(ticket), asked(play))


async def test_an_agent_with_tools_needs_a_model_that_calls_them(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, model="plain", models=MODELS)
    with pytest.raises(ModelRefusedError) as refused:
        await play.submit("A")

    assert ["tools"] == refused.value.details["fields"]


# --- what a conversation chooses ----------------------------------------------------------------


async def test_a_chosen_model_answers_from_the_next_run_on(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await opened(bench, serve, conversation)
    await (await play.submit("A")).result(BOUND)
    await play.client.choose_model(conversation, "deep")
    await (await play.submit("B")).result(BOUND)
    chosen = await play.client.chosen_model(conversation)
    await play.client.choose_model(conversation, None)
    await (await play.submit("C")).result(BOUND)

    assert (["model-fast", "model-deep", "model-fast"], "deep") == (asked(play), chosen)


async def test_a_person_who_looks_at_the_lane_sees_the_chosen_model(
    bench: Bench, serve: Serve, conversation: str
) -> None:
    play = await opened(bench, serve, conversation)
    await play.client.choose_model(conversation, "deep")
    metadata = await play.lane.query("__temporal_workflow_metadata")
    details = metadata["currentDetails"] if isinstance(metadata, dict) else metadata.current_details

    assert "- model: `deep`" in details


async def test_a_run_in_flight_keeps_its_model(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await open_play(bench, serve, conversation, model="fast", models=MODELS)
    ticket = await play.submit("A")
    call = await play.stage.call(1)
    await play.client.choose_model(conversation, "deep")
    call.use(("1", "look", "{}"))
    (await play.stage.call(2)).answer("Yes.")

    assert (["success"], ["model-fast", "model-fast"]) == (await play.reasons(ticket), asked(play))


async def test_a_key_that_the_agent_does_not_have_is_refused(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await opened(bench, serve, conversation)
    with pytest.raises(ModelRefusedError) as refused:
        await play.client.choose_model(conversation, "nobody")

    assert ("unknown-model", None) == (refused.value.details["reason"], await play.client.chosen_model(conversation))


async def test_a_model_may_be_chosen_before_the_first_word(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await opened(bench, serve, conversation)
    await play.client.choose_model(conversation, "deep", agent="actor")
    await (await play.submit("A")).result(BOUND)

    assert ["model-deep"] == asked(play)


async def test_a_choice_outlives_its_lane(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await opened(bench, serve, conversation)
    await play.client.choose_model(conversation, "deep")
    await play.lane.terminate()
    await (await play.submit("A")).result(BOUND)

    assert ["model-deep"] == asked(play)


async def test_a_choice_that_the_agent_lost_refuses_inputs(bench: Bench, serve: Serve, conversation: str) -> None:
    stage = Stage()
    agent = stage.agent(model="fast", models=MODELS)
    async with bench.worker(agent, providers=stage.providers):
        await bench.client().choose_model(conversation, "deep")
    poorer = stage.agent(model="fast", models=registered(fast=()))
    await serve(poorer, providers=stage.providers)
    with pytest.raises(ModelRefusedError) as refused:
        await bench.client().submit(conversation, "A")

    assert ("the agent has no model of this key", []) == (refused.value.message, stage.calls)


# --- what a run is resolved to ------------------------------------------------------------------


async def test_a_model_is_resolved_once_for_a_run(bench: Bench, serve: Serve, conversation: str) -> None:
    contexts: list[ModelContext] = []

    async def resolve(context: ModelContext) -> str:
        contexts.append(context)
        return "deep" if len(contexts) == 1 else "fast"

    play = await open_play(bench, serve, conversation, model="fast", models=MODELS, resolve_model=resolve)
    await play.client.choose_model(conversation, "plain", agent="actor")
    ticket = await play.submit("A", metadata={"plan": "pro"})
    (await play.stage.call(1)).use(("1", "look", "{}"))
    (await play.stage.call(2)).answer("Yes.")

    assert (["success"], ["model-deep", "model-deep"]) == (await play.reasons(ticket), asked(play))
    assert [(conversation, {"plan": "pro"}, "plain")] == [
        (item.conversation_id, item.metadata, item.chosen) for item in contexts
    ]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ValueError("no"), "RESOLVE_MODEL_FAILED"),
        (ScriptedModel(name="stranger", script=silent), "RESOLVE_MODEL_FAILED"),
        ("nobody", "MODEL_REFUSED"),
        ("plain", "MODEL_REFUSED"),
    ],
    ids=["raises", "a model of nobody", "a key of nobody", "cannot call tools"],
)
async def test_a_model_that_cannot_be_resolved_is_a_failure_of_the_application(
    bench: Bench, serve: Serve, conversation: str, answer: Any, code: str
) -> None:
    def resolve(context: ModelContext) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    play = await open_play(bench, serve, conversation, model="fast", models=MODELS, resolve_model=resolve)
    result = await (await play.submit("A")).result(BOUND)

    assert result.failure is not None
    assert (TerminalReason.RUNTIME_FAILURE, FailureClass.APPLICATION, code, []) == (
        result.reason,
        result.failure.failure_class,
        result.failure.code,
        play.stage.calls,
    )


async def test_a_resolver_may_name_a_model_itself(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await opened(bench, serve, conversation, resolve_model=lambda context: MODELS["deep"].model)
    ticket = await play.submit("A")

    assert (["success"], ["model-deep"]) == (await play.reasons(ticket), asked(play))


async def test_the_ledger_names_the_model_that_was_called(bench: Bench, serve: Serve, conversation: str) -> None:
    play = await opened(bench, serve, conversation)
    await play.client.choose_model(conversation, "deep")
    await (await play.submit("A")).result(BOUND)
    kinds = {event.kind: event.payload for event in await play.ledger()}

    assert "model-deep" == kinds[LedgerKind.PROVIDER_REQUEST]["model"]
