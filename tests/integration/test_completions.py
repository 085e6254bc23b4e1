"""Completions: one call for one key, receipts of every attempt, and an answer that no receipt can take away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from turnlane.activities.invocations import AuthorizationRequest, ModelInvocations, current_attempt
from turnlane.activities.providers.base import Finish, ProviderFailure, ProviderRequest, StreamPart, TextDelta
from turnlane.activities.providers.registry import Providers
from turnlane.agent import (
    AnthropicModel,
    Model,
    ModelDescriptor,
    ModelRegistry,
    OpenAIChatModel,
    Prices,
    ScriptedModel,
)
from turnlane.agent.tool_context import Cancellation
from turnlane.records.errors import (
    IdempotencyConflictError,
    InvalidInputError,
    PayloadNotFoundError,
    PayloadUnreadableError,
    StoreUnavailableError,
)
from turnlane.records.invocations import (
    Caller,
    CompletionRequest,
    EffectiveIdentity,
    InvocationAttempt,
    InvocationFinished,
    InvocationReceipt,
    InvocationStarted,
    InvocationTrace,
    ProviderRequested,
    ProviderResponded,
)
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import FinishReason
from turnlane.records.usage import UNAVAILABLE
from turnlane.store.sql import SqlStore, open_store
from turnlane.testing.fault_plan import CutAfter, Figures, Gate, HttpError, Pass, Silent, Step, UsageMissing
from turnlane.testing.fault_server import FaultServer

KEY = bytes(range(32))
TRACE = InvocationTrace(operation_id="op-1", purpose="title", project="notes")
KEY_NAME = "COMPLETION_TEST_KEY"


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqlStore]:
    monkeypatch.setenv(KEY_NAME, "sk-completions")
    opened = await open_store(str(tmp_path / "store.db"))
    yield opened
    await opened.close()


def allow(asked: AuthorizationRequest) -> Caller:
    return Caller(subject="ada")


def forbid(asked: AuthorizationRequest) -> Caller:
    raise PermissionError(asked.action)


def chat(server: FaultServer, name: str = "gpt-x") -> Model:
    return OpenAIChatModel(name=name, base_url=server.openai_url, api_key_env=KEY_NAME)


def asked(key: str = "k", **changes: Any) -> CompletionRequest:
    fields = {"conversation_id": "c", "idempotency_key": key, "trace": TRACE, "prompt": "Name it.", "models": ["one"]}
    return CompletionRequest(**{**fields, **changes})


@dataclass
class Spoken:
    """A provider of a test's own: says what it is given, and notes on whose behalf."""

    says: Callable[[ProviderRequest], list[StreamPart | Exception]]
    attempts: list[InvocationAttempt | None] = field(default_factory=list)

    async def stream(self, request: ProviderRequest) -> AsyncIterator[StreamPart]:
        for part in self.says(request):
            self.attempts.append(current_attempt())
            if isinstance(part, Exception):
                raise part
            yield part

    async def aclose(self) -> None:
        """Nothing is open."""


def spoken(store: Any, *parts: StreamPart | Exception, **options: Any) -> tuple[Spoken, ModelInvocations]:
    provider = Spoken(lambda request: list(parts))
    models = {"one": ScriptedModel(script=lambda request: ()), "two": ScriptedModel(script=lambda request: ())}
    adapters = Providers({"scripted": lambda: provider})
    options = {"payload_key": KEY, "authorize": allow, "models": models, "providers": adapters, **options}
    return provider, ModelInvocations(store, **options)


DONE = Finish(FinishReason.STOP)


async def receipts(invocations: ModelInvocations, conversation_id: str = "c") -> list[InvocationReceipt]:
    return [entry.receipt for entry in (await invocations.read(conversation_id)).items]


async def test_a_completion_leaves_a_receipt_of_each_part_of_it(store: SqlStore) -> None:
    prices = Prices(input="2", output="4", cache_read="1")
    async with FaultServer([Pass("Tides", usage=Figures(input_tokens=100, output_tokens=10))]) as server:
        described = ModelDescriptor(model=chat(server, "test-model"), context_window=1000, prices=prices)
        models = ModelRegistry({"one": described})
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models=models)
        completion = await invocations.complete(asked())
        await invocations.aclose()
        model_name = json.loads(json.dumps(server.requests[0].body))["model"]

    started, requested, responded, finished = await receipts(invocations)

    assert ("succeeded", "Tides", None) == (completion.outcome, completion.text, completion.receipt_error)
    assert isinstance(started, InvocationStarted)
    assert ("ada", TRACE) == (started.caller.subject, started.trace)
    assert isinstance(requested, ProviderRequested)
    assert (model_name, "openai-chat", 0) == (requested.sent.model_id, requested.sent.provider, requested.sent.tools)
    assert isinstance(responded, ProviderResponded)
    assert ("succeeded", 100, 0.00024) == (
        responded.status,
        responded.usage.input_tokens.value,
        responded.usage.cost and responded.usage.cost.value,
    )
    assert isinstance(finished, InvocationFinished)
    assert {completion.invocation_id} == {
        receipt.invocation_id for receipt in (started, requested, responded, finished)
    }


async def test_two_at_once_under_one_key_make_one_call(store: SqlStore) -> None:
    gate = Gate(of=Pass("Tides"))
    async with FaultServer([gate]) as server:
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models={"one": chat(server)})
        both = [asyncio.create_task(invocations.complete(asked())) for _ in range(2)]
        async with asyncio.timeout(30):
            await gate.reached.wait()
            gate.event.set()
            done = await asyncio.gather(*both)
        again = await invocations.complete(asked())
        await invocations.aclose()

        assert ["duplicate", "succeeded"] == sorted(completion.outcome for completion in done)
        assert ("duplicate", None) == (again.outcome, again.text)
        assert 1 == len({completion.invocation_id for completion in (*done, again)})
        assert 1 == len(server.requests)


@pytest.mark.parametrize(
    "changes", [{"prompt": "Other."}, {"models": ["one", "one"]}, {"timeout_ms": 5}, {"settings": {"seed": 1}}]
)
async def test_a_key_used_for_something_else_is_a_conflict(store: SqlStore, changes: dict[str, Any]) -> None:
    provider, invocations = spoken(store, TextDelta("Tides"), DONE)
    await invocations.complete(asked())

    with pytest.raises(IdempotencyConflictError):
        await invocations.complete(CompletionRequest.model_validate({**asked().model_dump(), **changes}))
    assert 2 == len(provider.attempts)


async def test_a_key_used_by_somebody_else_is_a_conflict(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("Tides"), DONE)
    _, others = spoken(store, TextDelta("Tides"), DONE, authorize=lambda asked: Caller(subject="bob"))
    await invocations.complete(asked())

    with pytest.raises(IdempotencyConflictError):
        await others.complete(asked())


async def test_the_next_model_answers_where_the_first_ones_provider_failed(store: SqlStore) -> None:
    plan: list[Step] = [HttpError(500, body={"error": {"message": "MARKER text"}}), Pass("Tides")]
    async with FaultServer(plan) as server:
        models = {"one": chat(server, "gpt-1"), "two": chat(server, "gpt-2")}
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models=models)
        completion = await invocations.complete(asked(models=["one", "two"]))
        await invocations.aclose()

    told = await receipts(invocations)
    responses = [receipt for receipt in told if isinstance(receipt, ProviderResponded)]

    assert ("succeeded", "Tides") == (completion.outcome, completion.text)
    assert ["failed", "succeeded"] == [response.status.value for response in responses]
    assert (EffectiveIdentity(), UNAVAILABLE) == (responses[0].effective, responses[0].usage.input_tokens)
    assert responses[1].effective.response_id is not None
    assert "MARKER" not in "".join(receipt.model_dump_json() for receipt in told)


async def test_an_answer_that_ends_in_an_error_is_the_providers_failure(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("Ti"), Finish(FinishReason.ERROR))

    completion = await invocations.complete(asked(models=["one", "two"]))

    statuses = [told.status.value for told in await receipts(invocations) if isinstance(told, ProviderResponded)]
    assert ("failed", ["failed", "failed"]) == (completion.outcome, statuses)


async def test_usage_told_before_a_cut_is_in_the_receipt(store: SqlStore) -> None:
    async with FaultServer([CutAfter(events=1, of=Pass(usage=Figures(input_tokens=1200)))]) as server:
        model = AnthropicModel(name="claude-x", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models={"one": model})
        completion = await invocations.complete(asked())
        await invocations.aclose()

    (responded,) = [told for told in await receipts(invocations) if isinstance(told, ProviderResponded)]

    assert "failed" == completion.outcome
    assert (1200, True) == (responded.usage.input_tokens.value, responded.usage.partial)


async def test_a_hook_that_raises_prevents_the_call_and_the_next_models_as_well(store: SqlStore) -> None:
    async def refuse(attempt: InvocationAttempt) -> None:
        raise RuntimeError("not today")

    provider, invocations = spoken(store, TextDelta("Tides"), DONE, on_attempt=refuse)

    completion = await invocations.complete(asked(models=["one", "two"]))

    (responded,) = [told for told in await receipts(invocations) if isinstance(told, ProviderResponded)]
    assert ("failed", []) == (completion.outcome, provider.attempts)
    assert ("failed", "transport-audit") == (responded.status, responded.phase)


async def test_a_model_that_is_not_there_fails_and_nobody_is_called(store: SqlStore) -> None:
    provider, invocations = spoken(store, TextDelta("Tides"), DONE)

    completion = await invocations.complete(asked(models=["unknown", "two"]))

    started, finished = await receipts(invocations)
    assert ("failed", []) == (completion.outcome, provider.attempts)
    assert isinstance(started, InvocationStarted)
    assert isinstance(finished, InvocationFinished)
    assert finished.failure is not None


class FailingStore:
    """A store that does not take events of some kinds."""

    def __init__(self, store: SqlStore, *kinds: str) -> None:
        self._store = store
        self._kinds = kinds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_event(self, conversation_id: str, kind: str, *rest: Any, **options: Any) -> Any:
        if kind in self._kinds:
            raise StoreUnavailableError(f"no {kind}")
        return await self._store.append_event(conversation_id, kind, *rest, **options)


@pytest.mark.parametrize("kind", ["invocation/finished", "provider/response"])
async def test_a_receipt_that_fails_after_the_answer_takes_nothing_away(store: SqlStore, kind: str) -> None:
    _, invocations = spoken(FailingStore(store, kind), TextDelta("Tides"), DONE)

    completion = await invocations.complete(asked())

    assert ("succeeded", "Tides") == (completion.outcome, completion.text)
    assert isinstance(completion.receipt_error, StoreUnavailableError)


@pytest.mark.parametrize("kind", ["provider/payload", "provider/request"])
async def test_a_receipt_that_fails_before_the_call_prevents_it(store: SqlStore, kind: str) -> None:
    provider, invocations = spoken(FailingStore(store, kind), TextDelta("Tides"), DONE)

    completion = await invocations.complete(asked(models=["one", "two"]))

    assert ("failed", []) == (completion.outcome, provider.attempts)


async def test_what_cannot_be_admitted_is_raised_and_nobody_is_called(store: SqlStore) -> None:
    provider, invocations = spoken(FailingStore(store, "invocation/started"), TextDelta("Tides"), DONE)

    with pytest.raises(StoreUnavailableError):
        await invocations.complete(asked())
    assert [] == provider.attempts


async def test_who_may_not_is_refused_and_nothing_is_written(store: SqlStore) -> None:
    provider, invocations = spoken(store, TextDelta("Tides"), DONE, authorize=forbid)

    for call in (invocations.complete(asked()), invocations.read("c"), invocations.read_payload("c", "a")):
        with pytest.raises(PermissionError):
            await call
    assert ([], 0) == (provider.attempts, await store.last_seq("c"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"caller": "eve"},
        {"prompt": ""},
        {"models": []},
        {"models": ["one"] * 9},
        {"timeout_ms": 0},
        {"timeout_ms": 3_600_001},
        {"settings": {"top_p": 1.5}},
        {"idempotency_key": ""},
        {"trace": {"operation_id": "o", "purpose": "p"}},
    ],
    ids=str,
)
async def test_a_request_that_does_not_fit_is_refused_whole(store: SqlStore, wrong: dict[str, Any]) -> None:
    provider, invocations = spoken(store, TextDelta("Tides"), DONE)

    with pytest.raises(InvalidInputError):
        await invocations.complete({**asked().model_dump(mode="json"), **wrong})
    assert ([], 0) == (provider.attempts, await store.last_seq("c"))


async def test_the_deadline_holds_for_all_models_together(store: SqlStore) -> None:
    async with FaultServer([Silent()]) as server:
        models = {"one": chat(server), "two": chat(server)}
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models=models)
        completion = await invocations.complete(asked(models=["one", "two"], timeout_ms=300))
        await invocations.aclose()

        assert 1 == len(server.requests)
    *_, responded, finished = await receipts(invocations)
    assert "cancelled" == completion.outcome
    assert isinstance(responded, ProviderResponded)
    assert isinstance(finished, InvocationFinished)
    assert ("cancelled", "cancelled") == (responded.status, finished.status)


async def test_a_signal_cancels(store: SqlStore) -> None:
    gate, signal = Gate(of=Pass("Tides")), Cancellation()
    async with FaultServer([gate]) as server:
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models={"one": chat(server)})
        work = asyncio.create_task(invocations.complete(asked(), signal=signal))
        async with asyncio.timeout(30):
            await gate.reached.wait()
            signal.set()
            completion = await work
        await invocations.aclose()

    assert ("cancelled", None) == (completion.outcome, completion.text)


async def test_a_caller_that_leaves_leaves_receipts_behind(store: SqlStore) -> None:
    gate = Gate(of=Pass("Tides"))
    async with FaultServer([gate]) as server:
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models={"one": chat(server)})
        work = asyncio.create_task(invocations.complete(asked()))
        async with asyncio.timeout(30):
            await gate.reached.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        again = await invocations.complete(asked())
        await invocations.aclose()

    *_, finished = await receipts(invocations)
    assert isinstance(finished, InvocationFinished)
    assert ("cancelled", "duplicate") == (finished.status, again.outcome)


async def test_the_code_of_a_call_knows_its_attempt_and_other_code_does_not(store: SqlStore) -> None:
    seen: list[InvocationAttempt] = []
    provider, invocations = spoken(store, TextDelta("Ti"), TextDelta("des"), DONE, on_attempt=seen.append)

    await invocations.complete(asked())

    assert [seen[0]] * 3 == provider.attempts
    assert provider.attempts[0] is not provider.attempts[1]
    assert current_attempt() is None


async def test_evidence_over_half_the_limit_is_cut_and_the_answer_is_not(store: SqlStore) -> None:
    words = [TextDelta("x" * 100) for _ in range(50)]
    _, invocations = spoken(store, *words, DONE, max_payload_bytes=2048)

    completion = await invocations.complete(asked())

    (responded,) = [told for told in await receipts(invocations) if isinstance(told, ProviderResponded)]
    kept = (await invocations.read_payload("c", responded.artifact_id or "")).value
    assert "x" * 5000 == completion.text
    assert isinstance(kept, dict)
    truncated, parts = kept["truncated"], kept["parts"]
    assert isinstance(truncated, dict)
    assert isinstance(parts, list)
    assert (51, 64) == (truncated["parts"], len(str(truncated["sha256"])))
    assert 0 < len(parts) < 51


async def test_what_was_said_is_in_the_payloads_and_nowhere_else(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("MARKER answer"), DONE)
    await invocations.complete(asked(prompt="MARKER prompt"))
    requested, responded = [
        told for told in await receipts(invocations) if isinstance(told, ProviderRequested | ProviderResponded)
    ]
    assert isinstance(requested, ProviderRequested)
    assert isinstance(responded, ProviderResponded)

    sent = await invocations.read_payload("c", requested.sent.artifact_id)
    heard = await invocations.read_payload("c", responded.artifact_id or "")

    events = (await store.read_events("c")).items
    assert "MARKER" not in "".join(event.model_dump_json() for event in events)
    assert (requested.sent.payload_sha256, responded.payload_sha256) == (sent.sha256, heard.sha256)
    assert "MARKER prompt" in json.dumps(sent.value)
    assert "MARKER answer" in json.dumps(heard.value)


async def test_another_key_reads_receipts_and_opens_nothing(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("Tides"), DONE)
    _, others = spoken(store, TextDelta("Tides"), DONE, payload_key=bytes(32))
    await invocations.complete(asked())
    told = await receipts(others)
    requested = next(receipt for receipt in told if isinstance(receipt, ProviderRequested))

    with pytest.raises(PayloadUnreadableError):
        await others.read_payload("c", requested.sent.artifact_id)
    with pytest.raises(PayloadNotFoundError):
        await others.read_payload("c", "unknown")
    assert 4 == len(told)


async def test_receipts_are_read_in_pages(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("Tides"), DONE)
    for key in "ab":
        await invocations.complete(asked(key))

    seen: list[int] = []
    seq: int | None = 1
    pages = 0
    while seq is not None:
        page = await invocations.read("c", from_seq=seq, limit=3)
        seen += [entry.seq for entry in page.items]
        seq, pages = page.next_seq, pages + 1

    assert (8, 3, sorted(seen)) == (len(seen), pages, seen)


async def test_an_applications_own_failure_is_not_handed_to_the_next_model(store: SqlStore) -> None:
    broken = ProviderFailure(Failure(failure_class=FailureClass.APPLICATION, code="script_raised"))
    provider, invocations = spoken(store, broken)

    completion = await invocations.complete(asked(models=["one", "two"]))

    assert ("failed", 1) == (completion.outcome, len(provider.attempts))


async def test_settings_are_sent_and_a_seed_only_where_there_is_one(store: SqlStore) -> None:
    settings = {"temperature": 0.5, "seed": 7, "max_output_tokens": 33}
    async with FaultServer([Pass()]) as server:
        anthropic = AnthropicModel(name="claude-x", base_url=server.anthropic_url, api_key_env=KEY_NAME)
        models = {"one": chat(server), "two": anthropic}
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models=models)
        for key in models:
            await invocations.complete(
                CompletionRequest.model_validate({**asked(key, models=[key]).model_dump(), "settings": settings})
            )
        await invocations.aclose()
        one, two = (request.body for request in server.requests)

    assert (0.5, 7, 33) == (one["temperature"], one["seed"], one["max_tokens"])
    assert (0.5, None, 33) == (two["temperature"], two.get("seed"), two["max_tokens"])


async def test_a_store_that_cannot_append_once_is_refused() -> None:
    with pytest.raises(TypeError):
        ModelInvocations(object(), payload_key=KEY, authorize=allow)  # type: ignore[arg-type]


async def test_what_completions_spent_is_in_the_conversations_total(store: SqlStore) -> None:
    counted = Pass("a", usage=Figures(input_tokens=1000, output_tokens=0))
    plan: list[Step] = [HttpError(429), counted, UsageMissing(Pass("b"))]
    dear = {"gpt-x": Prices(input="1000", output="1000")}
    async with FaultServer(plan) as server:
        models = {"one": chat(server), "two": chat(server)}
        invocations = ModelInvocations(store, payload_key=KEY, authorize=allow, models=models, prices=dear)
        first = await invocations.complete(asked(models=["one", "two"]))
        again = await invocations.complete(asked(models=["one", "two"]))
        priced = await store.conversation_spend("c")
        await invocations.complete(asked("other"))
        await invocations.aclose()
    total = await store.conversation_spend("c")

    assert ("succeeded", "duplicate") == (first.outcome, again.outcome)
    assert (1, 0, [1.0]) == (priced.runs, priced.missing, [cost.value for cost in priced.costs])
    assert (2, 1, 1, [1.0]) == (total.runs, total.missing, total.unpriced, [cost.value for cost in total.costs])


async def test_time_that_is_up_while_the_receipt_is_written_takes_no_answer_away(store: SqlStore) -> None:
    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def append_event(self, conversation_id: str, kind: str, payload: Any, now: Any, key: Any = None) -> Any:
            if kind == "provider/response":
                writing.set()
                await written.wait()
            return await store.append_event(conversation_id, kind, payload, now, key)

    writing, written = asyncio.Event(), asyncio.Event()
    _, invocations = spoken(Slow(), TextDelta("Tides"), DONE)
    signal = Cancellation()
    work = asyncio.ensure_future(invocations.complete(asked(), signal=signal))
    async with asyncio.timeout(30):
        await writing.wait()
        signal.set()
        while not any(task.cancelling() for task in asyncio.all_tasks()):  # noqa: ASYNC110 (a task tells nobody)
            await asyncio.sleep(0)
        written.set()
        completion = await work

    assert ("succeeded", "Tides", None) == (completion.outcome, completion.text, completion.receipt_error)
    assert ["invocation/started", "provider/request", "provider/response", "invocation/finished"] == [
        receipt.type for receipt in await receipts(invocations)
    ]


async def test_a_conversation_of_completions_only_is_no_conversation_yet(store: SqlStore) -> None:
    _, invocations = spoken(store, TextDelta("Tides"), DONE)
    await invocations.complete(asked())

    opened = await store.open_lane("c", "lane-1", None)

    assert (0, 1) == ((await store.load_snapshot("c")).version, opened.epoch)
    assert 4 == len(await receipts(invocations))
