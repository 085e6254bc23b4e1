"""Completions: one call for one key, whoever asks, fails or leaves meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.integration.completing import DONE, KEY, KEY_NAME, FailingStore, allow, asked, chat, forbid, receipts, spoken
from turnlane.activities.invocations import ModelInvocations, current_attempt
from turnlane.activities.providers.base import Finish, ProviderFailure, TextDelta
from turnlane.agent import AnthropicModel
from turnlane.agent.tool_context import Cancellation
from turnlane.records.errors import IdempotencyConflictError, InvalidInputError, StoreUnavailableError
from turnlane.records.invocations import (
    Caller,
    CompletionRequest,
    EffectiveIdentity,
    InvocationAttempt,
    InvocationFinished,
    InvocationStarted,
    ProviderResponded,
)
from turnlane.records.runs import Failure, FailureClass
from turnlane.records.steps import FinishReason
from turnlane.records.usage import UNAVAILABLE
from turnlane.store.sql import SqlStore, open_store
from turnlane.testing.fault_plan import Gate, HttpError, Pass, Silent, Step
from turnlane.testing.fault_server import FaultServer


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


async def test_a_restored_backup_knows_the_key_and_calls_nobody(store: SqlStore, tmp_path: Path) -> None:
    _, invocations = spoken(store, TextDelta("Tides"), DONE)
    done = await invocations.complete(asked())
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "completions.db")) as kept,
        contextlib.closing(sqlite3.connect(tmp_path / "restored.db")) as backup,
    ):
        kept.backup(backup)
    restored = await open_store(str(tmp_path / "restored.db"))
    try:
        provider, others = spoken(restored, TextDelta("Waves"), DONE)
        again = await others.complete(asked())
        with pytest.raises(IdempotencyConflictError):
            await others.complete(asked(prompt="Other."))
        told = [await receipts(invocations), await receipts(others)]
    finally:
        await restored.close()

    assert ("duplicate", done.invocation_id, None) == (again.outcome, again.invocation_id, again.text)
    assert [] == provider.attempts
    assert told[0] == told[1]


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
